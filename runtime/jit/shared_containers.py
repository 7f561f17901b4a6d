"""Containers that a call is given twice, or that it is given and the program finds elsewhere.

    found.append(x)                     # is also len(state.found), if that is the list
    a.append(x)                         # is also len(b), if both are one list

A capture has copies of the containers that a call is given. So a program that changes one of them,
or a container of the state, is for calls where these are different ones. A call in which two are
one has another kind, and its capture sees whether the program would make a difference of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..aot.python_state.nodes import Place
from .same_containers import containers_in, is_made


class Sharing:
    """Which containers of a call are one. There is one object for each ``pattern``."""

    __slots__ = ("pattern",)

    def __init__(self, pattern: tuple[tuple[int, int], ...]) -> None:
        self.pattern = pattern


class SharedContainers:
    """What the programs of one function have to ask of the containers that a call is given.
    ``matters``: whether one of the programs changes containers."""

    def __init__(self) -> None:
        self.matters = False
        self._state: dict[int, Any] = {}  # by identity
        self._known: dict[tuple[tuple[int, int], ...], Sharing] = {}

    def learn(self, state: Iterable[Any], given: Sequence[Any], changes: bool) -> None:
        """A program has been captured.

        Args:
            state: the objects that it can come to.
            given: the copies of the containers among its arguments.
            changes: whether it changes one of these, or a container of the state.
        """
        if not given:
            return
        self.matters |= changes
        copies = set(map(id, given))
        self._state.update((id(x), x) for x in state if is_made(x) and id(x) not in copies)

    def of(self, args: Any, kwargs: Any, places: Sequence[Place]) -> tuple[Sharing, ...]:
        """What a call is given beside its arguments, which is nothing if all containers are
        different ones. ``places``: whose values are arguments, too."""
        given = containers_in((args, kwargs))
        if not given:
            return ()
        values = containers_in([place.current() for place in places])
        first = {id(x): -1 - number for number, x in enumerate(values)}
        pattern = []
        for number, x in enumerate(given):
            other = first.setdefault(id(x), number)
            if other != number:
                pattern.append((number, other))
            elif id(x) in self._state:
                pattern.append((number, id(x)))
        if not pattern:
            return ()
        key = tuple(pattern)
        return (self._known.setdefault(key, Sharing(key)),)
