"""Branches on numbers that depend on random draws. A trace draws other numbers than a call, so that
its own numbers may be on the other side."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout

from runtime import jit

X = torch.arange(3.0) + 1


def coin(t: Any, x: Tensor) -> Tensor:
    t.n += 1
    return x * t.n if torch.rand(1).item() > 0.5 else x


def coins(t: Any, x: Tensor) -> Tensor:
    for _ in range(4):
        if torch.rand(1).item() > 0.5:
            t.n += 1
            x = x + torch.rand(3)
        else:
            x = x * 2
    return x


def until_a_draw(t: Any, x: Tensor) -> Tensor:
    while torch.rand(1).item() < 0.7 and t.n < 1000:
        t.n += 1
        x = x + 1
    return x


def dropped(t: Any, x: Tensor) -> Tensor:
    y = dropout(x, 0.5)
    if y.sum().item() > 3:
        t.n, t.mean = t.n + 1, y.mean()
    return y + torch.rand(3)


def rare(t: Any, x: Tensor) -> Tensor:
    t.n += 1
    return -x if torch.rand(1).item() > 0.9 else x


@pytest.mark.parametrize("program", [coin, coins, dropped, rare])
def test_branches_on_draws_are_those_of_eager_mode(program: Callable[..., Tensor]) -> None:
    def calls(wrap: Callable[[Any], Any], seed: int) -> list[Any]:
        torch.manual_seed(seed)
        t = SimpleNamespace(n=0, mean=torch.zeros(()))
        f = wrap(lambda x: program(t, x))
        return [(f(X).tolist(), t.n, t.mean.item()) for _ in range(12)]

    for seed in range(6):  # each capture draws others, of which half are on the wrong side
        assert calls(jit, seed) == calls(lambda f: f, seed)


def test_a_loop_that_ends_by_a_draw_is_that_of_eager_mode() -> None:
    def calls(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(5)
        t = SimpleNamespace(n=0)
        f = wrap(lambda x: until_a_draw(t, x))
        return [(f(X).tolist(), t.n) for _ in range(3)]

    assert calls(jit) == calls(lambda f: f)


def test_what_python_makes_of_a_condition_is_refused_with_its_line() -> None:
    t = SimpleNamespace(n=0)

    @jit
    def f(x: Tensor) -> Tensor:
        t.n += x.sum().item() > 0
        return x

    with pytest.raises(RuntimeError, match=r"arithmetic on a condition[\s\S]*test_sides_of_draws"):
        f(X)
    assert t.n == 0


def test_a_counter_and_the_side_of_a_branch_need_a_program_for_each_side() -> None:
    t = SimpleNamespace(n=0, best=1e9)

    @jit
    def f(x: Tensor) -> Any:
        t.n += 1
        if x.sum().item() < t.best:
            t.best = x.sum().item()
            return x * t.n
        return -x * t.n

    for k in range(24):
        sign = 1 if k in (0, 7, 14, 21) else -1
        assert torch.equal(
            f(X * (7 - k) if sign == 1 else X * 7), X * (7 - k if sign == 1 else -7) * (k + 1)
        )
    assert t.n == 24 and t.best == X.sum().item() * (7 - 21)
