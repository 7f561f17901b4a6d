"""Refuse a program that comes to other mutable objects than those that are declared.

    jit(step, state=(model, optimizer))

A program may come to what the declared objects hold, to code, and to constants. Code is functions,
classes, modules, and the variables that name these. Constants are numbers, texts, tuples, members
of enums and objects of frozen data classes. A call still compares all of these: a global number is
one version of one dictionary, which costs less than to doubt it. Anything else that can change has
to be declared, ignored, or passed: a list, a dictionary, an object with attributes."""

from __future__ import annotations

import enum
import functools
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from ...torch_private.mode_stacks import unseen_by_handlers
from ...trace.provenance import happened_at
from .contents import Cursor, Fact, Parts
from .name_lines import line_naming
from .nodes import Attributes, Cell, Change, ClassNames, ClassParts, FunctionParts, Globals, Node
from .object_graph import ObjectGraph
from .object_kinds import GENERATORS_OF_NUMPY

_NAMED = 4  # objects that an error names
_OF_CODE = (Globals, ClassNames, ClassParts, FunctionParts, Cell, Fact, Cursor, Parts)
_WITHOUT_STATE = (
    FunctionType,
    type,
    enum.Enum,
    functools.partial,
    logging.Logger,
    logging.Manager,
    logging.Handler,
    random.Random,
    *GENERATORS_OF_NUMPY,
)
"""Kinds of objects with attributes that are code, constants, or are only told something."""


class Holdings(ObjectGraph):
    """What declared objects hold, as far as the program of ``graph`` has names for it. The names of
    modules and the globals of functions are not held."""

    def __init__(
        self, declared: Iterable[object], ignore: Iterable[Any], graph: ObjectGraph
    ) -> None:
        super().__init__(declared, ignore)
        self.code.of_schedulers = set(graph.code.of_schedulers)
        with unseen_by_handlers():
            if graph.code.computed:
                self._look_through_all()
            self.code.learn(graph.code.names, graph.code.words)
            self._drain()
        self._owners = {id(node.owner) for node in self.nodes}

    def has(self, x: object) -> bool:
        """Return whether ``x`` is declared or held by what is."""
        return id(x) in self._owners or super().has(x)

    def _learn_code(self, code: CodeType, names: dict[str, object]) -> None:
        """Learn nothing: what the globals of code hold is not the object's."""

    def _ask_loaded(self, name: str) -> None:
        """Ask no module that is only named."""


def refuse_undeclared(
    graph: ObjectGraph,
    declared: Iterable[object],
    ignore: Iterable[object],
    made: Sequence[Change],
    carried: frozenset[tuple[int, object]],
) -> None:
    """Raise ``RuntimeError`` if the program of ``graph``, which has run, comes to mutable objects
    beside those that ``declared`` hold, or has changed a variable beside these. ``made``: changes
    that are put back by now. ``carried``: keys of places whose values are arguments."""
    held = Holdings([*declared, *_parts_of_classes(graph)], ignore, graph)
    others = [node for node in graph.nodes if not _is_constant(node) and not held.has(node.owner)]
    if others:
        _refuse(graph, "comes to", [_described(graph, n) for n in _outermost(others, graph)])
    changes = [c for c in (*graph.changes(), *made) if not _keeps_results(c.node)]
    outside = [c.what for c in changes if not held.has(c.node.owner)]
    if outside:
        _refuse(graph, "changes", outside)
    moving = _numbers_outside(graph, held, carried)
    if moving:
        _refuse(graph, "comes to a number that changes,", moving)


def _numbers_outside(
    graph: ObjectGraph, held: Holdings, carried: frozenset[tuple[int, object]]
) -> list[str]:
    """Return the names of the places in ``carried`` whose owners ``held`` does not have."""
    owners = {id(node.owner): node for node in graph.nodes if not held.has(node.owner)}
    return [Change(owners[i], label, None, None).what for i, label in carried if i in owners]


def _parts_of_classes(graph: ObjectGraph) -> Iterator[object]:
    """What Python keeps in classes: the members of an enum, the fields of a data class."""
    for node in graph.nodes:
        if isinstance(node, ClassNames):
            c = node.owner
            names = [n for n in vars(c) if n.startswith("__") and n.endswith("__")]
            yield from (c,) if issubclass(c, enum.Enum) else (vars(c)[n] for n in names)


def _outermost(nodes: Sequence[Node], graph: ObjectGraph) -> list[Node]:
    """Those of ``nodes`` that hold the others, as many as an error names and one more."""
    found: list[Node] = []
    rest = list(nodes)
    while rest and len(found) <= _NAMED:
        found.append(rest[0])
        held = Holdings([rest[0].owner], (), graph)
        rest = [node for node in rest[1:] if not held.has(node.owner)]
    return found


def _described(graph: ObjectGraph, node: Node) -> str:
    """Return the variable that has the object of ``node``, or how one comes to it."""
    kind = type(node.owner).__name__
    for place in graph.nodes:
        if isinstance(place, Globals):
            names = [n for n, x in place.had.items() if x is node.owner]
            if names:
                return f"{names[0]!r} of {place.name} ({kind})"
        elif isinstance(place, Cell) and place.had[0] is node.owner:
            return f"{place.name} ({kind})"
    return f"{node.name} ({kind})"


def _is_constant(node: Node) -> bool:
    """Return whether the object is code or a constant, as far as its kind says."""
    if not isinstance(node, Attributes):
        return isinstance(node, _OF_CODE)
    kind = type(node.owner)
    if kind.__module__ == "typing" or (issubclass(kind, torch.Tensor) and not node.own):
        return True
    frozen = getattr(vars(kind).get("__dataclass_params__"), "frozen", False)
    return issubclass(kind, _WITHOUT_STATE) or bool(frozen)


def _keeps_results(node: Node) -> bool:
    """Return whether it is a cache of a function, or is refused for a reason of its own."""
    return isinstance(node, (Cursor, Parts))


def _refuse(graph: ObjectGraph, verb: str, names: list[str]) -> None:
    shown = list(dict.fromkeys(names))
    more = ["others"] if len(shown) > _NAMED else []
    line = line_naming(shown[0].partition(" (")[0], graph.code.entered.values())
    raise RuntimeError(
        f"the program {verb} {', '.join([*shown[:_NAMED], *more])}, which state=(…) does not "
        "declare. Name the object, or one that holds it, in state=(…). Or pass it as an argument. "
        f"Or name it in ignore=(…) if nothing depends on it.{happened_at(line)}"
    )
