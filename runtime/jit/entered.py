"""What a run of a program finds: containers with values of the trace inside.

    state.memory["h"] = state.memory["h"] + x       # a copy, if it has no other name
    assert state.memory is state.layers[0].memory   # itself, as the program finds it twice

What is at places of Python's state, and what a call is given, are inputs of the graph. These come
in copies of the containers around them. A container to which the program comes in several ways is
the caller's own: while the program runs, it has what its copy has, and afterwards what it had. Any
other is a copy, of which nothing is left, so that other threads and the caller's loops are not
disturbed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..aot.python_state.contents import SequenceItems
from ..aot.python_state.nodes import Place
from ..aot.python_state.snapshot import Order, Snapshot, new_order
from .same_containers import (
    Containers,
    are_same,
    containers_at,
    containers_in,
    contents_of,
    is_tuple,
    put_contents,
    with_parts,
)


class _Entering:
    """What stands for each of the caller's containers in a run.

    Args:
        originals: the caller's containers.
        copies: what the inputs of a graph make of them.
        shared: the identities of the originals that the run finds themselves.
    """

    def __init__(
        self, originals: Sequence[Any], copies: Sequence[Any], shared: Collection[int]
    ) -> None:
        if list(map(type, originals)) != list(map(type, copies)):
            raise RuntimeError(
                "another thread changes a container that the jitted function reads while it is "
                "captured. Let one of them wait for the other."
            )
        self.originals = [x for x in originals if id(x) in shared]
        self._by_copy: dict[int, Any] = {}
        self._by_original: dict[int, Any] = {}
        # what stands for each, what that has before the run, the keys, and what the copy has
        self._filled: list[tuple[Any, Any, Any, Any]] = []
        for x, copy in zip(originals, copies, strict=True):
            entered = x if id(x) in shared else copy
            self._by_copy[id(copy)] = entered
            if id(x) not in self._by_original:  # the first copy of several
                self._by_original[id(x)] = entered
                self._filled.append(
                    (entered, contents_of(entered), contents_of(x), contents_of(copy))
                )

    def fill(self) -> None:
        """Let each have what its copy has."""
        if self.originals:
            for entered, _, keys, contents in self._filled:
                put_contents(entered, self._inside(keys, contents))

    def put_back(self) -> None:
        """Let each have what it had before the run."""
        for entered, before, _, _ in self._filled:
            if not are_same(contents_of(entered), before):
                put_contents(entered, before)

    def _inside(self, keys: Any, contents: Any) -> Any:
        """Return the ``contents`` of a copy, of a dictionary under the ``keys`` of the caller's."""
        if isinstance(contents, dict):
            return dict(zip(keys, map(self.of, contents.values()), strict=True))
        return list(map(self.of, contents))

    def of(self, value: Any) -> Any:
        """Return what stands for the original of a copy, also in tuples. Any other value as it
        is."""
        if not self.originals:  # nothing is shared, and each copy stands for itself
            return value
        if not is_tuple(value):
            return self._by_copy.get(id(value), value)
        return with_parts(value, list(map(self.of, value)))

    def for_original(self, x: object) -> Any:
        """Return what stands for a container of the caller's."""
        return self._by_original[id(x)]


class Entered:
    """What a run of a program is given. While entered, the ``values`` are at ``places``, and the
    shared containers of the caller have the values of the trace.

    Args:
        places: of Python's state.
        copies: what the inputs of the graph make of the values there.
        args, kwargs: what they make of the arguments.
        given: the containers in the caller's arguments, from the outside in.
        shared: the identities of the containers that the program finds in several ways.
        graph: of the objects that the program comes to. What a run comes to first has values of
            the trace inside, so that the graph looks at it once more.

    ``left``: what was at the places at the end. ``orders``: those that the run leaves, by identity
    of the owner. ``found``, ``given``: what the run had for the containers at places and
    in the arguments. ``originals``: the caller's own, those at places first. ``skipped``: the
    further items that the run has given to a list or deque which it has given items at places.
    """

    def __init__(
        self,
        places: Sequence[Place],
        copies: Sequence[object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: Sequence[Any],
        shared: Collection[int],
        graph: Snapshot,
    ) -> None:
        self.left: list[Any] = []
        self.skipped: list[Place] = []
        self.orders: dict[int, Order] = {}
        self._graph = graph
        self._places = places
        self._before = [place.current() for place in places]
        nodes = {id(place.node): place.node for place in places}.values()
        self._orders_before = [(node, node.order()) for node in nodes]
        sequences = [node for node in nodes if isinstance(node, SequenceItems)]
        self._lengths = [(node, len(node.look())) for node in sequences]
        self._entering = entering = _Entering(
            [*containers_in(tuple(self._before)), *given],
            containers_in((*copies, args, *kwargs.values())),
            shared,
        )
        self.originals = containers_at(self._before), given
        self.found = self.given = Containers(())
        self.values = list(map(entering.of, copies))
        self.args: Any = entering.of(args)
        self.kwargs = {name: entering.of(x) for name, x in kwargs.items()}

    def __enter__(self) -> Entered:
        # `__exit__` does not run if this fails
        try:
            self._entering.fill()
            for place, value in zip(self._places, self.values, strict=True):
                place.put(value)
        except BaseException:
            self._put_back()
            raise
        found, given = self.originals
        self.found = Containers(list(map(self._entering.for_original, found)))
        self.given = Containers(list(map(self._entering.for_original, given)))
        return self

    def __exit__(self, *exc: object) -> None:
        # what the run leaves is noted first, and then put back
        self.left = [place.current() for place in self._places]
        pairs = self._orders_before
        self.orders = {id(node.owner): new_order(node, known) for node, known in pairs}
        for node, length in self._lengths:
            self.skipped += self._skipped(node, length)
        self.found.end()
        self.given.end()
        self._put_back()

    def _skipped(self, node: SequenceItems, length: int) -> list[Place]:
        """Return the items after the first ``length`` ones that are at no place, if some are."""
        known = {place.key for place in self._places}
        new = [Place(node, i) for i in range(length, len(node.look()))]
        others = [place for place in new if place.key not in known]
        return others if len(others) < len(new) else []

    def _put_back(self) -> None:
        self._entering.put_back()
        for place, value in zip(self._places, self._before, strict=True):
            place.put(value)
        self._graph.renew(self._entering.originals)

    def has(self, value: object) -> bool:
        """Return whether the program is given the container ``value``, and has not made it."""
        return self.found.number_of(value) is not None or self.given.number_of(value) is not None
