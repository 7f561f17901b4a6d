"""How far iterators of Python's are, and how to put them back.

    mark = IteratorMark(iter([1, 2, 3]))
    next(mark.iterator)
    mark.rewind()                       # next(mark.iterator) is 1 again

Only what Python itself offers is used: ``__reduce__`` says where an iterator is, and
``__setstate__`` sets that. Iterators over lists, tuples and texts have both, while they are not at
their end, and so have ``zip``, ``map`` and ``filter`` of them. Generators, ``enumerate``, most of
``itertools`` and iterators over dictionaries and sets cannot be put back, nor one over a range from
Python 3.12 on. Some do not even say how far they are: ``iter(callable, sentinel)``, ``pairwise``,
those of ``csv`` and of NumPy."""

from __future__ import annotations

import itertools
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .values import SIMPLE

# texts of ASCII alone have an iterator of another class than texts with an accent
_WITH_POSITION: tuple[type, ...] = tuple(
    map(type, (iter([]), iter(()), iter(""), iter("é"), iter(b""), iter(range(0)), reversed([])))
)
_OF_SOURCES: tuple[type, ...] = (zip, map, filter)
_OF_CALLS = type(iter(int, 1))  # of ``iter(callable, sentinel)``
# what the iterators of one `tee` have in common: the items that one of them has not given yet
_SHARED_ITEMS: Any = vars(itertools)["_tee_dataobject"]
_MANY_ITEMS = 10_000  # items of sources up to which a call compares them


def iterating_class(kind: type) -> type | None:
    """Return the class of C that has the ``__next__`` of objects of ``kind``. None if none has.

    Example: ``itertools.count`` for a class of the user's that inherits from it."""
    for cls in kind.__mro__:
        if type(vars(cls).get("__next__")) is types.WrapperDescriptorType:
            return cls
    return None


def position_of(x: object) -> tuple[Any, ...]:
    """Return how far an iterator is. A generator is as far as it has run.

    Example: two calls for ``iter([1, 2])`` give the same, and another tuple after ``next``.
    ``TypeError`` for one that does not say it."""
    if isinstance(x, types.GeneratorType):
        return (x.gi_frame is None,)
    if isinstance(x, itertools.count):
        return (itertools.count.__repr__(x),)
    arguments, *state = _reduced(x)
    return (tuple(map(_mark_of, arguments)), tuple(map(_mark_of_state, state)))


def sources_of(x: object) -> list[Any]:
    """Return what an iterator takes items from. Nothing of a generator, whose frame has that, and
    of one with too many items to compare."""
    if isinstance(x, types.GeneratorType):
        return []
    held: list[Any] = []
    pending = _reduced(x)
    while pending:
        part = pending.pop()
        if type(part) is tuple:
            pending += part
        elif type(part) is _SHARED_ITEMS:
            pending += _without_warning(part.__reduce__)[1]
        elif type(part) not in SIMPLE:
            held.append(part)
    return [] if sum(map(_count_items, held)) > _MANY_ITEMS else held


def _count_items(x: Any) -> int:
    return len(x) if type(x) in (list, tuple, dict, set, frozenset, deque) else 0


def _reduced(x: object) -> list[Any]:
    """Return the arguments that would make an equal iterator, and its state, if it has one. None
    for an iterator over a dictionary or set that has grown, which gives no further item."""
    kind: Any = iterating_class(type(x))
    if kind is _OF_CALLS or kind.__reduce__ is object.__reduce__:
        raise TypeError(f"a {kind.__name__} does not say how far it is")
    try:
        return list(_without_warning(kind.__reduce__, x)[1:])
    except RuntimeError:
        return [()]


def _without_warning(reduce: Callable[..., tuple[Any, ...]], *args: object) -> tuple[Any, ...]:
    """Return ``reduce(*args)``. Python 3.14 has no pickles of what :mod:`itertools` makes, and 3.12
    says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return reduce(*args)


def _mark_of(argument: Any) -> Any:
    """Return what an argument of an iterator says of its position. Some iterators give a new list
    of the items that are left, so that only its length counts."""
    if isinstance(argument, Iterator) and iterating_class(type(argument)) is not None:
        return position_of(argument)
    if isinstance(argument, SIMPLE):
        return repr(argument)
    return len(argument) if type(argument) in (list, tuple) else id(argument)


def _mark_of_state(state: object) -> Any:
    """Return what the state of an iterator says of its position: ``chain`` has the iterators in
    it, and ``cycle`` the items of its first round."""
    if type(state) is list:
        return len(state)
    if isinstance(state, tuple):
        return tuple(map(_mark_of_state, state))
    if isinstance(state, Iterator) and iterating_class(type(state)) is not None:
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

    @property
    def can_rewind(self) -> bool:
        return bool(self._state or self._sources)

    def rewind(self) -> None:
        """Put the iterators back, as far as Python lets them. :func:`position_of` says whether it
        did."""
        for source in self._sources:
            source.rewind()
        for state in self._state:
            self.iterator.__setstate__(state)
