"""What a backward pass asks of Python's state: what custom Functions and hooks read.

    [reads] = BackwardReads.all_of(state.backward, state.seen.repeated, state.graph.nodes)
    found = reads.look()                # when a call is recorded
    reads.require(found)                # when its backward pass runs

Eager mode reads when the pass runs, and the graph has what was there at the call. So the pass is
refused where that has changed. The functions that the traced pass has entered have a graph of
objects of their own. So have checkpointed functions, which the pass would run once more. What the
program itself changes is compared with what this call has left, since a later one changes it, too.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from ...seam.levels import Value
from ...torch_private.dispatcher import OpOverload
from ...torch_private.mode_stacks import TorchDispatchMode
from ...trace.call_facts import facts_of
from ...trace.provenance import happened_at, here
from .code_names import beginning_of, names_of
from .contents import Cursor, Draws
from .nodes import Cell, FunctionParts, Globals, Named, Node, Place
from .object_graph import ObjectGraph
from .program_code import BackwardEntries, Code, ProgramCode
from .reads import Read, asked_by_name
from .state_guard import StateGuard
from .summary import line_naming
from .values import shown

_ROOT = "tuple."
"""Begins the names of the objects that the variables of functions have: see
:meth:`BackwardReads.of`."""


class RefusedNumbers(TorchDispatchMode):
    """Refuses numbers that the user's code takes from tensors from outside, in a backward pass that
    is traced: the graph would keep them."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a call. ``RuntimeError`` for a number of a tensor from outside."""
        if facts_of(func).reads and not all(map(_is_of_trace, args)):
            raise RuntimeError(
                "a custom Function or a hook takes a number from a tensor, by item(), float() or a "
                "comparison, in the backward pass of a result. A graph would keep it. Compute with "
                f"the tensor, or let the program run backward() itself.{here()}"
            )
        return func(*args, **(kwargs or {}))


def _is_of_trace(argument: object) -> bool:
    """Return whether an argument is no tensor from outside. A value of level 0 is a tensor of the
    session, and comes from outside as a plain one does."""
    if isinstance(argument, Value):
        return bool(argument._level.number)
    return not isinstance(argument, torch.Tensor)


@contextmanager
def at_places(values: Sequence[tuple[Place, Any]]) -> Iterator[None]:
    """Have, while entered, ``values`` at places: what a run has left where the graph has an
    argument, which a backward pass reads after it."""
    before = [(place, place.current()) for place, _ in values]
    # inside of `try`: where an assignment fails, those before it are put back
    try:
        for place, value in values:
            place.put(value)
        yield
    finally:
        for place, value in before:
            place.put(value)


class Found(NamedTuple):
    """What a call has found. ``nodes``: those of the capture if nothing has changed since, as in
    most calls. ``answers``: those of tensors to questions."""

    nodes: list[Node]
    answers: Sequence[Read]


class BackwardReads:
    """Ask for the objects ``nodes``, and for what ``tensors`` say of themselves. ``names``: which
    the functions have that come to them, and ``codes``: their code. ``repeats``: whether these are
    functions that the pass runs once more. ``layers``: identities of the layers that they run."""

    def __init__(
        self,
        nodes: list[Node],
        tensors: Sequence[Read],
        names: ProgramCode,
        codes: Sequence[Code],
        repeats: bool,
        layers: frozenset[int],
    ) -> None:
        self.nodes = nodes
        self._guard = StateGuard(nodes)
        self.tensors = tensors
        self.names = names
        self.codes = codes
        self.repeats = repeats
        self.layers = layers

    @classmethod
    def all_of(
        cls,
        entries: BackwardEntries,
        repeated: BackwardEntries,
        known: Sequence[Node],
    ) -> list[BackwardReads]:
        """Return what functions of the user's may have read: those that a traced pass has entered,
        and those that a pass would run once more. ``known``: the objects to which the program
        comes."""
        found: list[BackwardReads] = []
        if entries.codes:
            entries.refuse_given()
            found.append(cls._of(entries, False, known))
        if repeated.found:
            found.append(cls._of(repeated, True, known))
        return found

    @classmethod
    def _of(
        cls,
        entries: BackwardEntries,
        repeats: bool,
        known: Sequence[Node],
    ) -> BackwardReads:
        """Return what the functions in ``entries`` may have read, as a graph of objects of their
        own. ``repeats``, ``known``: see :meth:`all_of` and the class."""
        codes = list(entries.codes.values())
        # in a tuple, as the code of an object that is found has not run
        graph = ObjectGraph([(*entries.found.values(), *entries.layers.values())])
        for code, names in codes:
            graph.enter(code, names)
        for module in _modules_of(known):
            graph.enter_module(module)  # a function may import it by any name
        variables = {name for code, _ in codes for name in code.co_freevars}
        cells = [node for node in known if isinstance(node, Cell) and node.variable in variables]
        # eager mode has asked for the hooks of layers at the call, unless the layers run again
        run = frozenset(entries.layers)
        hooks = set() if repeats else _hooks_of_layers(graph.nodes, run)
        nodes = [
            node for node in graph.nodes if _may_be_asked(node) and id(node.owner) not in hooks
        ]
        # The graph above begins at values. The variables that have them, and what holds the
        # functions, are nodes of the program. A call may take values of these as arguments, which
        # it does not compare; the pass reads them all the same.
        shared = [*cells, *_holders(known, entries.codes), *_functions(known, entries.codes)]
        nodes += map(_apart, shared)
        return cls(nodes, list(graph.tensors.values()), graph.code, codes, repeats, run)

    def look(self) -> Found:
        """Return the objects with what they have now, and what tensors answer to the questions for
        which the functions have names, such as ``_version``."""
        answers = asked_by_name(
            self.names.names | self.names.words, [read.owner for read in self.tensors]
        )
        if self._guard.holds():
            return Found(self.nodes, answers)
        # copies: the nodes themselves have what the capture has found, which each call asks first
        found = list(map(copy.copy, self.nodes))
        for node in found:
            node.renew()
        return Found(found, answers)

    def require(self, found: Found) -> None:
        """Raise ``RuntimeError`` if an object has something else than it had when it was
        ``found``."""
        nodes = found.nodes
        # nothing has changed between the capture and the call, nor since: one question for all
        if nodes is self.nodes and self._guard.holds():
            nodes = []
        for node in nodes:
            if node.holds():
                continue
            asked = [label for label, _, _ in node.differences() if self._is_asked(node, label)]
            if asked:
                name = node.name.removeprefix(_ROOT)
                self._refuse(name if asked[0] is None else f"{shown(asked[0])} of {name}")
        for read in (*self.tensors, *found.answers):
            if not read.holds():
                self._refuse(str(read))

    def _is_asked(self, node: Node, label: object) -> bool:
        """Return whether the functions may ask for what the object has at ``label``. Only torch's
        own code asks a layer for its flags, which it calls."""
        if not isinstance(node.owner, torch.nn.Module) or self.names.may_have(str(label)):
            return True
        runs = self.repeats or id(node.owner) in self.layers
        return runs and _may_run_on(type(node.owner), str(label))

    def _refuse(self, what: str) -> None:
        """Raise ``RuntimeError``: ``what`` has changed since the call."""
        where = "in a custom Function or in a hook"
        if self.repeats:
            where = "in a checkpointed function"
        line = line_naming(what, self.codes)
        if line is None and self.codes:
            line = beginning_of(self.codes[0][0])
        raise RuntimeError(
            f"the backward pass of a captured program reads {what}, {where}, and that has changed "
            "since the call. In eager mode the pass would read the new value, and a graph has that "
            "of the call. Change it after the pass, or let the program run backward() itself."
            f"{happened_at(line)}"
        )


