"""Sums of small matrices over their rows are one sum of their stack, of the same bits."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.aot import aot_function, make_fx, nop
from runtime.func import grad

from .executed import Calls
from .random_graphs import bits
from .rewritten_graphs import calls, runs

_BYTES = 1 << 16  # of a stack
_SIZES = [
    (m, n)
    for m in (1, 2, 4, 5, 15, 16, 17, 64, 65, 200)
    for n in (1, 3, 8, 16, 31, 64, 100, 513)
    if m * n * 8 * 4 <= _BYTES
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), _SIZES)
def test_the_sum_of_a_stack_has_the_bits_of_the_single_sums(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    """On this torch, for as many matrices as a stack may have."""
    generator = torch.Generator().manual_seed(rows * columns)
    number = min(50, _BYTES // (rows * columns * dtype.itemsize))
    each = [torch.randn(rows, columns, dtype=dtype, generator=generator) for _ in range(number)]
    each[0][0, 0], each[1][-1, -1], each[2][0, -1] = float("inf"), float("nan"), -0.0
    assert torch.equal(bits(torch.stack(each).sum(1)), bits(torch.stack([t.sum(0) for t in each])))


def _chain(length: int) -> Callable[..., Tensor]:
    def f(x: Tensor, scale: Tensor) -> Tensor:
        for _ in range(length):
            x = (x * scale).sin()
        return x.sum()

    gradient: Callable[..., Tensor] = grad(f, argnums=1)
    return gradient


def test_a_vector_that_is_used_many_times_has_one_sum() -> None:
    names = calls(_chain(12), torch.randn(5, 7), torch.rand(7))
    assert names.count("stack") == names.count("unbind") == 1
    assert names.count("sum") == 1


def test_a_stack_has_few_bytes() -> None:
    names = calls(_chain(40), torch.randn(16, 64), torch.rand(64))
    assert names.count("stack") == 3


def test_few_sums_and_sums_of_large_matrices_stay() -> None:
    assert "stack" not in calls(_chain(3), torch.randn(5, 7), torch.rand(7))
    assert "stack" not in calls(_chain(12), torch.randn(100, 100), torch.rand(100))


def test_sums_that_are_returned_or_viewed_stay() -> None:
    given = [torch.randn(5, 7) for _ in range(6)]
    assert "stack" not in calls(lambda *each: tuple((t * 2).sum(0) for t in each), *given)
    assert "stack" not in calls(lambda *each: tuple((t * 2).sum(0)[1:] for t in each), *given)
    assert "stack" in calls(lambda *each: tuple((t * 2).sum(0) * 2 for t in each), *given)


def test_sums_that_need_one_another_are_not_taken_together() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(10):
            x = x * x.sin().sum(0).cos()
        return x

    assert "stack" not in calls(f, torch.randn(5, 7))


def test_sums_that_need_one_another_by_the_order_of_draws_are_not_taken_together() -> None:
    """No result of the first draw reaches the second one. It comes after it all the same."""

    def f(*each: Tensor) -> tuple[Tensor, ...]:
        found = []
        for t in each:
            draws = torch.bernoulli((t * 2).sum(0).sigmoid())
            found.append((torch.rand_like(t).sum(0) * 2, draws))
        return tuple(t for pair in found for t in pair)

    given = [torch.randn(5, 7) for _ in range(6)]
    torch.manual_seed(0)
    expected = f(*given)
    torch.manual_seed(0)
    assert all(
        torch.equal(a, b) for a, b in zip(aot_function(f, nop)(*given), expected, strict=True)
    )


def test_sums_of_two_kinds_that_need_one_another_are_two_stacks() -> None:
    def f(*each: Tensor) -> tuple[Tensor, ...]:
        wide = [t.sin().sum(0).cos() for t in each]
        tall = [(t.mT * 2).contiguous().sin() for t in each]
        narrow = [(t * s.sum()).sum(0) + 1 for t, s in zip(tall, wide, strict=True)]
        return tuple(w * n.sum() for w, n in zip(wide, narrow, strict=True))

    assert calls(f, *[torch.randn(5, 7) for _ in range(6)]).count("stack") == 2


def column_sums(*each: Tensor) -> list[Tensor]:
    return [(x * 2).sum(0) * 3 for x in each]


@pytest.mark.parametrize("number, stacks", [(3, 0), (4, 1)])
def test_four_sums_are_a_stack(number: int, stacks: int) -> None:
    assert runs(column_sums, *[(5, 7)] * number).count("stack") == stacks


@pytest.mark.parametrize(
    "size, number, stacks",
    [
        ((64, 64), 4, 1),
        ((64, 65), 4, 0),
        ((64, 64), 5, 1),
        ((64, 64), 8, 2),
        ((16, 64), 16, 1),
        ((16, 64), 20, 2),
    ],
)
def test_a_stack_has_up_to_64_kibibytes_and_four_matrices(
    size: tuple[int, int], number: int, stacks: int
) -> None:
    assert runs(column_sums, *[size] * number).count("stack") == stacks


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x: (x * 2).sum(1) * 3, id="of columns"),
        pytest.param(lambda x: (x * 2).sum((0, 1)) * 3, id="of all"),
        pytest.param(lambda x: (x * 2).sum(0, True) * 3, id="that keep the dimension"),
        pytest.param(lambda x: (x * 2).sum(0, dtype=torch.float64) * 3, id="in another dtype"),
        pytest.param(lambda x: ((y := x * 2).sum(0) * 3, y), id="of what something else uses"),
        pytest.param(lambda x: (x * 2).t().sum(0) * 3, id="of matrices that are not contiguous"),
        pytest.param(
            lambda x: (x * 2).unsqueeze(0).expand(2, 5, 7).contiguous().sum(0) * 3,
            id="of three dimensions",
        ),
        pytest.param(lambda x: (x * 2).half().sum(0) * 3, id="of half precision"),
        pytest.param(
            lambda x: (x * 2).sum(0).cumsum(0) * 3, id="that do not go into pointwise calls"
        ),
    ],
)
def test_other_sums_are_no_stack(f: Callable[..., Any]) -> None:
    assert "stack" not in runs(lambda *each: [f(x) for x in each], *[(5, 7)] * 5)


@pytest.mark.parametrize("size", [(5, 0), (0, 7)])
def test_sums_of_matrices_without_elements_are_a_stack(size: tuple[int, int]) -> None:
    assert (
        calls(lambda *each: [(x * 2).sum(0) * 3 for x in each], *[torch.ones(size)] * 5).count(
            "stack"
        )
        == 1
    )


def test_a_stack_is_made_without_a_call_of_an_op() -> None:
    """The second call generates the code, and lifts the numbers that are constants of it."""
    matrices = [torch.ones(5, 7)] * 4
    run = nop(make_fx(column_sums)(*matrices), [])
    run(list(matrices))
    with Calls() as second:
        run(list(matrices))
    with Calls() as third:
        run(list(matrices))
    assert torch.ops.aten.stack.default in third.ops
    lifted = torch.ops.aten.lift_fresh.default
    assert [op for op in second.ops if op is not lifted] == third.ops


def test_an_error_of_a_stack_has_the_line_of_its_sums() -> None:
    matrices = [torch.ones(5, 7)] * 4
    run = nop(make_fx(column_sums)(*matrices), [])
    for _ in range(2):
        run(list(matrices))
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        run([torch.ones(4, 7), *matrices[1:]])
    last = traceback.format_tb(caught.tb)[-1]
    assert "stack" in last and "return [(x * 2).sum(0) * 3 for x in each]" in last
