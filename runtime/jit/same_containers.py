"""Containers of which a call makes no copy.

    self.outputs = found = [x * 2]
    return found                        # the list that self.outputs is
    return self.history                 # the caller's own list

A graph returns tensors, and a call makes the containers around them anew. So a container that is at
two places of the results, or that was there before the call, has a marker in its stead, and the
call puts the container there."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from ..aot.capture import opened
from ..aot.python_state.nodes import Place

_MUTABLE = frozenset((list, dict, OrderedDict, defaultdict, deque))


class _Known:
    """Stands for a container or object that was there before the program."""

    def __init__(self, container: Any) -> None:
        self.container = container


class _Argument:
    """Stands for the container that a call finds at a place, whose values are arguments of the
    graph."""

    def __init__(self, place: Place) -> None:
        self.place = place


class _Repeat:
    """Stands for a container that the results have before, by its number among them."""

    def __init__(self, number: int) -> None:
        self.number = number


MARKS = (_Known, _Argument, _Repeat)


class Entered:
    """The ``values`` that a run of a program finds at places, and which containers are among
    them."""

    def __init__(self, places: Sequence[Place], values: Sequence[Any]) -> None:
        self.values = values
        found = [(p, x) for p, x in zip(places, values, strict=True) if type(x) in _MUTABLE]
        self._found = {id(x): (place, x, *opened.flatten(x)) for place, x in found}

    def place_of(self, x: Any) -> Place | None:
        """Where the container ``x`` is from, if the program has not changed it."""
        if id(x) not in self._found:
            return None
        place, _, before, spec = self._found[id(x)]
        now, spec_now = opened.flatten(x)
        same = spec == spec_now and all(a is b for a, b in zip(now, before, strict=True))
        return place if same else None


class _Marks:
    """``knows``: whether an object was there before the program."""

    def __init__(self, knows: Callable[[Any], bool], entered: Entered) -> None:
        self._knows = knows
        self._entered = entered
        self._numbers: dict[int, int] = {}  # of containers that are made, by identity
        self.found = False

    def ends_at(self, x: Any) -> bool:
        """Whether ``x`` is not to be taken apart. Asked once of each part, from the outside in."""
        if type(x) not in _MUTABLE:
            return not isinstance(x, tuple)
        if id(x) in self._numbers or self._knows(x) or self._entered.place_of(x) is not None:
            return True
        self._numbers[id(x)] = len(self._numbers)
        return False

    def mark_of(self, x: Any) -> Any:
        mark = self._mark_of(x)
        self.found |= mark is not x
        return mark

    def _mark_of(self, x: Any) -> Any:
        is_object = dataclasses.is_dataclass(x) and not isinstance(x, type)
        if type(x) not in _MUTABLE and not is_object:
            return x
        if id(x) in self._numbers:
            return _Repeat(self._numbers[id(x)])
        if self._knows(x):
            return _Known(x)
        place = self._entered.place_of(x)
        return x if place is None else _Argument(place)


def mark(results: Any, knows: Callable[[Any], bool], entered: Entered) -> tuple[Any, bool]:
    """Put markers into a tree of results.

    Args:
        results: tuples, lists and dictionaries of tensors and constants.
        knows: whether an object was there before the program.
        entered: the containers that the program has found as arguments.

    Returns:
        The results with markers, and whether there are any.
    """
    marks = _Marks(knows, entered)
    marked = pytree.tree_map(marks.mark_of, results, is_leaf=marks.ends_at)
    return marked, marks.found


def without_marks(results: Any) -> Any:
    """Put the containers where their markers are, before the call has assigned anything."""
    made: list[Any] = []

    def ends_at(x: Any) -> bool:
        if type(x) in _MUTABLE:
            made.append(x)
        return type(x) not in _MUTABLE and not isinstance(x, tuple)

    pytree.tree_flatten(results, is_leaf=ends_at)
    for container in made:
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for label, x in list(items):
            container[label] = _unmarked(x, made)
    return _unmarked(results, made)


def _unmarked(x: Any, made: Sequence[Any]) -> Any:
    if isinstance(x, _Known):
        return x.container
    if isinstance(x, _Argument):
        return x.place.current()
    if isinstance(x, _Repeat):
        return made[x.number]
    if not isinstance(x, tuple):
        return x
    parts = [_unmarked(y, made) for y in x]
    if all(a is b for a, b in zip(parts, x, strict=True)):
        return x
    return tuple(parts) if type(x) is tuple else type(x)(*parts)
