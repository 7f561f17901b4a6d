"""Whether the objects of a graph have what they had: what each call of a program asks.

The answer of most calls is yes, and few dictionaries have been written to since the last one. So a
dictionary is asked for its version, a number of CPython's that another write makes another one.
Where it differs, that dictionary is compared, and the new version is noted. Containers without
items, of which a module has a dozen, are asked all at once whether one has some. Objects of one
kind are compared by one ``map``, which takes a fifth of the time of a loop in Python."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch._C._dynamo.guards import dict_version

from .contents import DictItems, SequenceItems, SetItems
from .nodes import (
    Attributes,
    Cell,
    ClassNames,
    FunctionParts,
    Globals,
    Named,
    Node,
)
from .values import shown

Check = Callable[[], bool]
_is = operator.is_
_code, _defaults, _named_defaults, _content = map(
    operator.attrgetter, ("__code__", "__defaults__", "__kwdefaults__", "cell_contents")
)


class StateGuard:
    """Asks whether ``nodes`` are as they were, as :meth:`.nodes.Node.holds` of each does."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = [node for node in nodes if node.watched and not _asks_nothing(node)]
        self._versioned: list[tuple[dict[Any, Any], Node]] = []
        self._empty: list[tuple[Any, Node]] = []
        self._objects: list[Attributes] = []
        self._cells: list[Cell] = []
        self._functions: list[FunctionParts] = []
        self._others: list[Node] = []
        for node in self.nodes:
            self._sort(node)
        self._checks: list[Check] = [
            *([_versions(self._versioned)] if self._versioned else ()),
            *([_without_items(self._empty)] if self._empty else ()),
            *([_classes(self._objects)] if self._objects else ()),
            *([_codes(self._functions)] if self._functions else ()),
            *([_contents(self._cells)] if self._cells else ()),
            *(node.holds for node in self._others),
        ]

    @property
    def is_empty(self) -> bool:
        return not self.nodes

    def holds(self) -> bool:
        """Whether a call finds what the program has found."""
        for check in self._checks:  # noqa: SIM110  # a generator would cost a fifth of a call
            if not check():
                return False
        return True

    def differences(self) -> list[tuple[str, Any, Any]]:
        """Where a call finds something else: the name, what was there, what is."""
        return [
            (node.name if label is None else f"{shown(label)} of {node.name}", was, now)
            for node in self.nodes
            for label, was, now in node.differences()
        ]

    def _sort(self, node: Node) -> None:
        if isinstance(node, Attributes):
            self._sort_attributes(node)
        elif isinstance(node, Named) and not isinstance(node, ClassNames):
            self._versioned.append((node.owner, node))
        elif isinstance(node, FunctionParts) and node.owner.__kwdefaults__ is None:
            self._functions.append(node)
        elif isinstance(node, Cell) and not node.free:
            self._cells.append(node)
        elif _is_plain(node) and not node.had:
            self._empty.append((node.owner, node))
        elif isinstance(node, DictItems) and type(node.owner) is dict:
            self._versioned.append((node.owner, node))
        else:
            self._others.append(node)

    def _sort_attributes(self, node: Attributes) -> None:
        if node.slots:
            self._others.append(node)
            return
        if node.kind is not None:
            self._objects.append(node)
        kept = self._versioned if node.size else self._empty
        kept.append((node.own, node))


def _is_plain(node: Node) -> bool:
    """Whether it is a container of Python's own, which is false without items."""
    kinds = (dict, OrderedDict, list, set)
    known = isinstance(node, (DictItems, SequenceItems, SetItems))
    return known and type(node.owner) in kinds


def _asks_nothing(node: Node) -> bool:
    """Whether no call needs to ask: no code has a name for a global there."""
    return isinstance(node, Globals) and not node.had


def _versions(found: Sequence[tuple[dict[Any, Any], Node]]) -> Check:
    """Whether dictionaries have not been written to, or are as they were nevertheless."""
    dictionaries = [d for d, _ in found]
    known = [-1] * len(found)

    def check() -> bool:
        now = list(map(dict_version, dictionaries))
        return now == known or compared(now)

    def compared(now: list[int]) -> bool:
        for i, (a, b) in enumerate(zip(now, known, strict=True)):
            if a != b:
                if not found[i][1].holds():
                    return False
                known[i] = a
        return True

    return check


def _without_items(found: Sequence[tuple[Any, Node]]) -> Check:
    containers, nodes = [x for x, _ in found], [node for _, node in found]
    return lambda: not any(containers) or _all_hold(nodes)


def _classes(nodes: Sequence[Attributes]) -> Check:
    owners, kinds = [node.owner for node in nodes], [node.kind for node in nodes]
    return lambda: all(map(_is, map(type, owners), kinds))


def _codes(nodes: Sequence[FunctionParts]) -> Check:
    functions = [node.owner for node in nodes]
    codes, defaults = [node.had[0] for node in nodes], [node.had[1] for node in nodes]

    def check() -> bool:
        as_before = (
            all(map(_is, map(_code, functions), codes))
            and all(map(_is, map(_defaults, functions), defaults))
            and not any(map(_named_defaults, functions))
        )
        return as_before or _all_hold(nodes)

    return check


def _contents(nodes: Sequence[Cell]) -> Check:
    cells, contents = [node.owner for node in nodes], [node.had[0] for node in nodes]

    def check() -> bool:
        try:
            as_before = all(map(_is, map(_content, cells), contents))
        except ValueError:  # one of them has none
            as_before = False
        return as_before or _all_hold(nodes)

    return check


def _all_hold(nodes: Iterable[Node]) -> bool:
    return all(node.holds() for node in nodes)
