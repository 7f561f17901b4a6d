"""Whether the objects of a graph have what they had: what each call of a program asks.

    guard = StateGuard(graph.nodes)
    guard.holds()                       # by one function, which is generated for these nodes
    guard.differences()                 # where it does not hold

The answer of most calls is yes, and few dictionaries have been written to since the last one. So
nodes are asked in batches (:mod:`.guard_batches`), and one by one where a batch may have changed.
No user's code is called."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from ...native.noted import Noted
from ...trace.generated_code import answer
from .contents import SequenceItems, SetItems
from .dictionary_items import DictItems
from .guard_batches import (
    VERSIONS_TELL,
    Batch,
    Cells,
    Classes,
    Dictionaries,
    Empty,
    EmptyOwn,
    Functions,
    Items,
    Orders,
    Others,
    OwnNames,
    OwnVersions,
    PartsOfClasses,
    Sequences,
    Versions,
    WithoutNames,
    finds_own,
)
from .nodes import (
    Attributes,
    Cell,
    ClassNames,
    ClassParts,
    FunctionParts,
    Globals,
    Named,
    Node,
    OneByOne,
    Place,
)
from .value_attributes import ValueAttributes
from .values import PLAIN_TENSORS, shown

_FILE = "<guard of Python's state>"


class StateGuard:
    """Asks whether ``nodes`` are as they were, as :meth:`.nodes.Node.holds` of each does."""

    opaque: tuple[str, ...] = ()
    """Names of objects of the graph that say nothing of themselves, for a report."""
    stays: bool = True
    """Whether the run that was captured has left all as it has found it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = [node for node in nodes if node.watched and not _asks_nothing(node)]

    @property
    def is_empty(self) -> bool:
        return not self.nodes

    @cached_property
    def holds(self) -> Callable[[], bool]:
        """The function that says whether a call finds what the program has found. It is made when
        it is needed: many programs are called once."""
        return answer(
            lambda constant: " and ".join(f"({c})" for c in self.conditions(constant)) or "True",
            "holds",
            _FILE,
        )

    def conditions(self, constant: Callable[[Any], str]) -> list[str]:
        """Write the question of :attr:`holds` as Python source, one condition for each kind of
        node. ``constant``: gives an object a name."""
        return [
            noted.condition(constant) if noted is not None else _comparison(batch, constant)
            for batch, noted in self._batches
        ]

    @cached_property
    def _batches(self) -> list[tuple[Batch, Noted | None]]:
        """The nodes by kind, each with what the native part has noted of them, if it is there."""
        batches = _Sorted(self.nodes).batches()
        return [(batch, _noted(batch)) for batch in batches]

    def differences(self) -> list[tuple[str, Any, Any]]:
        """List where a call finds something else: the name, what was there, what is."""
        return [
            (node.name if label is None else f"{shown(label)} of {node.name}", was, now)
            for node in self.nodes
            for label, was, now in node.differences()
        ]

    def arguments(self) -> list[Place]:
        """Return the places whose values are arguments of the program, so that no call compares
        them."""
        named = [node for node in self.nodes if node.free and isinstance(node, OneByOne)]
        return [Place(node, label) for node in named for label in node.free]


def _comparison(batch: Batch, constant: Callable[[Any], str]) -> str:
    """Write the question of a batch as Python source."""
    return f"({batch.condition(constant)}) or {constant(batch.compare)}()"


def _noted(batch: Batch) -> Noted | None:
    """Return what asks the same in C++ first."""
    if batch.question is None:
        return None
    write = partial(_comparison, batch)
    return Noted.of(batch.question, lambda: answer(write, "compare", _FILE))