@functools.cache
def _names_in(layer: type) -> frozenset[str]:
    """Return the names in the methods of a class of layers, without those of each module, such as
    ``train()``."""
    classes = [cls for cls in layer.__mro__ if cls not in (torch.nn.Module, object)]
    values = chain.from_iterable(vars(cls).values() for cls in classes)
    methods = [value for value in values if isinstance(value, FunctionType)]
    return frozenset(chain.from_iterable(names_of(method.__code__).every for method in methods))


def _may_run_on(layer: type, label: str) -> bool:
    """Return whether a layer of this class that runs may ask itself for ``label``: a dropout for
    ``training``, and a linear layer not. The tables of parameters, layers and hooks have names that
    begin with an underscore."""
    return label.startswith("_") or label == "forward" or label in _names_in(layer)


def _hooks_of_layers(nodes: Iterable[Node], run: frozenset[int]) -> set[int]:
    """Return the identities of the dictionaries of hooks of layers, but of those that the pass has
    ``run``. Eager mode has asked for them at the call."""
    owners = [node.owner for node in nodes if id(node.owner) not in run]
    layers = [owner for owner in owners if isinstance(owner, torch.nn.Module)]
    attributes = chain.from_iterable(vars(layer).items() for layer in layers)
    return {id(table) for name, table in attributes if "hook" in name}


def _apart(node: Node) -> Node:
    """Return ``node`` with no value that is an input of the program, which no call compares."""
    copied = copy.copy(node)
    copied.free = frozenset()
    return copied


def _holders(nodes: Iterable[Node], codes: Mapping[int, Code]) -> Iterator[Node]:
    """Yield what holds the functions that have run, such as the class of a Function: another one
    may take the place."""
    for node in nodes:
        if not isinstance(node, Named):
            continue
        labels = [name for name, value in node.had.items() if id(_code_of(value)) in codes]
        if labels:
            holder = copy.copy(node)
            holder.had = {name: node.had[name] for name in labels}
            yield holder


def _functions(known: Sequence[Node], codes: Mapping[int, Code]) -> Iterator[Node]:
    """Yield the functions that have run, and partial ones of these: what they take by default may
    be another value when the pass runs."""
    owners = [node.owner for node in known if isinstance(node.owner, functools.partial)]
    partials = [owner for owner in owners if id(_code_of(owner)) in codes]
    # the arguments by keyword are a dictionary, which has a node of its own
    parts = {*map(id, partials), *(id(owner.keywords) for owner in partials)}
    for node in known:
        is_function = isinstance(node, FunctionParts) and id(node.owner.__code__) in codes
        if is_function or id(node.owner) in parts:
            yield node


def _code_of(x: object) -> object:
    """Return the code of a function, of a method of a class or of a partial function; None of
    anything else."""
    while isinstance(x, functools.partial):
        x = x.func
    if isinstance(x, (staticmethod, classmethod, MethodType)):
        x = x.__func__
    if isinstance(x, FunctionType):
        return x.__code__
    return None


def _modules_of(nodes: Iterable[Node]) -> Iterator[ModuleType]:
    """Yield the modules whose names are among the objects of a program."""
    for node in nodes:
        if isinstance(node, Globals):
            # by the name that the globals have; another module may have come under it
            module = sys.modules.get(str(node.owner.get("__name__")))
            if module is not None and vars(module) is node.owner:
                yield module


def _may_be_asked(node: Node) -> bool:
    """Return whether it can be asked later what an object has: other code draws and iterates."""
    return node.watched and not isinstance(node, (Cursor, Draws))
