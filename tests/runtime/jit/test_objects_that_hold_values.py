"""An object that a program makes, and that holds a tensor or a number of the call, is that of each
call or refused."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from types import GenericAlias, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from runtime import jit


def _by_keyword(value: Any) -> Any:
    def function(*, found: Any = value) -> Any:
        return found

    return function


def _module(value: Any) -> Any:
    module = ModuleType("made")
    module.__dict__["found"] = value
    return module


MADE: dict[str, Callable[[Any], Any]] = {
    "keyword default": _by_keyword,
    "default": lambda value: lambda found=value: found,
    "closure": lambda value: lambda: value,
    "class": lambda value: type("Made", (), {"found": value}),
    "module": _module,
    "factory": lambda value: collections.defaultdict(lambda: value),
    "slice": slice,
    "itemgetter": operator.itemgetter,
    "alias": lambda value: GenericAlias(list, (value,)),
    "property": property,
    "static method": staticmethod,
    "bound method": lambda value: value.__add__,
}


@pytest.mark.parametrize("way", ["assigned", "returned"])
@pytest.mark.parametrize("name", MADE)
def test_an_object_with_a_tensor_inside_is_refused_with_the_line(name: str, way: str) -> None:
    state = SimpleNamespace(found=None)

    @jit
    def f(x: Any) -> Any:
        made = MADE[name](x * 2)
        if way == "assigned":
            state.found = made
            return x.sum()
        return x.sum(), made

    with pytest.raises(RuntimeError, match=r"test_objects_that_hold_values\.py:\d+"):
        f(torch.ones(1))
    assert state.found is None


def _number_in(made: Any) -> Any:
    if isinstance(made, slice):
        return made.stop
    if isinstance(made, collections.defaultdict):
        return made["found"]
    return made() if callable(made) and not isinstance(made, type) else made.found


@pytest.mark.parametrize("name", ["default", "keyword default", "class", "factory", "slice"])
def test_an_object_with_a_number_of_the_state_has_that_of_each_call(name: str) -> None:
    state = SimpleNamespace(steps=0, found=None)

    @jit
    def f(x: Any) -> Any:
        state.steps += 1
        state.found = MADE[name](state.steps)
        return x * 2

    for steps in range(1, 6):
        f(torch.ones(1))
        number = _number_in(state.found)
        assert number == steps and type(number) is int
