"""Sizes of fake tensors that a caller brings, and autocast, in a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from runtime import func, jit
from runtime.aot import make_fx
from tests.runtime.trace.graphs import CallsSeen, node, targets


def _fake(*shapes: tuple[int, ...]) -> list[Tensor]:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return [mode.from_tensor(torch.ones(shape)) for shape in shapes]


def _filled(x: Tensor, n: int) -> Tensor:
    return x.new_ones(n, 2) + x.sum() * n


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_size_that_is_an_argument_of_its_own_is_read_from_it(mode: str) -> None:
    x, y = _fake((5, 6), (7, 8))
    size = y.shape[0]
    traced = make_fx(_filled, tracing_mode=mode)(x, size)
    assert node(traced, "n_1").meta["val"] is size
    assert torch.ops.aten.sym_size.int not in targets(traced)
    for n in (3, 9):
        torch.testing.assert_close(traced(torch.ones(4, 4), n), torch.ones(n, 2) + 16 * n)


def test_a_size_of_a_tensor_among_the_arguments_is_read_where_it_comes_first() -> None:
    (x,) = _fake((5, 6))
    after = make_fx(_filled)(x, x.shape[0])
    before = make_fx(lambda n, x: _filled(x, n))(x.shape[0], x)
    assert torch.ops.aten.sym_size.int in targets(after)
    assert torch.ops.aten.sym_size.int not in targets(before)
    torch.testing.assert_close(after(torch.ones(4, 4), 4), before(4, torch.ones(4, 4)))


def test_an_argument_that_is_computed_of_sizes_has_its_value_in_meta() -> None:
    (x,) = _fake((5, 6))
    twice: Any = 2 * x.shape[0]
    traced = make_fx(_filled)(x, twice)
    assert node(traced, "n_1").meta["val"] is twice
    torch.testing.assert_close(traced(torch.ones(4, 4), 8), torch.ones(8, 2) + 16 * 8)


def test_under_autocast_a_trace_casts_a_parameter_at_each_use() -> None:
    layer, x = nn.Linear(3, 3, bias=False), torch.ones(2, 3)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)  # autocast has a copy now
        traced = make_fx(lambda x: layer(x) + layer(2 * x))(x)
        assert targets(traced).count(torch.ops.aten._to_copy.default) == 4
    with torch.no_grad():
        layer.weight.fill_(1)
    torch.testing.assert_close(traced(x), torch.full((2, 3), 9.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_after_a_trace_autocast_stores_copies_as_before(cached: bool, fails: bool) -> None:
    seen: list[bool] = []

    def program(x: Tensor) -> Tensor:
        seen.append(torch.is_autocast_cache_enabled())
        if fails:
            raise KeyError
        return x * 2

    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached):
        if fails:
            with pytest.raises(KeyError):
                make_fx(program)(torch.ones(2))
        else:
            make_fx(program)(torch.ones(2))
        assert torch.is_autocast_cache_enabled() is cached
    assert seen == [False]


@pytest.mark.parametrize("size", [torch.sym_max, torch.sym_min])
def test_the_smaller_and_the_larger_of_two_sizes_are_sizes_in_a_backward_pass_too(
    size: Any,
) -> None:
    """The engine hides the calls of a rule from modes over torch's functions, and a proxy is one of
    those that would see them."""

    class Filled(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return g * x.new_ones(size(*x.shape)).sum()

    def f(x: Tensor) -> Any:
        filled: Any = Filled.apply(x)  # type: ignore[no-untyped-call]
        return filled.sum() + x.diagonal().sin().sum()

    gradient = jit(func.grad(f), dynamic=True)
    for shape in ((4, 3), (5, 3), (3, 7)):
        x = torch.rand(shape)
        diagonal = torch.zeros(shape).diagonal_scatter(x.diagonal().cos())
        torch.testing.assert_close(gradient(x), torch.full(shape, float(size(*shape))) + diagonal)


def test_a_size_that_depends_on_values_has_its_symbol_in_meta() -> None:
    def f(x: Tensor) -> Tensor:
        return x.new_zeros(x.nonzero().shape[0] + 1)

    size = node(make_fx(f, tracing_mode="symbolic")(torch.ones(4)), "sym_size_int").meta["val"]
    assert isinstance(size, torch.SymInt)


def test_modes_of_the_caller_see_no_reading_of_a_literal_in_a_trace_of_abstract_tensors() -> None:
    with CallsSeen() as seen:
        module = make_fx(lambda x: x * int(torch.tensor(3)), tracing_mode="fake")(torch.ones(2))
    assert (
        module(torch.ones(2)).tolist() == [3.0, 3.0]
        and "aten::_local_scalar_dense" not in seen.names
    )


def test_a_condition_that_does_not_hold_is_evaluated() -> None:
    def f(x: Tensor) -> Tensor:
        rows, columns = x.shape
        both_are_large: Any = (rows > 5) & (columns > 3)
        return x.new_ones(torch.sym_ite(torch.sym_not(both_are_large), columns, rows))

    traced = make_fx(f, tracing_mode="symbolic")(torch.ones(4, 2))
    shapes = [(4, 2), (6, 2), (3, 7), (9, 5)]
    assert [traced(torch.ones(shape)).shape[0] for shape in shapes] == [2, 2, 7, 9]
