"""Numbers in Python's state that change from call to call.

    def step(self, x):
        self.steps += 1             # another number in each call
        return x * self.rate        # which a schedule outside changes

The first program keeps such a number. It becomes an argument and a result of the next ones, so that
they serve any value. A number that the program changes itself does so when it is met again, one
that is changed outside when it has changed twice. Where the program asks for the type of an object,
or fails on an argument, numbers stay constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..aot.python_state.nodes import OneByOne, Place
from ..aot.python_state.program_state import ProgramState

_OFTEN = 2  # changes from outside after which a number is an argument
_NUMBERS = (int, float)


class StateNumbers:
    """Which numbers of Python's state the programs of one function take as arguments."""

    def __init__(self) -> None:
        self._last: ProgramState | None = None
        self._changed: Counter[tuple[int, Any]] = Counter()
        self._lifted: set[tuple[int, Any]] = set()
        self._constant: set[tuple[int, Any]] = set()

    def begin(self, state: ProgramState) -> None:
        """A capture begins, of a program that finds ``state``."""
        self._last = state

    def found(self, known: Sequence[Place], state: ProgramState) -> list[Place]:
        """Further numbers that are others than the last capture found, and are to be arguments of
        the program that finds ``state``."""
        if self._last is None or self._last.graph.asks_types or state.graph.asks_types:
            return []
        taken = {place.key for place in known} | self._constant
        found = []
        for node, label, was, now in self._last.moved():
            if not isinstance(node, OneByOne) or not _is_number(was, now):
                continue
            place = Place(node, label)
            if place.key not in taken and self._is_often(place):
                found.append(place)
        self._lifted |= {place.key for place in found}
        return found

    def keep(self, places: Sequence[Place]) -> list[Place]:
        """``places`` without numbers, which are constants from now on."""
        self._constant |= self._lifted
        return [place for place in places if place.key not in self._lifted]

    def _is_often(self, place: Place) -> bool:
        assert self._last is not None
        self._changed[place.key] += _OFTEN if place.key in self._last.written else 1
        return self._changed[place.key] >= _OFTEN


def _is_number(was: Any, now: Any) -> bool:
    return type(was) is type(now) and type(was) in _NUMBERS
