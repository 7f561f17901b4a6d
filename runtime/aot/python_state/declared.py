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
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from ...torch_private.mode_stacks import unseen_by_handlers
from ...trace.provenance import happened_at
from .contents import CachedResults, Cursor, Fact, Parts
from .library_names import LibraryGlobals
from .nodes import Attributes, Cell, Change, ClassNames, ClassParts, FunctionParts, Globals, Node
from .object_graph import ObjectGraph
from .object_kinds import GENERATORS_OF_NUMPY, Registry
from .program_code import is_of_user
from .summary import line_naming

_MAX_NAMED = 4  # objects that an error names
_NODES_OF_CODE = (
    Globals,
    ClassNames,
    ClassParts,
    FunctionParts,
    Cell,
    Fact,
    Cursor,
    Parts,
    Registry,
    CachedResults,
)
_WITHOUT_STATE = (
    FunctionType,
    staticmethod,
    classmethod,
    np.ufunc,
    type(np.prod),  # what numpy makes of a function that another package may take over
    functools._lru_cache_wrapper,
    type(os.environ),
    type,
    enum.Enum,
    functools.partial,
    logging.Logger,
    logging.Manager,
    logging.Handler,
    random.Random,
    *GENERATORS_OF_NUMPY,
)
"""Classes whose objects have attributes and still need not be declared: code, constants, loggers
that only receive texts, and generators of random numbers."""


_UFUNCS = [x for x in vars(np).values() if type(x) is np.ufunc]
_OF_UFUNCS = frozenset(id(getattr(x, "__dict__", x)) for x in _UFUNCS)
"""The identities of the dictionaries with the attributes of NumPy's functions, whose names are
those of methods of tensors."""


class Holdings(ObjectGraph):
    """The objects that the program of ``graph`` can come to from the ``declared`` ones.

    Names of modules and globals of functions do not count: they are not the object's. ``ignore``:
    objects that are no state.
    """

    def __init__(
        self, declared: Iterable[object], ignore: Iterable[Any], graph: ObjectGraph
    ) -> None:
        super().__init__(declared, ignore)
        # They lead where the program's code can follow: by the names that it has, or by all.
        self.code.of_schedulers = set(graph.code.of_schedulers)
        with unseen_by_handlers():
            if graph.code.computed:
                self._look_through_all()
            self.code.learn(graph.code.names, graph.code.words)
            self._drain()
        self._owners = {id(node.owner) for node in self.nodes}

    def has(self, x: object) -> bool:
        """Return whether ``x`` is declared, or a declared object leads to it."""
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
    """Raise ``RuntimeError`` if the program of ``graph`` comes to mutable objects that are not
    ``declared`` and to which none of these leads, or has changed such an object or variable.

    The program has run. ``made``: changes of its that are put back by now. ``carried``: keys of
    places whose values are arguments, as :attr:`Place.key`.
    """
    holdings = Holdings([*declared, *_parts_of_classes(graph)], ignore, graph)
    undeclared = [
        node for node in graph.nodes if not _is_constant(node) and not holdings.has(node.owner)
    ]
    if undeclared:
        _refuse(
            graph, "comes to", [_describe(graph, node) for node in _outermost(undeclared, graph)]
        )
    changes = [change for change in (*graph.changes(), *made) if not _is_ignored(change)]
    changed = [change.what for change in changes if not holdings.has(change.node.owner)]
    if changed:
        _refuse(graph, "changes", changed)
    numbers = _undeclared_numbers(graph, holdings, carried)
    if numbers:
        _refuse(graph, "comes to a number that changes,", numbers)


def _undeclared_numbers(
    graph: ObjectGraph, holdings: Holdings, carried: frozenset[tuple[int, object]]
) -> list[str]:
    """List the names of the places in ``carried`` whose owners ``holdings`` does not have."""
    nodes = {id(node.owner): node for node in graph.nodes if not holdings.has(node.owner)}
    return [
        Change(nodes[owner], label, None, None).what for owner, label in carried if owner in nodes
    ]


def _parts_of_classes(graph: ObjectGraph) -> Iterator[object]:
    """List what Python itself stores in the classes of ``graph``, such as the fields of a data
    class. Of an enum that is the class as a whole, with its members."""
    for node in graph.nodes:
        if not isinstance(node, ClassNames):
            continue
        cls = node.owner
        if issubclass(cls, enum.Enum):
            yield cls
            continue
        for name in list(vars(cls)):
            if name.startswith("__") and name.endswith("__"):
                yield vars(cls)[name]


def _outermost(nodes: Sequence[Node], graph: ObjectGraph) -> list[Node]:
    """List those of ``nodes`` that lead to the others, as many as an error names and one more,
    which tells that there are others."""
    outermost: list[Node] = []
    rest = list(nodes)
    while rest and len(outermost) <= _MAX_NAMED:
        outermost.append(rest[0])
        holdings = Holdings([rest[0].owner], (), graph)
        rest = [node for node in rest[1:] if not holdings.has(node.owner)]
    return outermost


def _describe(graph: ObjectGraph, node: Node) -> str:
    """Return the variable that has the object of ``node``, such as ``'losses' of module (list)``.
    Without a variable, return how the program comes to it."""
    kind = type(node.owner).__name__
    for place in graph.nodes:
        if isinstance(place, Globals):
            names = [name for name, value in place.had.items() if value is node.owner]
            if names:
                return f"{names[0]!r} of {place.name} ({kind})"
        elif isinstance(place, Cell) and place.had[0] is node.owner:
            return f"{place.name} ({kind})"
    return f"{node.name} ({kind})"


def _is_constant(node: Node) -> bool:
    """Return whether the object is code or a constant, as far as its kind says."""
    if not isinstance(node, Attributes):
        return isinstance(node, _NODES_OF_CODE) or id(node.owner) in _OF_UFUNCS
    kind = type(node.owner)
    if kind.__module__ == "typing":
        return True
    # such as a compiled function, or what stands for an argument that is not given
    if not node.own and (issubclass(kind, torch.Tensor) or not is_of_user(kind)):
        return True
    frozen = getattr(vars(kind).get("__dataclass_params__"), "frozen", False)
    return issubclass(kind, _WITHOUT_STATE) or bool(frozen)


def _is_ignored(change: Change) -> bool:
    """Return whether a change is nothing to declare: of a cache of a function, one that is refused
    for a reason of its own, or a note that a library makes for itself, such as that torch has
    looked for a profiler."""
    node = change.node
    if isinstance(node, LibraryGlobals):
        return not node.named(change.label)
    return isinstance(node, (Cursor, Parts))


def _refuse(graph: ObjectGraph, verb: str, names: list[str]) -> None:
    """Raise ``RuntimeError`` with ``the program VERB NAMES``, and the line that has the first."""
    names = list(dict.fromkeys(names))
    shown = names[:_MAX_NAMED]
    if len(names) > _MAX_NAMED:
        shown.append("others")
    line = line_naming(names[0].partition(" (")[0], graph.code.entered.values())
    raise RuntimeError(
        f"the program {verb} {', '.join(shown)}, which state=(…) does not "
        "declare. Name the object, or one that holds it, in state=(…). Or pass it as an argument. "
        f"Or name it in ignore=(…) if nothing depends on it.{happened_at(line)}"
    )
