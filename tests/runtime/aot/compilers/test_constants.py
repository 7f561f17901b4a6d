"""Constants are computed once; arithmetic with ones and zeros is left out only where
it changes no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import runtime
from runtime import aot
from runtime.func import grad, jacrev

from .random_graphs import inputs
from .rewritten_graphs import calls, rewrites, runs

X = inputs(0)[0]


def test_what_is_computed_for_its_size_alone_is_not_computed() -> None:
    # a result is no argument
    assert calls(lambda x: x * torch.ones_like(x.exp().sum(0)), X) == ["mul"]
    assert calls(grad(lambda x: x.sin().sum()), X) == ["cos"]


def test_an_identity_is_made_once() -> None:
    assert set(calls(jacrev(lambda x: x.sin()), torch.randn(5))) <= {"cos", "mul", "view"}


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 1,
        lambda x: x * 1.0,
        lambda x: x / 1,
        lambda x: x - 0.0,
        lambda x: x - 0,
        lambda x: x + -0.0,
    ],
)
def test_arithmetic_that_changes_no_bit_is_left_out(f: Any) -> None:
    assert calls(lambda x: f(x).neg(), X) == ["neg"] == calls(lambda x: f(x).neg(), X.double())


@pytest.mark.parametrize(
    "f", [lambda x: x + 0, lambda x: x + 0.0, lambda x: x - -0.0, lambda x: x * 0, lambda x: x * -1]
)
def test_arithmetic_that_changes_a_bit_is_kept(f: Any) -> None:
    assert len(calls(lambda x: f(x).neg(), X)) == 2


def test_a_product_with_one_of_another_size_or_dtype_is_kept() -> None:
    assert len(calls(lambda x: (x[0] * torch.ones(4, 3)).neg(), X)) == 3
    assert len(calls(lambda x: (x * torch.ones(1, dtype=torch.float64)).neg(), X.half())) == 2
    assert calls(lambda x: (x * 1).neg(), torch.arange(3)) == ["mul", "neg_"]


def test_a_tensor_of_one_number_is_a_number() -> None:
    assert calls(lambda x: x * torch.full_like(x, 3.0), X) == ["mul"]
    assert calls(lambda x: x + torch.zeros_like(x), X) == ["add"]


def test_a_constant_that_is_a_result_is_new_in_every_call() -> None:
    compiled = aot.aot_function(lambda x: (torch.ones_like(x), torch.zeros(3).view(1, 3)), aot.nop)
    first, second = compiled(X), compiled(X)
    first[0].zero_()
    first[1].fill_(7)
    assert torch.equal(second[0], torch.ones(4, 3)) and torch.equal(
        compiled(X)[1], torch.zeros(1, 3)
    )


def test_a_constant_that_the_program_writes_to_is_new_in_every_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(3)
        total += x[0]
        return total

    compiled = aot.aot_function(f, aot.nop)
    assert all(torch.equal(compiled(torch.ones(2, 3)), torch.ones(3)) for _ in range(3))


def test_large_constants_are_not_kept() -> None:
    assert "ones_like" in calls(lambda x: x @ torch.ones_like(x), torch.randn(100, 100))


def test_a_constant_of_up_to_2_to_the_12_elements_is_kept() -> None:
    def scaled(x: torch.Tensor) -> Any:
        return x * torch.eye(x.shape[0])

    assert runs(scaled, (64, 64)) == ["mul"]
    assert runs(scaled, (65, 65)) == ["eye", "mul"]


KEPT = (["mul", "neg_"], ["add", "neg_"], ["sub", "neg_"])


def zeros_of_both_signs() -> torch.Tensor:
    return (torch.eye(3) - 1) * 0.0


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x: x * torch.ones(4, 3), id="times ones"),
        pytest.param(lambda x: x / torch.ones(4, 3), id="by ones"),
        pytest.param(lambda x: x + torch.full((4, 3), -0.0), id="plus negative zeros"),
        pytest.param(lambda x: x - torch.zeros(4, 3), id="minus zeros"),
    ],
)
def test_arithmetic_with_a_tensor_of_a_number_that_changes_no_bit_is_left_out(f: Any) -> None:
    assert calls(lambda x: f(x).neg(), X) == ["neg"]


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x: x * torch.eye(3), id="ones and zeros"),
        pytest.param(lambda x: x * (torch.eye(3) * 2 - 1), id="ones of both signs"),
        pytest.param(lambda x: x + zeros_of_both_signs(), id="plus zeros of both signs"),
        pytest.param(lambda x: x - zeros_of_both_signs(), id="minus zeros of both signs"),
        pytest.param(lambda x: x * torch.full((3, 3), torch.nan), id="no number"),
        pytest.param(lambda x: x * torch.ones(3, 3, dtype=torch.int64), id="integers"),
        pytest.param(lambda x: x * torch.ones(3, 3, dtype=torch.float16), id="of half precision"),
        pytest.param(lambda x: x * True, id="a truth value"),
    ],
)
def test_arithmetic_with_a_tensor_that_changes_a_bit_is_kept(f: Any) -> None:
    """As is arithmetic with what is not float32 or float64, of which nothing is claimed."""
    assert calls(lambda x: f(x).neg(), X[:3].clone())[-2:] in KEPT


def test_a_product_of_no_elements_is_kept() -> None:
    assert calls(lambda x: (x[:0] * torch.ones(0, 3)).neg(), X)[-2:] == ["mul", "neg_"]


def test_a_constant_takes_the_place_of_an_argument_by_position_and_by_name() -> None:
    square, order = X[:3].clone(), torch.tensor([[0, 1, 2], [2, 1, 0], [0, 0, 0]])
    for f in (
        lambda x: torch.sub(x, torch.eye(3)),
        lambda x: torch.sub(torch.eye(3), x),
        lambda x: torch.cat([x, torch.eye(3)]),
        lambda x: torch.searchsorted(order, x, sorter=torch.zeros(3, 3, dtype=torch.int64)),
    ):
        assert len(calls(f, square)) == 1


def test_a_product_with_ones_of_a_narrower_dtype_is_left_out() -> None:
    assert calls(lambda x: (x * torch.ones(4, 3)).neg(), X.double()) == ["neg"]
    assert calls(lambda x: x * torch.full((4, 3), 0.1), X.double()) == ["mul"]


def test_a_constant_of_a_double_is_computed_once_too() -> None:
    assert calls(lambda x: x * torch.ones_like(x.exp().sum(0)), X.double()) == ["mul"]


def test_a_number_that_is_given_is_no_constant() -> None:
    compiled = aot.aot_function(lambda x, n: x * torch.full_like(x, n), aot.nop)
    for number in (2.5, 3.5, 4.5):
        assert torch.equal(compiled(torch.ones(4), number), torch.full((4,), number))


def test_of_an_argument_of_any_size_no_constant_is_made() -> None:
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return aot.nop(module, inputs)

    compiled = aot.aot_function(lambda x: x * torch.ones_like(x).neg(), keep, dynamic=True)
    for size in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), -1.0))
    assert len(graphs) == 1


class TakesTenths(runtime.autograd.Function):
    """Its backward makes a constant of the default dtype, on the default device."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * torch.full((50,), 0.1).neg()


