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
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..aot.capture import opened
from ..aot.python_state.nodes import Place
from ..aot.python_state.program_state import holds
from ..aot.python_state.values import same
from ..torch_private.pytrees import pytree

_MUTABLE = frozenset((list, dict, OrderedDict, defaultdict, deque))


class _Known:
    """Stands for a container or object that was there before the program."""

    def __init__(self, container: object) -> None:
        self.container = container


class _Found:
    """Stands for a container or object that a call finds at a place whose value is an argument of
    the graph, by its number among these."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Given:
    """Stands for a container or object that a call is given, by its number among the arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Repeat:
    """Stands for a container that the results have before, by its number among them."""

    def __init__(self, number: int) -> None:
        self.number = number


MARKS = (_Known, _Found, _Given, _Repeat)


def is_made(value: object) -> bool:
    """Return whether ``value`` is a container or an object of a data class, which a call makes anew
    where the program does."""
    return type(value) in _MUTABLE or opened.is_object(value)


def is_tuple(value: object) -> bool:
    """Return whether ``value`` is a tuple or a named one, which is as good as an equal one."""
    kind = type(value)
    return kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def containers_in(tree: object) -> list[Any]:
    """Return the containers and objects of data classes in a tree, from the outside in."""
    found: list[Any] = []
    _find(tree, found)
    return found


def containers_given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
    """Return the containers and objects of data classes in the arguments of a call."""
    return containers_in((args, *kwargs.values()))


def _find(value: Any, found: list[Any]) -> None:
    """Append the containers in ``value`` to ``found``, from the outside in."""
    if type(value) in _MUTABLE:
        found.append(value)
        parts = value.values() if isinstance(value, dict) else value
    elif opened.is_object(value):
        found.append(value)
        parts = opened.contents(value).values()
    elif is_tuple(value):
        parts = value
    else:
        return
    for part in parts:
        _find(part, found)


def containers_at(values: Iterable[object]) -> list[Any]:
    """Return the containers in the ``values`` of places. A value that is at two places counts
    once."""
    apart = {id(value): value for value in values}
    return containers_in(tuple(apart.values()))


def contents_of(value: Any) -> Any:
    """Return what is in a container or an object of a data class, as a list or dictionary."""
    if opened.is_object(value):
        return opened.contents(value)
    return dict(value) if isinstance(value, dict) else list(value)


def put_contents(value: Any, contents: Any) -> None:
    """Let a container or an object of a data class have ``contents``. A loop over a container goes
    on, if it has as many items as before, and the same keys."""
    if opened.is_object(value):
        opened.set_contents(value, contents)
        return
    if _fits(value, contents):
        items = contents.items() if isinstance(value, dict) else enumerate(contents)
        # item by item: `clear` would end a loop over the container with an error
        for label, item in items:
            value[label] = item
        return
    value.clear()
    if isinstance(value, dict):
        value.update(contents)
    else:
        value.extend(contents)


def _fits(value: Any, contents: Any) -> bool:
    """Return whether a container has items where ``contents`` belong, and no others."""
    if len(value) != len(contents):
        return False
    return not isinstance(value, dict) or all(map(same, value, contents))


def are_same(now: Any, before: Any) -> bool:
    """Return whether the contents of a container are the same objects as ``before``."""
    if isinstance(now, dict):
        # keys may be equal and not the same, such as 1 and True
        keys = len(now) == len(before) and all(map(same, now, before))
        return keys and are_same([*now.values()], [*before.values()])
    return len(now) == len(before) and all(map(operator.is_, now, before))


class Containers:
    """Containers that a run of a program finds, as they are when it begins. ``changed``: what the
    program has left in those that it has changed, by number, when the run has ended."""

    def __init__(self, containers: Sequence[Any]) -> None:
        self.containers = containers
        self.changed: dict[int, Any] = {}
        self._found = list(map(contents_of, containers))
        self._numbers: dict[int, int] = {}
        for number, x in enumerate(containers):
            self._numbers.setdefault(id(x), number)

    def number_of(self, value: object) -> int | None:
        """Return which one of them ``value`` is, the first if it is several."""
        return self._numbers.get(id(value))

    def end(self) -> None:
        """Note what the program has changed."""
        for number, x in enumerate(self.containers):
            contents = contents_of(x)
            if not are_same(contents, self._found[number]):
                self.changed[number] = contents


def with_parts(x: tuple[object, ...], parts: Sequence[Any]) -> object:
    """Return the tuple or named tuple ``x`` with other parts."""
    return tuple(parts) if type(x) is tuple else type(x)(*parts)


class _Marks:
    """``knows``: whether an object was there before the program."""

    def __init__(self, found: Containers, given: Containers, knows: Callable[[Any], bool]) -> None:
        self._found = found
        self._given = given
        self._knows = knows
        self._numbers: dict[int, int] = {}  # of what is made, by identity, from the outside in
        self.any = False

    def marked(self, x: Any) -> Any:
        """Return ``x`` with markers inside, or the marker for it."""
        if is_tuple(x):
            return with_parts(x, list(map(self.marked, x)))
        if not is_made(x):
            return x
        mark = self._mark_of(x)
        if mark is not None:
            self.any = True
            return mark
        # before its parts: a call counts the containers that it makes from the outside in
        self._numbers[id(x)] = len(self._numbers)
        if opened.is_object(x):
            made = object.__new__(type(x))  # the user's __init__ has run, and may have effects
            contents = opened.contents(x).items()
            opened.set_contents(made, {name: self.marked(value) for name, value in contents})
            return made
        # one level deep: what is inside is marked before it is taken apart
        parts, spec = pytree.tree_flatten(x, is_leaf=lambda y: y is not x)
        return pytree.tree_unflatten(map(self.marked, parts), spec)

    def _mark_of(self, value: object) -> Any:
        """Return the marker for a container that the program has not made, or that comes once more.
        None for any other."""
        if id(value) in self._numbers:
            return _Repeat(self._numbers[id(value)])
        # before `_Known`: what is at a place or an argument is another one in another call
        number = self._found.number_of(value)
        if number is not None:
            return _Found(number)
        number = self._given.number_of(value)
        if number is not None:
            return _Given(number)
        return _Known(value) if self._knows(value) else None


