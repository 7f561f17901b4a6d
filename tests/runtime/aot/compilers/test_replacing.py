"""What is computed twice, copied or not used is not computed again, and results stay
tensors of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from runtime import aot, jit

from .rewritten_graphs import calls, runs

X, Y = torch.randn(4, 3), torch.randn(4, 3)


def test_what_is_computed_twice_is_computed_once() -> None:
    assert calls(lambda x, y: x.sin() * x.sin(), X, Y) == ["sin", "mul_"]
    assert calls(lambda x, y: (x * y).t() @ (x * y), X, Y) == ["mul", "t", "mm"]
    assert calls(lambda x: torch.var_mean(x)[0] * torch.var_mean(x)[1], X).count("var_mean") == 1


def test_two_results_of_the_same_elements_are_two_tensors() -> None:
    a, b = aot.aot_function(lambda x: (x.sin(), x.sin()), aot.nop)(X)
    assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    a, b = aot.aot_function(lambda x: (x.sin(), x.sin().t()), aot.nop)(X)
    assert torch.equal(a, b.t()) and a.data_ptr() != b.data_ptr()


def test_draws_are_not_one_draw() -> None:
    torch.manual_seed(0)
    a, b = aot.aot_function(
        lambda x: (torch.rand_like(x) * 1.5, torch.rand_like(x) * 1.5), aot.nop
    )(X)
    torch.manual_seed(0)
    assert torch.equal(a, torch.rand_like(X) * 1.5) and torch.equal(b, torch.rand_like(X) * 1.5)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2 + x * 2.0,
        lambda x: x * 0.0 + x * -0.0,
        lambda x: x.sum(0) * x.sum(0, keepdim=True)[0],
    ],
)
def test_other_arguments_make_another_call(f: Any) -> None:
    assert len(calls(f, X)) >= 3


def test_a_large_value_is_not_kept_for_a_later_call() -> None:
    """A checkpoint computes again what it does not save: that is not undone."""

    def f(x: torch.Tensor) -> Any:
        first = x.exp().sum()
        return first, x.exp().sum() * 2

    def g(x: torch.Tensor) -> Any:
        first = x.exp().sum() * x.sin().sum()
        return first * (x.exp() + x).sum()

    assert calls(g, X).count("exp") == 1 and calls(g, torch.randn(200, 200)).count("exp") == 2
    assert calls(f, X).count("exp") == 1


def test_copies_of_values_that_nobody_writes_to_are_not_made() -> None:
    assert calls(lambda x: (x * 2).clone() + 1, X) == ["mul", "add_"]
    assert calls(lambda x: x.clone() + 1, X) == ["add"]
    assert calls(lambda x: x.neg().neg() + 1, X) == ["add"]
    assert calls(lambda x: (x * 2).clone(), X) == ["mul"]


def test_a_copy_that_is_a_result_is_made() -> None:
    assert calls(lambda x: x.clone(), X) == ["clone"]
    assert calls(lambda x: ((u := x * 2), u.clone()), X) == ["mul", "clone"]
    assert calls(lambda x: x.clone().t(), X) == ["clone", "t"]
    assert calls(lambda x: x.t().contiguous() + 1, X) == ["t", "clone", "add_"]  # of another layout


def test_what_nothing_uses_is_not_computed() -> None:
    assert calls(lambda x: (x.exp(), x * 2)[1], X) == ["mul"]


def test_a_draw_that_nothing_uses_still_draws() -> None:
    torch.manual_seed(0)
    aot.aot_function(lambda x: (torch.rand_like(x), x * 2)[1], aot.nop)(X)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    torch.rand_like(X)
    assert torch.equal(drawn, torch.rand(3))


def test_a_copy_that_the_program_writes_to_is_not_what_it_was_copied_from() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.unfold(0, 2, 1).mul_(2)  # shows elements twice, so that the graph itself writes
        return y.sum()

    x = torch.ones(4, 3)
    assert torch.equal(aot.aot_function(f, aot.nop)(x), f(torch.ones(4, 3)))
    assert torch.equal(x, torch.ones(4, 3)) and x._version == 0


def test_a_write_that_the_graph_itself_makes_counts_as_in_eager_mode() -> None:
    def f(x: torch.Tensor) -> None:
        x.unfold(0, 2, 1).mul_(1.5)
        x.add_(1)

    found, expected = torch.ones(4, 3), torch.ones(4, 3)
    aot.aot_function(f, aot.nop)(found)
    f(expected)
    assert torch.equal(found, expected) and found._version == expected._version


def test_a_value_of_up_to_2_to_the_14_elements_is_kept_for_a_later_call() -> None:
    def again(x: Tensor) -> Any:
        return x.exp().sum() + x.sin().sum() * x.exp().max()

    assert runs(again, (1 << 14,)).count("exp") == 1
    assert runs(again, (1 << 14 | 1,)).count("exp") == 2
    assert runs(again, (3, 1 << 12)).count("exp") == 1


COPIES: dict[str, Any] = {
    "clone": lambda part: part.clone(),
    "to": lambda part: part.to(part.dtype, copy=True),
    "copy_": lambda part: torch.empty_like(part).copy_(part),
    "neg twice": lambda part: part.neg().neg(),
    "expand": lambda part: part.expand(4, 3).clone(),
    "flip twice": lambda part: part.t().clone().t(),
    "times one": lambda part: part * 1,
    "contiguous": lambda part: part.contiguous(),
}


@pytest.mark.parametrize("made", [False, True], ids=["of an argument", "of a value"])
@pytest.mark.parametrize("name", COPIES)
def test_a_view_of_a_copied_part_is_no_view_of_the_first_part(name: str, made: bool) -> None:
    """A copy begins its memory, and the part begins in the middle of that of the whole."""

    def program(x: Tensor) -> Tensor:
        x = x.sin() if made else x
        copied = COPIES[name](x[1])
        row: Tensor = copied[0] + x[0][0] * 2 + copied.reshape(12)[:3] * x[0].reshape(12)[:3]
        return row

    f = aot.aot_function(program, aot.nop)
    jitted = jit(program)
    for _ in range(3):
        x = torch.randn(2, 4, 3)
        whole = torch.randn(3, 2, 4, 3)
        for given in (x, whole[1]):  # which begins in the middle of its memory
            assert torch.equal(f(given), program(given)) and torch.equal(
                jitted(given), program(given)
            )


def test_a_write_to_a_part_with_gaps_is_no_copy_where_nobody_sees_the_gaps() -> None:
    def gates(x: Tensor, y: Tensor) -> Tensor:
        first, second = (x * 2).unsafe_split(3, 1)
        first.add_(y).sigmoid_()
        return second.mul_(first) @ y.t()

    x, y = torch.randn(4, 6), torch.randn(4, 3)
    assert "copy" not in calls(gates, x, y)
    assert_close(jit(gates)(x, y), gates(x, y))


@pytest.mark.parametrize(
    "seen",
    [
        lambda part: part,
        lambda part: part.stride(),
        lambda part: part.flatten(),
        lambda part: torch.rand_like(part),
    ],
    ids=["a result", "strides", "a view", "a draw"],
)
def test_the_gaps_of_a_part_are_there_where_somebody_sees_them(seen: Any) -> None:
    def program(x: Tensor) -> Any:
        part, _ = (x * 2).unsafe_split(3, 1)
        return seen(part.add_(1))

    x = torch.randn(4, 6)
    found = []
    for f in (program, jit(program)):
        torch.manual_seed(0)
        found.append(f(x))
    assert_close(found[0], found[1])
    if isinstance(found[0], Tensor):
        assert found[0].stride() == found[1].stride()
