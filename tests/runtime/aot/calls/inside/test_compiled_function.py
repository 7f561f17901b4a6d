"""How a program is found among the last ones, and what says how programs are made.

Inside: ``runtime.aot.calls.known_programs`` and ``recipe``. A program that is found by a look-up
gives the same results, only later, and users get no recipe to change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from runtime.aot import aot_function, nop
from runtime.aot.calls.compiled_function import function_of
from runtime.aot.calls.known_programs import Programs
from runtime.aot.calls.numbers import Pinned
from runtime.aot.calls.recipe import Beside


def test_a_pinned_number_is_told_by_position() -> None:
    assert Pinned([1, 3]).positions == [1, 3]


def test_the_last_four_programs_are_found_without_a_look_up() -> None:
    looked_up: list[int] = []

    class Counted(Programs):
        def find(self, around: Any, spec: Any, given: Any, entered: Any) -> Any:
            looked_up.append(given[0].numel())
            return super().find(around, spec, given, entered)

    recipe = aot_function(lambda x: x * 2, nop).recipe  # type: ignore[attr-defined]
    f = function_of(recipe, Counted(recipe))
    for n in (1, 2, 3, 4, 5):
        f(torch.ones(n))
        f(torch.ones(n))  # looked up once more: only a program that is found again gets a guard
    assert looked_up == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    looked_up.clear()
    for n in (2, 3, 4, 5, 2):
        f(torch.ones(n))
    assert looked_up == []
    f(torch.ones(1))
    f(torch.ones(5))
    assert looked_up == [1]
    f(torch.ones(2))
    assert looked_up == [1, 2], "the one that was found by a look-up first went"


def test_records_of_how_programs_are_made_are_not_changed() -> None:
    recipe = aot_function(lambda x: x, nop).recipe  # type: ignore[attr-defined]
    for record, name in ((recipe, "fn"), (Beside(), "reads")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)
    assert (Beside().reads, Beside().begin, Beside().carried) == ((), None, frozenset())
