"""Up to which sizes a rewrite is made: at the limit it is, one step beyond it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime import aot
from runtime.aot.compilers import pooling
from runtime.aot.compilers.peephole import rewritten
from runtime.huge_pages import LARGE

from .rewritten_graphs import names

aten: Any = torch.ops.aten
ROWS = 1 << 13
Program = Callable[..., Any]


def rewrites(f: Program, *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> fx.Graph:
    """What the rewrites make of ``f``, for which no memory is taken."""
    with FakeTensorMode():
        traced = aot.make_fx(f)(*(torch.empty(size, dtype=dtype) for size in sizes))
    return rewritten(traced.graph)[0]


def runs(f: Program, *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[str]:
    return names(rewrites(f, *sizes, dtype=dtype))


def sines(*each: Tensor) -> list[Tensor]:
    return [x.sin() for x in each]


def test_tensors_are_batched_up_to_2_to_the_14_elements() -> None:
    for dtype in (torch.float32, torch.float64):
        assert runs(sines, (1 << 14,), (1 << 14,), dtype=dtype)[0] == "_foreach_sin"
        assert runs(sines, (1 << 14 | 1,), (1 << 14 | 1,), dtype=dtype) == ["sin", "sin"]


def test_a_batch_takes_the_smallest_results_up_to_a_mebibyte() -> None:
    assert runs(sines, *[(1 << 14,)] * 16).count("sin") == 0
    assert runs(sines, *[(1 << 14,)] * 17).count("sin") == 1
    graph = rewrites(sines, *[(1 << 14,)] * 16, (5,), (3,))
    (alone,) = (n for n in graph.nodes if n.target is aten.sin.default)
    assert alone.meta["val"].shape == (1 << 14,)
    assert sum(len(n.args[0]) for n in graph.nodes if n.target is aten._foreach_sin.default) == 17


def test_a_value_of_up_to_2_to_the_14_elements_is_kept_for_a_later_call() -> None:
    def again(x: Tensor) -> Any:
        return x.exp().sum() + x.sin().sum() * x.exp().max()

    assert runs(again, (1 << 14,)).count("exp") == 1
    assert runs(again, (1 << 14 | 1,)).count("exp") == 2
    assert runs(again, (3, 1 << 12)).count("exp") == 1


def test_a_constant_of_up_to_2_to_the_12_elements_is_kept() -> None:
    def scaled(x: Tensor) -> Any:
        return x * torch.eye(x.shape[0])

    assert runs(scaled, (64, 64)) == ["mul"]
    assert runs(scaled, (65, 65)) == ["eye", "mul"]


@pytest.mark.parametrize("number, call", [(1 << 24, Tensor), (-(1 << 24), Tensor), (1 << 24 | 1, int), (0.5, Tensor), (True, bool)])
def test_integers_of_float32_become_tensors(number: Any, call: type) -> None:
    (n,) = (n for n in rewrites(lambda x: x + number, (3,)).nodes if n.op == "call_function")
    assert isinstance(n.args[1], call)


def test_a_mean_is_a_sum_as_long_as_its_length_is_a_number_of_float32() -> None:
    assert runs(torch.mean, (1 << 12, 1 << 12)) == ["sum", "div_"]
    assert runs(torch.mean, ((1 << 24) + 1,)) == ["mean"]
    assert runs(torch.mean, (1,)) == ["sum", "div_"] and runs(torch.mean, (0,)) == ["mean"]


def column_sums(*each: Tensor) -> list[Tensor]:
    return [(x * 2).sum(0) * 3 for x in each]


@pytest.mark.parametrize("number, stacks", [(3, 0), (4, 1)])
def test_four_sums_are_a_stack(number: int, stacks: int) -> None:
    assert runs(column_sums, *[(5, 7)] * number).count("stack") == stacks


@pytest.mark.parametrize(
    "size, number, stacks", [((64, 64), 4, 1), ((64, 65), 4, 0), ((64, 64), 5, 1), ((64, 64), 8, 2), ((16, 64), 16, 1), ((16, 64), 20, 2)]
)
def test_a_stack_has_up_to_64_kibibytes_and_four_matrices(size: tuple[int, int], number: int, stacks: int) -> None:
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
        pytest.param(lambda x: (x * 2).unsqueeze(0).expand(2, 5, 7).contiguous().sum(0) * 3, id="of three dimensions"),
        pytest.param(lambda x: (x * 2).half().sum(0) * 3, id="of half precision"),
        pytest.param(lambda x: (x * 2).sum(0).cumsum(0) * 3, id="that do not go into pointwise calls"),
    ],
)
def test_other_sums_are_no_stack(f: Program) -> None:
    assert "stack" not in runs(lambda *each: [f(x) for x in each], *[(5, 7)] * 5)


def halves(x: Tensor) -> Tensor:
    return torch.cat([x[:ROWS].sin(), x[ROWS:].cos()])


def test_pieces_of_64_kibibytes_on_average_are_put_in_their_places() -> None:
    assert "cat" not in runs(halves, (2 * ROWS, 2))
    assert "cat" in runs(halves, (2 * ROWS - 1, 2))
    assert "cat" in runs(lambda x: torch.cat([x.sin()]), (4 * ROWS, 2))


@pytest.mark.parametrize("between, fits", [(2, True), (3, False)])
def test_between_two_pieces_as_much_as_the_whole_may_be_computed(between: int, fits: bool) -> None:
    """Each of the values between is half of the whole."""

    def f(x: Tensor) -> Tensor:
        first, y = x.sin(), x
        for _ in range(between - 1):
            y = y.cumsum(0)
        return torch.cat([first, y.cos().view(-1).t().view(x.shape).cumsum(0)])

    assert ("cat" not in runs(f, (ROWS, 2))) == fits


def test_results_of_a_large_size_lie_in_large_pages() -> None:
    assert runs(torch.relu, (LARGE // 4,)) == ["empty_in_huge_pages", "relu"]
    assert runs(torch.relu, (LARGE // 4 - 1,)) == ["relu"]
    assert runs(torch.relu, (LARGE // 8,), dtype=torch.float64) == ["empty_in_huge_pages", "relu"]


@pytest.mark.parametrize(
    "shape, window, stride, pays",
    [
        ((1, 16, 32, 64), [2, 2], [2, 2], True),  # 2 ** 15 elements, each compared once
        ((1, 16, 31, 64), [2, 2], [2, 2], False),
        ((1, 16, 16, 32), [2, 2], [1, 1], True),  # four times
        ((1, 16, 16, 31), [2, 2], [1, 1], False),
        ((1, 16, 16, 32), [2], [1], True),
        ((1, 16, 32, 64), [2], [], True),
        ((1, 16, 31, 64), [2], [], False),
        ((1, 16, 8, 64), [2, 4], [1, 2], True),
        ((2, 15, 64, 64), [2, 2], [2, 2], False),
        ((2, 16, 2, 1024), [2, 2], [2, 2], True),
        ((2, 16, 1, 2048), [1, 2], [1, 2], False),
        ((2, 16, 2048, 1), [2, 1], [2, 1], False),
        ((64, 16, 64, 64), [2, 2], [2, 2], True),  # 2 ** 22 elements
        ((64, 16, 64, 65), [2, 2], [2, 2], False),
    ],
)
def test_images_are_transposed_where_that_saves_enough(shape: tuple[int, ...], window: list[int], stride: list[int], pays: bool) -> None:
    x = torch.empty(shape, device="meta")
    assert pooling.pays(x, window, stride) is pays
    assert not pooling.pays(x.contiguous(memory_format=torch.channels_last), window, stride)