def mark(
    results: object, found: Containers, given: Containers, knows: Callable[[Any], bool]
) -> tuple[Any, bool]:
    """Put markers into a tree of results.

    Args:
        results: tuples, lists, dictionaries and objects of data classes, of tensors and constants.
        found: the containers that the program has found at places.
        given: those in its arguments.
        knows: whether an object was there before the program.

    Returns:
        The results with markers, and whether there are any.
    """
    marks = _Marks(found, given, knows)
    marked = marks.marked(results)
    return marked, marks.any


def without_marks(results: object, found: Sequence[object], given: Sequence[object]) -> Any:
    """Put the containers where their markers are, before the call has assigned anything.
    ``found``: the containers at places. ``given``: those among the arguments of the call."""
    made = _Made(containers_in(results), found, given)
    for container in made.containers:
        made.complete(container)
    return made.unmarked(results)


class _Made:
    """The ``containers`` and objects that a call makes, and those that its markers stand for."""

    def __init__(
        self, containers: Sequence[Any], found: Sequence[Any], given: Sequence[Any]
    ) -> None:
        self.containers = containers
        self._found = found
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
        if isinstance(value, _Found):
            return self._found[value.number]
        if isinstance(value, _Given):
            return self._given[value.number]
        if isinstance(value, _Repeat):
            return self.containers[value.number]
        if not is_tuple(value):
            return value
        parts = list(map(self.unmarked, value))
        unchanged = all(a is b for a, b in zip(parts, value, strict=True))
        return value if unchanged else with_parts(value, parts)


Pattern = tuple[tuple[int, object], ...]
"""For each container of a call that is found elsewhere, too, its number, and where that is."""


class Sharing:
    """Which containers of a call are one. There is one object for each ``pattern``."""

    __slots__ = ("pattern",)

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern


def _itself(x: Any) -> Any:
    return x


class SharedContainers:
    """What the programs of one function have to ask of the containers that a call is given.
    ``matters``: whether it makes a difference to one of the programs which of them are one."""

    def __init__(self) -> None:
        self.matters = False
        # those of the state, by identity, each with the places that have had it, by their keys
        self._state: dict[int, tuple[Callable[[], Any], dict[object, Place | None]]] = {}
        self._known: dict[Pattern, Sharing] = {}

    def learn(
        self, holders: Iterable[tuple[object, Place | None]], weak: Container[int] = ()
    ) -> None:
        """Note the containers of a state.

        Args:
            holders: each with a place that has it; None for one to which no place leads.
            weak: identities of those that may go, since weak references lead to them.
        """
        for container, place in holders:
            # the identity may have been that of another object, which is gone
            if id(container) not in self._state or self._state[id(container)][0]() is not container:
                get: Callable[[], Any] = partial(_itself, container)
                if id(container) in weak:
                    get = weakref.ref(container)
                self._state[id(container)] = get, {}
            _, places = self._state[id(container)]
            places[None if place is None else place.key] = place

    def _places_of(self, x: object) -> Mapping[object, Place | None]:
        """Return the places that have had a container of the state, by their keys."""
        get, places = self._state.get(id(x), (None, {}))
        return places if get is not None and get() is x else {}

    def of(
        self,
        places: Sequence[Place],
        found: Sequence[object],
        given: Sequence[object],
        value_at: Callable[[Place], object] = Place.current,
    ) -> list[Sharing]:
        """Return what a call is given beside its arguments, which is nothing if all containers are
        different ones.

        Args:
            places: whose values are arguments, too.
            found: the containers in these.
            given: those in the call's own arguments.
            value_at: gives what is at a place before the program runs.
        """
        pattern = [
            (number, other) for number, other, _ in self._shared(places, found, given, value_at)
        ]
        if not pattern:
            return []
        key = tuple(pattern)
        return [self._known.setdefault(key, Sharing(key))]

    def identities(
        self, places: Sequence[Place], found: Sequence[object], given: Sequence[object]
    ) -> set[int]:
        """Return the identities of the containers that a call finds in several ways."""
        return {id(x) for _, _, x in self._shared(places, found, given, Place.current)}

    def _shared(
        self,
        places: Sequence[Place],
        found: Sequence[object],
        given: Sequence[object],
        value_at: Callable[[Place], object],
    ) -> Iterator[tuple[int, object, object]]:
        """Yield the number of each container that comes once more, where else it is, and itself.
        Those that are found at places have negative numbers."""
        first: dict[int, int] = {}
        carried = {place.key for place in places}
        own = set(map(id, (*found, *given)))
        # those of places first, so that an argument refers to a place, and not the reverse
        numbered = [(-1 - number, x) for number, x in enumerate(found)]
        numbered += enumerate(given)
        for number, container in numbered:
            other = first.setdefault(id(container), number)
            if other != number:
                yield number, other, container
                continue
            for key, place in self._places_of(container).items():
                # no place leads to it, and yet the program comes to it
                if place is None:
                    yield number, id(container), container
                    break
                # a place of a container that is an argument, too, is none besides
                if key in carried or id(place.node.owner) in own:
                    continue
                if holds(value_at(place), container):
                    yield number, key, container
                    break
