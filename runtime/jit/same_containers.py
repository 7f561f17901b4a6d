"""Containers of which a call makes no copy.

    self.outputs = found = [x * 2]
    return found                        # the list that self.outputs is
    return self.history                 # the caller's own list
    self.batch = batch                  # the list that the call was given
    batch["loss"] = loss                # the caller's dictionary gets it

A graph returns tensors, and a call makes the containers around them anew. So a container that is at
two places of the results, or that was there before the call, has a marker in its stead, and the
call puts the container there.

    found.append(x)                     # is also in state.found, if that is the list

A capture has copies of the containers that a call is given. So a program that changes one of them,
or a container of the state, is for calls where these are different ones. A call in which two are
one has another kind, and its capture sees whether the program would make a difference of that."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ..aot.capture import opened
from ..aot.python_state.nodes import Place
from ..aot.python_state.values import same
from ..torch_private.pytrees import pytree

_MUTABLE = frozenset((list, dict, OrderedDict, defaultdict, deque))


class _Known:
    """Stands for a container or object that was there before the program."""

    def __init__(self, container: object) -> None:
        self.container = container


class _Argument:
    """Stands for the container that a call finds at a place, whose values are arguments of the
    graph."""

    def __init__(self, place: Place) -> None:
        self.place = place


class _Given:
    """Stands for a container or object that a call is given, by its number among the arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Repeat:
    """Stands for a container that the results have before, by its number among them."""

    def __init__(self, number: int) -> None:
        self.number = number


MARKS = (_Known, _Argument, _Given, _Repeat)


def is_made(value: object) -> bool:
    """Return whether ``value`` is a container or an object of a data class, which a call makes anew
    where the program does."""
    return type(value) in _MUTABLE or opened.is_object(value)


def _is_tuple(value: object) -> bool:
    kind = type(value)
    return kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def containers_in(tree: object) -> list[Any]:
    """Return the containers and objects of data classes in a tree, from the outside in."""
    found: list[Any] = []
    _find(tree, found)
    return found


def _find(value: Any, found: list[Any]) -> None:
    """Append the containers in ``value`` to ``found``, from the outside in."""
    if type(value) in _MUTABLE:
        found.append(value)
        parts = value.values() if isinstance(value, dict) else value
    elif opened.is_object(value):
        found.append(value)
        parts = opened.contents(value).values()
    elif _is_tuple(value):
        parts = value
    else:
        return
    for part in parts:
        _find(part, found)


def contents_of(value: Any) -> Any:
    """Return what is in a container or an object of a data class, as a list or dictionary."""
    if opened.is_object(value):
        return opened.contents(value)
    return dict(value) if isinstance(value, dict) else list(value)


def put_contents(value: Any, contents: Any) -> None:
    """Let a container or an object of a data class have ``contents``."""
    if opened.is_object(value):
        opened.set_contents(value, contents)
        return
    value.clear()
    value.update(contents) if isinstance(value, dict) else value.extend(contents)


