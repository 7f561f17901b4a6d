"""The objects that a program can come to, as they were before it ran.

    snapshot.holds()                    # whether all is as it was
    snapshot.changes()                  # what a run has changed
    snapshot.restore()                  # each object has what it had

:class:`~.object_graph.ObjectGraph` adds the objects, as the program comes to them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from ...trace.symbols import SYMBOLIC
from .nodes import Attributes, Change, FunctionParts, Node, OneByOne
from .reads import Read
from .values import MISSING, SIMPLE, same, tensors_in

# the bounds of a slice may be objects
PLAIN_VALUES = frozenset((*SIMPLE, type(MISSING))) - {slice}
# kinds whose objects no run makes, or that are as good as equal ones
_UNMADE = frozenset((CodeType, ModuleType, type))


class Order(NamedTuple):
    """In which order a program has put what was not there: attributes of an object, keys of a
    dictionary."""

    node: OneByOne
    labels: list[Any]


def new_order(node: OneByOne, known: Iterable[object]) -> Order:
    """Return the labels of ``node`` that the program has put last, in their order. ``known``: those
    from before, in theirs."""
    # no look-up: a key of the user's has a hash of its own
    places = {id(label): place for place, label in enumerate(known)}
    labels = [label for label in node.order() if type(label) not in SYMBOLIC]
    last = -1
    for start, label in enumerate(labels):
        place = places.get(id(label), -1)
        if place <= last:  # new, or put anew behind one that was behind it
            return Order(node, labels[start:])
        last = place
    return Order(node, [])


class Snapshot:
    """See above. ``nodes``: what each object had. ``tensors``: what the tensors say of themselves,
    by identity. ``weak``: identities of objects that a weak reference has led to."""

    def __init__(self, ignore: Iterable[Any]) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[int, Read] = {}
        self.weak: list[int] = []
        self._reached: dict[int, Any] = {id(x): x for x in ignore}
        # by identity of a dictionary, the object that keeps its values there. The program may give
        # a function other defaults
        self._keepers: dict[int, Node] = {}
        self._functions: list[FunctionParts] = []
        self._indexed = 0  # how many nodes are in these two

    def objects(self) -> Iterable[Any]:
        """Return all that the graph has come to."""
        return list(self._reached.values())

    def holds(self) -> bool:
        return all(node.holds() for node in self.nodes if node.watched)

    def changes(self) -> list[Change]:
        """Return what differs from before the program."""
        return [change for node in self.nodes for change in node.changes()]

    def mark(self) -> Callable[[], bool]:
        """Return a function that says whether more has changed since."""
        before = self._changed_values()

        def has_changed() -> bool:
            now = self._changed_values()
            return now.keys() != before.keys() or not all(
                same(value, now[place]) for place, value in before.items()
            )

        return has_changed

    def _changed_values(self) -> dict[tuple[int, Any], Any]:
        """Map each place that has changed, by the identity of its node and the label, to what is
        there."""
        return {(id(change.node), change.label): change.now for change in self.changes()}

    def renew(self, owners: Iterable[object]) -> None:
        """Let what ``owners`` have by now be what they had before the program."""
        wanted = set(map(id, owners))
        for node in self.nodes:
            if id(node.owner) in wanted:
                node.renew()

    def restore(self) -> None:
        """Let each object have what it had."""
        for node in self.nodes:
            node.restore()

    def knows_all(self, change: Change) -> bool:
        """Return whether a call can make this change again, by assignment of what it has
        assigned."""
        now = change.now
        if change.label is not None or isinstance(now, tuple):
            return self.knows(now)
        if isinstance(now, dict):
            return all(map(self.knows, now)) and all(map(self.knows, now.values()))
        return not isinstance(now, (list, frozenset)) or all(map(self.knows, now))

    def has(self, x: object) -> bool:
        """Return whether the graph has come to this object, or to one whose dictionary it is."""
        return id(x) in self._reached or (type(x) is dict and self.owner_of(x) is not None)

    def owner_of(self, dictionary: dict[Any, Any]) -> Node | None:
        """Return the object that keeps its attributes, or the defaults of its arguments, in
        ``dictionary``. None if the graph has come to no such object."""
        for node in self.nodes[self._indexed :]:
            if isinstance(node, FunctionParts):
                self._functions.append(node)
            else:
                self._keepers.setdefault(id(node.own_dictionary()), node)
        self._indexed = len(self.nodes)
        likely = [self._keepers.get(id(dictionary)), *self._functions]
        return next((node for node in likely if node and node.own_dictionary() is dictionary), None)

    def identities(self) -> set[int]:
        """Return the identities of the tensors that the program may compare with another by
        ``is``."""
        named = map(id, tensors_in(x for node in self.nodes for x in node.singles()))
        return {*named, *(self.tensors.keys() & set(self.weak))}

    def knows(self, x: Any) -> bool:
        """Return whether ``x`` is a constant, or an object that was there before the program
        ran."""
        kind = type(x)
        if kind is tuple or kind is frozenset:
            return all(map(self.knows, x))
        if kind is types.MethodType:
            return self.knows(x.__func__) and self.knows(x.__self__)
        if kind is types.BuiltinFunctionType:
            return self.knows(x.__self__)
        return kind in PLAIN_VALUES or kind in _UNMADE or id(x) in self._reached

    def settle(self) -> None:
        """Forget what only a capture needs, and what is not the graph's to keep alive."""
        weak = set(self.weak)
        for node in self.nodes:
            node.settle()
            if id(node.owner) in weak and isinstance(node, Attributes):
                node.let_go()
        self._reached.clear()
        self.tensors.clear()