class _Sorted:
    """The nodes of a guard by kind."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.versioned: list[tuple[dict[Any, Any], Node]] = []
        self.ordered: list[Node] = []
        self.empty: list[tuple[Any, Node]] = []
        self.sequences: list[Node] = []
        self.objects: list[Attributes] = []
        self.own: list[Attributes] = []
        self.without_attributes: list[Attributes] = []
        self.named: list[Attributes] = []
        self.without_names: list[ValueAttributes] = []
        self.items: list[Node] = []
        self.replaced: list[Attributes] = []
        self.cells: list[Cell] = []
        self.functions: list[FunctionParts] = []
        self.class_parts: list[ClassParts] = []
        self.others: list[Node] = []
        for node in nodes:
            if not (self._add_named(node) or self._add_items(node) or self._add_of_one(node)):
                self.others.append(node)

    def batches(self) -> list[Batch]:
        """Return a batch for each kind of which there are nodes."""
        kinds: list[tuple[Callable[[Any], Batch], Sequence[Any]]] = [
            (Versions, self.versioned),
            (Empty, self.empty),
            (Classes, self.objects),
            (OwnVersions, self.own),
            (EmptyOwn, self.without_attributes),
            (WithoutNames, self.without_names),
            (Dictionaries, self.replaced),
            (OwnNames, self.named),
            (Items, self.items),
            (Functions, self.functions),
            (Cells, self.cells),
            (Sequences, self.sequences),
            (Orders, self.ordered),
            (PartsOfClasses, self.class_parts),
            (Others, self.others),
        ]
        return [batch(nodes) for batch, nodes in kinds if nodes]

    def _add_named(self, node: Node) -> bool:
        """Add a node of names. Return whether it is one that a batch takes."""
        # subclasses of `Named` first, each of which has its names in another way
        if isinstance(node, Attributes):
            return self._add_attributes(node)
        if isinstance(node, ValueAttributes):
            (self.others if node.copy else self.without_names).append(node)
            return True
        if isinstance(node, ClassNames):
            self.versioned.append((node.dictionary, node))
            return True
        if isinstance(node, Named):
            self.versioned.append((node.owner, node))
        return isinstance(node, Named)

    def _add_attributes(self, node: Attributes) -> bool:
        """Add the attributes of an object, by what tells of a change. Return whether anything
        does."""
        # slots are in no dictionary, and a ``threading.local`` has one for each thread
        if node.slots or issubclass(type(node.owner), threading.local):
            return False
        if node.kind is not None and node.kind not in PLAIN_TENSORS:  # whose facts are compared
            self.objects.append(node)
        # Asked by the object, one question sees both a write and another dictionary.
        by_owner = node.kind is not None and finds_own(node.owner)
        if by_owner and not node.size:
            self.without_attributes.append(node)
            return True
        if by_owner and VERSIONS_TELL:
            self.own.append(node)
            return True
        # else the dictionary that was found is asked, and whether the object still has it
        if node.kind is not None:
            self.replaced.append(node)
        if not node.size:
            self.empty.append((node.own, node))
        elif VERSIONS_TELL:
            self.versioned.append((node.own, node))
        else:
            self.named.append(node)
        return True

    def _add_items(self, node: Node) -> bool:
        """Add a container of a class of Python's own, which calls no user's code."""
        kind = type(node.owner)
        if not isinstance(node, (DictItems, SequenceItems, SetItems)) or kind not in _OF_PYTHON:
            return False
        if not node.had:
            self.empty.append((node.owner, node))
            return True
        if isinstance(node, DictItems):
            if VERSIONS_TELL:
                self.versioned.append((node.owner, node))
            elif node.free:  # a batch compares all items, and these differ in each call
                return False
            else:
                self.items.append(node)
            if kind is OrderedDict:  # whose order is apart from its items
                self.ordered.append(node)
            return True
        if isinstance(node, SequenceItems) and not node.free:
            self.sequences.append(node)
            return True
        return False

    def _add_of_one(self, node: Node) -> bool:
        """Add a function, a variable or a class. Return whether it is one that a batch takes."""
        if isinstance(node, FunctionParts):
            self.functions.append(node)
            return True
        if isinstance(node, Cell) and not node.free:
            self.cells.append(node)
            return True
        if isinstance(node, ClassParts):
            self.class_parts.append(node)
            return True
        return False


_OF_PYTHON = frozenset((dict, defaultdict, OrderedDict, list, deque, set))


def _asks_nothing(node: Node) -> bool:
    """Return whether no call needs to ask: no code has a name for a global there."""
    return isinstance(node, Globals) and node.asks_nothing
