"""How far iterators of Python's are, and how to put them back.

    mark = IteratorMark(iter([1, 2, 3]))
    next(mark.iterator)
    mark.rewind()                       # next(mark.iterator) is 1 again

Only what Python itself offers is used: ``__reduce__`` says where an iterator is, and
``__setstate__`` sets that. Iterators over lists, tuples and texts have both, while they are not at
their end, and so have ``zip``, ``map`` and ``filter`` of them. Generators, ``enumerate``, most of
``itertools`` and iterators over dictionaries and sets cannot be put back, nor one over a range from
Python 3.12 on."""

from __future__ import annotations

import itertools
import types
import warnings
from collections.abc import Iterator
from typing import Any

from .values import SIMPLE

_WITH_POSITION: tuple[type, ...] = tuple(
    map(type, (iter([]), iter(()), iter(""), iter("é"), iter(b""), iter(range(0)), reversed([])))
)
_OF_SOURCES: tuple[type, ...] = (zip, map, filter)


def position_of(x: Any) -> tuple[Any, ...]:
    """Return how far an iterator is, as far as it says. A generator is as far as it has run.

    Example: two calls for ``iter([1, 2])`` give the same, and another tuple after ``next``."""
    if isinstance(x, types.GeneratorType):
        return (x.gi_frame is None,)
    if isinstance(x, itertools.count):
        return (repr(x),)
    arguments, *state = _reduced(x)
    return (tuple(map(_mark_of, arguments)), tuple(map(_mark_of_state, state)))


def _reduced(x: Any) -> list[Any]:
    """Return the arguments that would make an equal iterator, and its state, if it has one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        reduced: tuple[Any, ...] = x.__reduce__()
    return list(reduced[1:])


def _mark_of(argument: Any) -> Any:
    """Return what an argument of an iterator says of its position. Some iterators give a new list
    of the items that are left, so that only its length counts."""
    if isinstance(argument, Iterator):
        return position_of(argument)
    if isinstance(argument, SIMPLE):
        return repr(argument)
    return len(argument) if type(argument) in (list, tuple) else id(argument)


def _mark_of_state(state: Any) -> Any:
    """Return what the state of an iterator says of its position: ``chain`` has the iterators in
    it."""
    if isinstance(state, tuple):
        return tuple(map(_mark_of_state, state))
    if isinstance(state, Iterator):
        return position_of(state)
    return state if isinstance(state, int) else id(state)  # no code of the user's is called


class IteratorMark:
    """How far ``iterator`` and those that it takes items from are."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._state: list[Any] = []
        self._sources: list[IteratorMark] = []
        if type(iterator) in _WITH_POSITION:
            # from Python 3.12 on, that over a range has none
            self._state = [state for state in _reduced(iterator)[1:] if state is not None]
        elif type(iterator) in _OF_SOURCES:
            sources = _reduced(iterator)[0]
            self._sources = [IteratorMark(x) for x in sources if isinstance(x, Iterator)]

    def rewind(self) -> None:
        """Put the iterators back, as far as Python lets them. :func:`position_of` says whether it
        did."""
        for source in self._sources:
            source.rewind()
        for state in self._state:
            self.iterator.__setstate__(state)