def _are_same(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        # keys may be equal and not the same, such as 1 and True
        keys = len(now) == len(before) and all(map(same, now, before))
        return keys and _are_same([*now.values()], [*before.values()])
    return len(now) == len(before) and all(map(operator.is_, now, before))


class Entered:
    """The ``values`` that a run of a program finds at places, and which containers are among them
    and among ``arguments``, with what was in these."""

    def __init__(self, places: Sequence[Place], values: Sequence[Any], arguments: object) -> None:
        self.values = values
        self._arguments = containers_in(arguments)
        self._before = list(map(contents_of, self._arguments))
        self._numbers = {id(x): number for number, x in enumerate(self._arguments)}
        found = [(p, value) for p, value in zip(places, values, strict=True) if is_made(value)]
        self._found = {id(x): (place, x, *opened.flatten(x)) for place, x in found}

    def place_of(self, value: object) -> Place | None:
        """Return where the container ``value`` is from, if the program has not changed it."""
        return _if_unchanged(self._found.get(id(value)))

    @property
    def given(self) -> Sequence[Any]:
        """Return the containers among the arguments."""
        return self._arguments

    def number_of(self, value: object) -> int | None:
        """Return which one among the arguments the container ``value`` is."""
        return self._numbers.get(id(value))

    def changes(self, number: int) -> bool:
        """Return whether the program has changed the container of that number among the
        arguments."""
        return not _are_same(contents_of(self._arguments[number]), self._before[number])

    def changed(self) -> dict[int, Any]:
        """Return what is by now in the containers among the arguments that the program has
        changed."""
        numbers = filter(self.changes, range(len(self._arguments)))
        return {number: contents_of(self._arguments[number]) for number in numbers}

    def put_back(self, numbers: Iterable[int]) -> None:
        """Let the containers of these numbers have what they had."""
        for number in numbers:
            put_contents(self._arguments[number], self._before[number])

    def has(self, value: object) -> bool:
        """Return whether the program has found ``value``, and has not changed it beyond what a call
        does."""
        return self.place_of(value) is not None or self.number_of(value) is not None


R = TypeVar("R")


def _if_unchanged(found: tuple[R, object, Sequence[object], pytree.TreeSpec] | None) -> R | None:
    if found is None:
        return None
    where, x, before, spec = found
    now, spec_now = opened.flatten(x)
    same = spec == spec_now and all(a is b for a, b in zip(now, before, strict=True))
    return where if same else None


def _with_parts(x: tuple[object, ...], parts: Sequence[Any]) -> object:
    """Return the tuple or named tuple ``x`` with other parts."""
    return tuple(parts) if type(x) is tuple else type(x)(*parts)


class _Marks:
    """``knows``: whether an object was there before the program."""

    def __init__(self, knows: Callable[[Any], bool], entered: Entered) -> None:
        self._knows = knows
        self._entered = entered
        self._numbers: dict[int, int] = {}  # of what is made, by identity, from the outside in
        self.found = False

    def marked(self, x: Any) -> Any:
        """Return ``x`` with markers inside, or the marker for it."""
        if _is_tuple(x):
            return _with_parts(x, list(map(self.marked, x)))
        if not is_made(x):
            return x
        mark = self._mark_of(x)
        if mark is not None:
            self.found = True
            return mark
        self._numbers[id(x)] = len(self._numbers)
        if opened.is_object(x):
            made = object.__new__(type(x))
            opened.set_contents(made, {n: self.marked(y) for n, y in opened.contents(x).items()})
            return made
        parts, spec = pytree.tree_flatten(x, is_leaf=lambda y: y is not x)
        return pytree.tree_unflatten(map(self.marked, parts), spec)

    def _mark_of(self, value: object) -> Any:
        """Return the marker for a container that the program has not made, or that comes once more.
        None for any other."""
        if id(value) in self._numbers:
            return _Repeat(self._numbers[id(value)])
        if self._knows(value):
            return _Known(value)
        place, number = self._entered.place_of(value), self._entered.number_of(value)
        if place is not None:
            return _Argument(place)
        return None if number is None else _Given(number)


def mark(results: object, knows: Callable[[Any], bool], entered: Entered) -> tuple[Any, bool]:
    """Put markers into a tree of results.

    Args:
        results: tuples, lists, dictionaries and objects of data classes, of tensors and constants.
        knows: whether an object was there before the program.
        entered: the containers that the program has found as arguments.

    Returns:
        The results with markers, and whether there are any.
    """
    marks = _Marks(knows, entered)
    marked = marks.marked(results)
    return marked, marks.found


def without_marks(results: object, given: Sequence[object]) -> Any:
    """Put the containers where their markers are, before the call has assigned anything.
    ``given``: the containers among the arguments of the call."""
    made = _Made(containers_in(results), given)
    for container in made.found:
        made.complete(container)
    return made.unmarked(results)


class _Made:
    """The containers and objects that a call makes, ``found``, and what stands in for others."""

    def __init__(self, found: Sequence[Any], given: Sequence[Any]) -> None:
        self.found = found
        self._given = given

    def complete(self, x: Any) -> None:
        """Put the containers that belong into ``x`` there."""
        if opened.is_object(x):
            inside = opened.contents(x).items()
            opened.set_contents(x, {name: self.unmarked(y) for name, y in inside})
            return
        items = x.items() if isinstance(x, dict) else enumerate(x)
        for label, y in list(items):
            x[label] = self.unmarked(y)

    def unmarked(self, value: Any) -> Any:
        """Return what a marker stands for, also in tuples. Any other value as it is."""
        if isinstance(value, _Known):
            return value.container
        if isinstance(value, _Argument):
            return value.place.current()
        if isinstance(value, _Given):
            return self._given[value.number]
        if isinstance(value, _Repeat):
            return self.found[value.number]
        if not _is_tuple(value):
            return value
        parts = list(map(self.unmarked, value))
        unchanged = all(a is b for a, b in zip(parts, value, strict=True))
        return value if unchanged else _with_parts(value, parts)


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

    def learn(self, state: Iterable[object], given: Sequence[object], changes: bool) -> None:
        """Note the containers of a program that was captured.

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

    def of(self, args: object, kwargs: object, places: Sequence[Place]) -> tuple[Sharing, ...]:
        """Return what a call is given beside its arguments, which is nothing if all containers are
        different ones. ``places``: whose values are arguments, too."""
        given = containers_in((args, kwargs))
        if not given:
            return ()
        values = containers_in([place.current() for place in places])
        first = {id(value): -1 - number for number, value in enumerate(values)}
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
