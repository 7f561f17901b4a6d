"""What a run of a program finds: the caller's own containers, with values of the trace inside.

    state.memory["h"] = state.memory["h"] + x       # state.memory is a value of the program
    assert state.memory is state.layers[0].memory   # so does torch's eager run find it

What is at places of Python's state, and what a call is given, are inputs of the graph. These come
in copies of the containers around them. So while a program runs, each container of the caller has
what its copy has, and whoever holds it finds that. Afterwards it has what it had before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..aot.python_state.nodes import Place
from ..aot.python_state.program_state import Order, new_order
from ..aot.python_state.snapshot import Snapshot
from ..aot.python_state.values import MISSING
from .same_containers import (
    Containers,
    containers_at,
    containers_in,
    contents_of,
    is_tuple,
    put_contents,
    with_parts,
)


class _Originals:
    """The caller's containers for the ``copies`` of them that the inputs of a graph come in."""

    def __init__(self, originals: Sequence[Any], copies: Sequence[Any]) -> None:
        if list(map(type, originals)) != list(map(type, copies)):
            raise RuntimeError(
                "another thread changes a container that the jitted function reads while it is "
                "captured. Let one of them wait for the other."
            )
        self._pairs = list(zip(originals, copies, strict=True))
        self._by_copy = {id(y): x for x, y in self._pairs}

    def fill(self) -> None:
        """Let each have what its copy has, or the first copy of several."""
        done = set()
        for x, copy in self._pairs:
            if id(x) not in done:
                done.add(id(x))
                put_contents(x, self._inside(contents_of(x), contents_of(copy)))

    def _inside(self, before: Any, contents: Any) -> Any:
        """Return the ``contents`` of a copy under the keys that there were ``before``."""
        if isinstance(contents, dict):
            return dict(zip(before, map(self.of, contents.values()), strict=True))
        return list(map(self.of, contents))

    def of(self, value: Any) -> Any:
        """Return the container for a copy, also in tuples. Any other value as it is."""
        if not is_tuple(value):
            return self._by_copy.get(id(value), value)
        return with_parts(value, list(map(self.of, value)))


class Entered:
    """What a run of a program is given. While entered, the ``values`` are at ``places``, and the
    containers of the caller have the values of the trace.

    Args:
        places: of Python's state.
        copies: what the inputs of the graph make of the values there.
        args, kwargs: what they make of the arguments.
        given: the containers in the caller's arguments, from the outside in.
        graph: of the objects that the program comes to. What a run comes to first has values of
            the trace inside, so that the graph looks at it once more.

    ``left``: what was at the places at the end. ``orders``: of what was not there before, by
    identity of the owner. ``found``, ``given``: the containers at places and in the arguments.
    """

    def __init__(
        self,
        places: Sequence[Place],
        copies: Sequence[object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: Sequence[Any],
        graph: Snapshot,
    ) -> None:
        self._graph = graph
        self.left: list[Any] = []
        self.orders: dict[int, Order] = {}
        self._places = places
        self._before = [place.current() for place in places]
        pairs = zip(places, self._before, strict=True)
        self._absent = [(p.node, p.node.order()) for p, x in pairs if x is MISSING]
        self.found = Containers(containers_at(self._before))
        self.given = Containers(given)
        containers = [*containers_in(tuple(self._before)), *given]
        self._originals = _Originals(containers, containers_in((*copies, args, *kwargs.values())))
        self.values = list(map(self._originals.of, copies))
        self.args: Any = self._originals.of(args)
        self.kwargs = {name: self._originals.of(x) for name, x in kwargs.items()}

    def __enter__(self) -> Entered:
        try:
            self._originals.fill()
            for place, value in zip(self._places, self.values, strict=True):
                place.put(value)
        except BaseException:
            self._put_back()
            raise
        self.found.begin()
        self.given.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.left = [place.current() for place in self._places]
        self.orders = {id(node.owner): new_order(node, known) for node, known in self._absent}
        self.found.end()
        self.given.end()
        self._put_back()

    def _put_back(self) -> None:
        self.given.put_back()
        self.found.put_back()
        for place, value in zip(self._places, self._before, strict=True):
            place.put(value)
        self._graph.renew([*self.found.containers, *self.given.containers])

    def has(self, value: object) -> bool:
        """Return whether the program is given the container ``value``, and has not made it."""
        return self.found.number_of(value) is not None or self.given.number_of(value) is not None
