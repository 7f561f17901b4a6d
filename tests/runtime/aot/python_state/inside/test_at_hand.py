"""Which objects hold values, and which programs are asked first.

Inside: ``holds_values`` and ``Programs.recent``. The first decides what a custom function is
called with, the second which guard runs first; the result is the same in any order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.calls.compiled_function import function_of
from runtime.aot.calls.known_programs import Programs
from runtime.aot.python_state import closed_over

LAYER = nn.Linear(1, 1)


class Owner:
    pass


def closure_of(value: Any) -> Callable[[], Any]:
    return lambda: value


def test_values_are_found_in_objects_and_in_lists_of_them() -> None:
    found: list[bool] = []

    def f(x: Any) -> Any:
        things = (
            SimpleNamespace(a=x),
            SimpleNamespace(a=[{"b": (x,)}]),
            closure_of(x),
            [x],
            SimpleNamespace(a=1),
            LAYER,
            Owner,
            x,
        )
        found.extend(closed_over.holds_values(thing) for thing in things)
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))
    assert found == [True, True, True, True, False, False, False, False]


def test_a_few_of_the_last_programs_are_asked_first_by_their_guards() -> None:
    recipe = aot_function(lambda x: x * 2, nop).recipe  # type: ignore[attr-defined]
    programs = Programs(recipe)
    f = function_of(recipe, programs)
    for n in range(1, 7):
        f(torch.ones(n))
        f(torch.ones(n))  # found again, and only now a guard pays
        (recent,) = programs.recent.values()
        assert len(recent) == min(n, 4)
        assert [take([torch.ones(n)]) is not None for take, _ in recent] == [True] + [False] * (
            len(recent) - 1
        )
    f(torch.ones(6))
    f(torch.ones(1))
    (recent,) = programs.recent.values()
    assert [
        [n for n in range(1, 7) if take([torch.ones(n)]) is not None] for take, _ in recent
    ] == [[1], [6], [5], [4]]