GIVEN = torch.arange(50.0)


def test_constants_lie_on_the_processor_whatever_the_default_device_is() -> None:
    x = runtime.wrap(GIVEN, requires_grad=True)
    y = aot.aot_function(lambda x: TakesTenths.apply(x), aot.nop)(x)
    with torch.device("meta"):  # where the graph of the backward gets its code
        y.backward(GIVEN)
    assert x.grad.device.type == "cpu" and torch.equal(runtime.unwrap(x.grad), GIVEN * -0.1)


def test_a_constant_has_the_default_dtype_of_the_capture() -> None:
    x: Any = runtime.wrap(GIVEN, requires_grad=True)
    y = aot.aot_function(lambda x: TakesTenths.apply(x), aot.nop)(x)
    torch.set_default_dtype(torch.float64)
    try:
        y.backward(GIVEN, retain_graph=True)
    finally:
        torch.set_default_dtype(torch.float32)
    x.grad = None
    y.backward(GIVEN)
    gradient: Any = x.grad
    assert torch.equal(runtime.unwrap(gradient), GIVEN * torch.full((50,), -0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_of_one_number_is_kept_without_dimensions(dtype: torch.dtype) -> None:
    found = rewrites(lambda x: x * torch.full((4, 3), 0.1, dtype=dtype), (4, 3), dtype=dtype)
    ((_, number),) = found.arguments
    assert number.shape == () and number.dtype is dtype and number.device.type == "cpu"
    assert number.equal(torch.tensor(0.1, dtype=dtype))
