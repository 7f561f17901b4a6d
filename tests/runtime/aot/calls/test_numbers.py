"""Numbers among the arguments of a compiled function: one program for all values, where the program
does not depend on the value."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot import (
    aot_function,
    aot_module,
    default_partition,
    min_cut_rematerialization_partition,
    nop,
)

Program = Callable[..., Any]


def counted(f: Program, **options: Any) -> tuple[Program, list[fx.GraphModule]]:
    graphs: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return nop(module, examples)

    return aot_function(f, compiler, nop, **options), graphs


def same_as_eager(
    f: Program,
    numbers: list[Any],
    n_programs: int | None,
    x: torch.Tensor | None = None,
    **options: Any,
) -> None:
    compiled, graphs = counted(f, **options)
    start = torch.linspace(0.5, 2, 6, dtype=torch.float64).reshape(2, 3) if x is None else x
    for number in numbers:
        ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
        got, wanted = compiled(ours, number), f(theirs, number)
        assert type(got) is type(wanted) or isinstance(wanted, torch.Tensor)
        if not isinstance(wanted, torch.Tensor):
            assert got == wanted or (math.isnan(got) and math.isnan(wanted))
            continue
        torch.testing.assert_close(got.detach(), wanted.detach(), rtol=0, atol=0, equal_nan=True)
        if wanted.requires_grad:
            got.sum().backward()
            wanted.sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0, equal_nan=True)
    assert n_programs is None or len(graphs) == n_programs


def test_programs_for_any_integer_and_for_any_float_are_two() -> None:
    """Of integers: their product with a float is one of floats."""
    compiled, graphs = counted(lambda x, k: x * k)
    x = torch.arange(3)
    for number in (1.5, 2.5, 2, 3, 4.5, 5, 0.5, 7):
        found = compiled(x, number)
        assert found.dtype is (x * number).dtype and torch.equal(found, x * number)
    assert len(graphs) == 4


FLOATS = [0.1, 0.7, -2.5, 3.0, 0.0]
INTS = [2, 3, 5, 1, 0, -4]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, k: x * k,
        lambda x, k: k - x,
        lambda x, k: torch.add(x, x.sin(), alpha=k),
        lambda x, k: (x * k).sin() / 3,
        lambda x, k: x.clamp(min=k),
        lambda x, k: torch.nn.functional.leaky_relu(x - 1, 0.1) + k * 2,
        lambda x, k: torch.full_like(x, k) * x,
        lambda x, k: torch.where(x > k, x, k),
        lambda x, k: x.masked_fill(x > 1, k).exp(),
        lambda x, k: torch.lerp(x, x * x, k),
    ],
)
def test_one_program_takes_any_number(f: Program, partition: Any, dynamic: bool) -> None:
    same_as_eager(f, FLOATS, 2, dynamic=dynamic, partition_fn=partition)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, k: x * k,
        lambda x, k: x + k / 2,
        lambda x, k: x - k // 2,
        lambda x, k: x * (k * k - 1),
    ],
)
def test_one_program_takes_any_integer(f: Program) -> None:
    same_as_eager(f, INTS, 2)


def test_a_number_among_the_results_is_that_of_the_call() -> None:
    same_as_eager(lambda x, k: k * 2, INTS, 2)
    same_as_eager(lambda x, k: k / 4, FLOATS, 2)


def test_a_branch_makes_a_program_for_each_side() -> None:
    same_as_eager(lambda x, k: x * k if k > 0.5 else x / 2, [0.1, 0.2, 0.3, 0.7, 0.9, 0.4], 3)


@pytest.mark.parametrize(
    "f, numbers",
    [
        (lambda x, k: x.sum(k), [0, 1, -1]),
        (lambda x, k: x.repeat(k, 1), [1, 2, 3]),
        (lambda x, k: x.pow(k), [2.0, 0.5, 3.0, 1.0, 0.0]),
        (lambda x, k: x.pow(k), [2, 3, 1, 0]),
        (lambda x, k: x * math.copysign(1.0, k), [0.0, 1.0, -0.0, -2.0]),
        (lambda x, k: x * math.sin(k), [0.1, 0.2, 0.3]),
        (lambda x, k: x[:, :k], [1, 2, 3]),
        (lambda x, k: x * len(range(k)), [1, 2, 3]),
        (lambda x, k: x * float(f"{k}"), [1.5, 2.5, 3.5]),
        (lambda x, k: x + int(k), [1.5, 2.5, 1.9]),
    ],
)
def test_a_program_that_asks_for_the_value_is_right_for_each(
    f: Program, numbers: list[Any]
) -> None:
    same_as_eager(f, numbers, None)
    same_as_eager(f, numbers, None, dynamic=True)


def test_numbers_without_arithmetic_on_symbols_are_constants() -> None:
    same_as_eager(lambda x, k: x * k, [1.0, 2.0, math.inf, -math.inf, math.nan, 3.0], None)
    same_as_eager(lambda x, k: x * (k - k), [1.0, 2.0, math.inf, math.nan], None)
    same_as_eager(lambda x, k: x * (k > 0), [1, 2, 1 << 62, -(1 << 62)], None)


def test_kinds_of_numbers_stay_apart() -> None:
    same_as_eager(
        lambda x, k: x * x * k, [1, 2, 3, 1.0, 2.0, True, False, 4], None, torch.tensor([1.0, 2.0])
    )


def test_a_number_decides_the_dtype_as_in_eager() -> None:
    compiled, graphs = counted(lambda x, k: x + k)
    for k in (0.5, 1.5, 2.5):
        assert compiled(torch.tensor([1, 2]), k).dtype is torch.float32
        assert compiled(torch.ones(2, dtype=torch.float16), k).dtype is torch.float16
    assert len(graphs) == 4


def test_each_number_opens_on_its_own() -> None:
    compiled, graphs = counted(lambda x, dim, k: x.sum(dim) * k)
    x = torch.rand(2, 3)
    for k in (0.5, 1.5, 2.5, 3.5):
        for dim in (0, 1):
            assert torch.equal(compiled(x, dim, k), x.sum(dim) * k)
    # for each dim one of a value and one of any, and the one that asked for the value of dim
    assert len(graphs) <= 5


def shifted(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    return x * options["scale"] + options["shift"][0]  # type: ignore[no-any-return]


def test_numbers_in_containers_and_keywords() -> None:
    compiled, graphs = counted(shifted)
    x = torch.rand(3)
    for k in range(10):
        options: dict[str, Any] = {"scale": 0.5 * k, "shift": [k]}
        assert torch.equal(compiled(x, options), x * options["scale"] + k)
    assert len(graphs) == 2


@pytest.mark.parametrize(
    "f",
    [
        lambda x, k: x * (2 if k % 1.5 > 0.5 else 3),
        lambda x, k: x * (2 if k // 0.25 > 3 else 3),
        lambda x, k: x + min(k, 0.5) * max(k, 1),
    ],
)
def test_a_condition_on_a_real_number_is_asked_of_each(f: Program) -> None:
    same_as_eager(f, [0.1, 0.7, 1.4, 1.6, 3.5, -0.7], None)


def test_many_branches_make_a_program_for_each_value() -> None:
    same_as_eager(lambda x, k: x * int(k), [float(i) for i in range(40)], 40)


def test_a_write_by_a_number_reaches_the_argument() -> None:
    compiled, graphs = counted(lambda x, k: x.mul_(k))
    x, y = torch.ones(3), torch.ones(3)
    for k in (0.5, 3.0, -1.0, 2.0):
        assert compiled(x, k) is x
        assert torch.equal(x, y.mul_(k))
    assert len(graphs) == 2


def test_one_program_takes_any_number_and_any_size() -> None:
    compiled, graphs = counted(lambda x, k: x * k, dynamic=True)
    for k, n in ((0.5, 2), (1.5, 3), (2.5, 4), (3.5, 5)):
        assert compiled(torch.ones(n), k).tolist() == [k] * n
    assert len(graphs) == 2


def test_second_derivatives_take_any_number() -> None:
    compiled, _ = counted(lambda x, k: (x * k).sin())
    for k in (0.5, 1.5, 2.5):
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad((x * k).sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(g.sum(), x)
        y = torch.ones(2, dtype=torch.float64, requires_grad=True)
        compiled(y, k).sum().backward()
        torch.testing.assert_close(y.grad, g.detach())
        torch.testing.assert_close(second, -(k**2) * torch.sin(x.detach() * k))


def test_a_module_with_a_schedule_is_compiled_twice() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            y: torch.Tensor = self.linear(x) * scale
            return y

    graphs = []
    module = Scaled()
    compiled = aot_module(module, lambda g, i: graphs.append(g) or nop(g, i), nop)  # type: ignore[func-returns-value]
    for step in range(50):
        x = torch.rand(2, 3)
        torch.testing.assert_close(compiled(x, step / 50), module(x, step / 50))
    assert len(graphs) == 2
