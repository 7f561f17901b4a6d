"""Python's state around a capture.

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return x - self.mean

A program may have to be run several times until its graph is known. Each run begins with what the
first one found, and so does the caller after an error. What the last run has changed, each call
changes again: here it assigns ``calls``. ``self.mean`` is a value of the trace when the program has
returned, which nothing may find afterwards: ``jit`` makes it a result of the graph."""

from __future__ import annotations

import functools
import gc
import random
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any, NoReturn, TypeVar

import torch

from ...seam.ambient import Ambient
from ...seam.levels import Value
from ...seam.user_code import LeftErrors, as_door
from ...trace.provenance import Line, happened_at, here
from ...trace.random_states import refuse_states
from ...trace.symbols import SYMBOLIC
from .closed_over import computed_at, holds_values
from .contents import Cursor, Draws
from .declared import refuse_undeclared
from .entry_hook import Seen, watching
from .nodes import Attributes, Change, Named, Node, OneByOne, Place
from .object_graph import ObjectGraph, early_graph
from .object_kinds import PLAIN, is_constant, row_of
from .opaque_objects import opaque_objects_named, refuse_opaque_objects
from .program_code import BackwardEntries, Code, is_of_ours, is_of_user
from .reads import Read, asked_by_name
from .snapshot import Order, new_order
from .state_guard import StateGuard
from .summary import line_naming
from .trusted import is_importable
from .values import (
    CONTAINERS_OF_TREES,
    MISSING,
    SIMPLE,
    attributes_of,
    containers_in,
    is_tree,
    parts_of_function,
    referent_of,
    slots_of,
)

_NOT_MADE = (*PLAIN, ModuleType, weakref.ref)
"""Classes of results that each call may return as the program has made them."""
R = TypeVar("R")


def _is_place(change: Change) -> bool:
    """Return whether what was changed can be assigned by itself. A variable has one value."""
    single = change.label is not None or isinstance(change.node.had, tuple)
    return single and isinstance(change.node, OneByOne)


def _is_value(x: Any) -> bool:
    """Return whether ``x`` is a value of a trace, or a number that is a symbol there."""
    kind = type(x)
    return kind in SYMBOLIC or (issubclass(kind, Value) and x._level.number > 0)


def _parts_of(value: object) -> Iterator[object]:
    """Yield ``value``, or what is in it if it is a tuple."""
    if not isinstance(value, tuple):
        yield value
        return
    for item in value:
        yield from _parts_of(item)


def holds(value: object, x: object) -> bool:
    """Return whether ``value`` is ``x``, or a tuple with ``x`` inside."""
    return any(part is x for part in _parts_of(value))


def shortly(names: Sequence[str]) -> str:
    """Return the first few of ``names``, and how many more there are."""
    more = [f"{len(names) - 4} more"] if len(names) > 4 else []
    return ", ".join([*names[:4], *more])


class Effects:
    """What each call does to Python's state after its graph has run. ``changes``: what it assigns.
    ``repeats``: whether that is all that the program did: an object that it made would have to be
    made anew. ``left``: names of places to which the call assigns a result of the graph, and finds
    another value the next time. ``line``: where the program begins."""

    def __init__(
        self,
        changes: Sequence[Change],
        repeats: bool,
        left: Sequence[str] = (),
        line: Line | None = None,
    ) -> None:
        self.changes = changes
        self.repeats = repeats
        self.left = left
        self.line = line

    def told(self) -> Effects:
        """Warn of these effects, and return none."""
        if self.changes:
            warnings.warn(
                f"the program changes {self.what}. It does so when it is compiled, and in no "
                "call, and its graph keeps what it has found. Do that outside of it, or hold the "
                "number in a tensor.",
                UserWarning,
                stacklevel=2,
            )
        return Effects((), True)

    def carry_out(self) -> None:
        """Make the changes again."""
        for change in self.changes:
            change.node.redo(change)

    @property
    def names(self) -> list[str]:
        """List the places that a call changes."""
        return list(dict.fromkeys([*(change.what for change in self.changes), *self.left]))

    @property
    def what(self) -> str:
        """Return how a message names the first of these places. Without any, only a cache has
        changed."""
        return shortly(self.names or ["a cache"])


class _Run(Ambient):
    """``state``: of the innermost program that this thread runs under capture."""

    state: ProgramState | None = None


RUN = _Run()


def _leaves(x: Any) -> list[Any]:
    """Return what containers of Python's hold, at any depth that is no cycle."""
    found: list[Any] = []
    seen: set[int] = set()
    pending = [x]
    while pending:
        part = pending.pop()
        kind = type(part)
        if kind not in CONTAINERS_OF_TREES:
            found.append(part)
        elif id(part) not in seen:
            seen.add(id(part))
            pending += part.values() if issubclass(kind, dict) else part
    return found


class ProgramState:
    """What one capture of a program finds in Python's state, and what it changes. ``roots``: what
    is known before it runs. ``ahead``: code that is known to run. ``declared``: the only objects
    whose state the program may come to; None if it may come to any."""

    def __init__(
        self,
        roots: Iterable[object],
        ignore: Iterable[Any] = (),
        ahead: Iterable[Code] = (),
        declared: Sequence[object] | None = None,
    ) -> None:
        roots, self._ignore, self._declared = list(roots), list(ignore), declared
        self.early = early_graph(roots, ignore)
        self.graph = ObjectGraph(roots, ignore, ahead)
        self.seen = Seen()
        self._raised: BaseException | None = None
        self.guard: StateGuard | None = None  # when the capture has ended
        self._made: Sequence[Change] = ()  # which are put back
        self.backward = BackwardEntries()
        # what the run has left at the places whose values are arguments of the graph
        self.left: Sequence[tuple[Place, Any]] = ()
        # keys of the places that the program has changed
        self.written: frozenset[tuple[int, Any]] = frozenset()

    def watched(self, capture: Callable[[], R], is_general: bool = False) -> R:
        """Run ``capture``. The graph learns which functions the user's code enters.
        ``is_general``: whether sizes or numbers are symbols."""
        around, RUN.state = RUN.state, self
        try:
            errors = LeftErrors(here, is_general)
            with watching(self.graph, errors) as self.seen:
                return capture()
        except BaseException as error:
            if errors.is_of_program(error):
                self._raised = error
            raise
        finally:
            RUN.state = around

    def places_of(self, tensors: Iterable[torch.Tensor]) -> list[Read]:
        """Return where ``tensors`` and those of the graph are, and what else they say of
        themselves, as far as the program's code has names for such questions, or texts that
        ``getattr`` may look up."""
        code = self.graph.code
        return asked_by_name(
            code.names | code.words,
            [*tensors, *(read.owner for read in self.graph.tensors.values())],
        )

    def _empty_caches(self, all_of_them: bool) -> None:
        """Empty each cache of a function that has kept a value of the trace, or ``all_of_them`` to
        which the run has added: what it has computed has had effects, which are undone."""
        for node in self.graph.nodes:
            if not isinstance(node.owner, functools._lru_cache_wrapper):
                continue
            if not node.changes() and not any(node.owner is cache for cache in self.seen.cleared):
                continue
            # a cache of C tells nobody but Python's collector what it holds
            if all_of_them or any(map(self._holds_value, gc.get_referents(node.owner))):
                node.owner.cache_clear()

    @as_door
    def restore(self) -> None:
        """Let each object have what it had before the first run."""
        self._empty_caches(True)
        self.graph.restore()
        self._made = ()

    def raises(self, error: BaseException) -> bool:
        """Return whether the program itself has raised ``error`` in the run that was last, as it
        does in eager mode."""
        raised, self._raised = self._raised, None  # an error holds the values of its call
        return error is raised

    def lost(self) -> list[str]:
        """Say what the program has done that nobody can undo, after :meth:`restore`: items that it
        has taken from an iterator that cannot be put back, or a child of a generator."""
        found = [f"{cursor.movement} {cursor.name}" for cursor in self._moved_cursors()]
        if self.seen.goes_on:
            found.append("gone on after this refusal")
        elif not self.seen.met_opaque:
            found += [f"perhaps changed {name}" for _, name in opaque_objects_named(self.graph)]
        return found

    def refuse_moved(self) -> None:
        """Raise ``RuntimeError`` if the program has moved an iterator or a random generator."""
        for cursor in self._moved_cursors():
            self._refuse_moved(cursor)

    def _moved_cursors(self) -> list[Cursor]:
        """List what the program has moved and may not move."""
        cursors = (node for node in self.graph.nodes if isinstance(node, Cursor))
        return [cursor for cursor in cursors if not cursor.watched and cursor.changes()]

    @as_door
    def changes(self) -> list[Change]:
        """Return what the program has changed."""
        return self.graph.changes()

    @as_door
    def refuse_traced_states(self) -> None:
        """Raise ``RuntimeError`` if the program has assigned the state or the seed that a random
        generator of torch's has in the trace alone."""
        for change in self.graph.changes():
            refuse_states(_leaves(change.now), self._line_of(change))

    @as_door
    def results(self, changes: Sequence[Change] | None = None) -> list[Change]:
        """Return the changes whose values a graph has to return: each assigns what holds a value of
        the trace. ``RuntimeError`` for a container that has got one and cannot be assigned to by
        the place. ``changes``: all that the program has changed, if that is known."""
        found = []
        for change in self.changes() if changes is None else changes:
            # by the class first: a label may be a key whose `==` is the user's code
            if (
                type(change.label) is str
                and change.label == "__dict__"
                and isinstance(change.node, Attributes)
            ):
                self._refuse_dictionary(change)
            if self._holds_value(change.label):  # a key
                self._refuse_value(change)
            if self._holds_value(change.now):
                if not _is_place(change):
                    self._refuse_value(change)
                self._refuse_cycle(change)
                found.append(change)
        return found

    @as_door
    def _refuse_cycle(self, change: Change) -> None:
        if not is_tree(change.now):
            raise RuntimeError(
                f"the program assigns a {type(change.now).__name__} that holds itself to "
                f"{change.what}. A call would not make it anew. Assign tensors and constants, or a "
                f"tuple, list or dictionary of these.{self._line_of(change)}"
            )

    def _refuse_dictionary(self, change: Change) -> NoReturn:
        """Refuse that an object has other attributes all at once, which no node knows."""
        raise RuntimeError(
            f"the program assigns to the __dict__ of {change.node.name}. A call would not do that. "
            f"Assign to the attributes, or let __dict__.update() do so.{self._line_of(change)}"
        )

    def _line_of(self, change: Change) -> str:
        line = line_naming(str(change.label), self.graph.code.entered.values())
        return happened_at(line or self.graph.code.first_line)

    def made_anew(self, changes: Sequence[Change], found: Callable[[Any], bool]) -> list[Change]:
        """Return the changes that assign a container of Python's own that the program has made,
        with constants inside, or one of the call's, which it has ``found``."""
        places = [change for change in changes if _is_place(change) and is_tree(change.now)]
        return [change for change in places if found(change.now) or self._is_new(change.now, found)]

    def orders(self, changes: Sequence[Change]) -> dict[int, Order]:
        """Return the orders that ``changes`` leave, by identity of the owner."""
        nodes = {
            id(change.node): change.node for change in changes if isinstance(change.node, OneByOne)
        }.values()
        return {id(node.owner): new_order(node, node.first_order()) for node in nodes}

    def _is_new(self, x: Any, found: Callable[[Any], bool]) -> bool:
        """Return whether the program has made the container ``x``, of what was there, of what a
        call has ``found``, and of further such containers."""
        if type(x) not in CONTAINERS_OF_TREES or self.graph.knows(x):
            return False
        inside = [*x, *x.values()] if isinstance(x, dict) else x
        return all(self.graph.knows(y) or found(y) or self._is_new(y, found) for y in inside)

    @as_door
    def refuse_made(self, what: str, x: object) -> None:
        """Refuse an object that the program has made and that a call would not make anew. It is, or
        is inside of, what the program assigns to ``what``."""
        values = self._values_in(x)
        if not values and (self.graph.knows(x) or isinstance(x, Enum)):
            return
        inside = ", with a tensor that it computes inside," if values else ", which it has made,"
        raise RuntimeError(
            f"the program assigns a {type(x).__name__}{inside} to {what}. A call would not make "
            "it anew. Assign tensors and constants, or a tuple, list or dictionary of these."
            f"{computed_at(values) or happened_at(self.graph.code.first_line)}"
        )

    def refuse_parameter(self, what: str) -> NoReturn:
        """Refuse a parameter that the program makes and assigns to ``what``. It would be a leaf of
        each call's own, to which no result of the call leads back."""
        raise RuntimeError(
            f"the program makes a Parameter and assigns it to {what}. A call would put a tensor "
            "there. Make it outside of the program, or before its first call."
            f"{happened_at(self.graph.code.first_line)}"
        )

    @as_door
    def refuse_returned(self, x: object) -> None:
        """Refuse a result that may change, if the program has made it: all calls would return one
        object."""
        if isinstance(x, Enum) or is_of_ours(type(x)) or holds_values(x):
            return  # one with tensors is refused where the graph gets its results
        inside = "which it has made and which may change"
        if not self._may_change(x):
            if not self._values_in(x):
                return
            inside = "with a tensor or number that it computes inside"
        raise RuntimeError(
            f"the program returns a {type(x).__name__}, {inside}. "
            "A call would not make it anew. Return tensors and constants, or a tuple, list, "
            "dictionary or data class of these, and make it outside of the program."
            f"{happened_at(self.graph.code.first_line)}"
        )

    @as_door
    def refuse_factory(self, factory: object) -> None:
        """Refuse a function that makes what a dictionary lacks, if it holds values of the trace."""
        values = self._values_in(factory)
        if values:
            raise RuntimeError(
                "the program makes a defaultdict whose factory holds a tensor or number that it "
                "computes. A call would not make it anew. Put the items in, or make the dictionary "
                f"outside.{computed_at(values) or happened_at(self.graph.code.first_line)}"
            )

    @as_door
    def refuse_returned_cycle(self, result: object) -> None:
        """Refuse a result that holds itself, which has no leaves to take it apart into."""
        if not is_tree(result):
            raise RuntimeError(
                "the program returns a container that holds itself. Return what is in it."
                f"{happened_at(self.graph.code.first_line)}"
            )

    def holders(self, wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, Place | None]]:
        """Yield each ``wanted`` object of the state with a place that had it before the program,
        also in a tuple there. With None for one to which no place leads."""
        held = set[int]()
        for node in self.graph.nodes:
            if not isinstance(node, OneByOne):
                continue
            bare = node.without_memory()
            for label, value in node.values_before():
                for x in filter(wanted, _parts_of(value)):
                    held.add(id(x))
                    yield x, Place(bare, label)
        for node in self.graph.nodes:
            if wanted(node.owner) and id(node.owner) not in held:
                yield node.owner, None

    def values_before(self) -> Callable[[Place], Any]:
        """Return a function that gives what was at a place before the program, or is there now if
        the program does not come to it."""
        nodes: dict[int, list[OneByOne]] = {}
        for node in self.graph.nodes:
            if isinstance(node, OneByOne):
                nodes.setdefault(id(node.owner), []).append(node)

        def value(place: Place) -> Any:
            known = nodes.get(id(place.node.owner))
            if known is None:
                return place.current()
            for node in known:
                for label, before in node.values_before():
                    if label == place.label:
                        return before
            return MISSING

        return value

    @as_door
    def refuse_kept(self, given: Sequence[object]) -> None:
        """Refuse that what the program has changed holds one of ``given``, which are copies: of
        containers that it is given as arguments."""
        if not given:
            return
        ids = set(map(id, given))
        for change in self.changes():
            copies = self._found_in(change.now, lambda part: id(part) in ids)
            if copies:
                raise RuntimeError(
                    f"the program puts a {type(copies[0]).__name__} that it is given as an "
                    f"argument into {change.what}, where a call would not put it. Assign it to an "
                    "attribute or an item, alone or in a new tuple, list or dictionary."
                    f"{self._line_of(change)}"
                )

    def _may_change(self, x: Any) -> bool:
        """Return whether an object that the program has made has values that somebody may
        replace."""
        kind = type(x)
        if issubclass(kind, torch.Generator):
            return not self.graph.knows(x)
        if issubclass(kind, _NOT_MADE) or is_of_ours(kind) or self.graph.knows(x):
            return False
        if kind is FunctionType:
            held = parts_of_function(x)
            return bool(x.__dict__) or any(map(self._may_change, held))
        row = row_of(x)
        if row is not None:
            return row.node is not None or any(map(self._may_change, row.below(x)))
        if attributes_of(x) is not None or (slots_of(kind) and is_of_user(kind)):
            return True
        # of classes of Python's own, such as Fraction, slots stay as they are
        return not (slots_of(kind) or is_constant(x))

    def refuse_shared(
        self, places: Sequence[str], values: Sequence[object], found: Callable[[Any], bool]
    ) -> None:
        """Refuse a container that is inside of what the program assigns to two places, as a call
        would make two of it. ``found``: whether the program has found it, and not made it."""
        owners: dict[int, str] = {}
        for place, value in zip(places, values, strict=True):
            for x in containers_in(value):
                first = owners.setdefault(id(x), place)
                if first != place and not (self.graph.has(x) or found(x)):
                    raise RuntimeError(
                        f"the program assigns one {type(x).__name__} to {first} and to "
                        f"{place}. A call would make two of it. Assign a copy."
                        f"{happened_at(self.graph.code.first_line)}"
                    )

    def _holds_value(self, x: object) -> bool:
        """Return whether ``x`` is a value of a trace, or a number that is a symbol there, or holds
        one in what the program has made."""
        return bool(self._values_in(x))

    def _values_in(self, x: object) -> list[object]:
        return self._found_in(x, _is_value)

    def _found_in(self, x: object, wanted: Callable[[Any], bool]) -> list[object]:
        """Return what is ``wanted`` of ``x`` and of what that holds."""
        # with the objects, whose identities then stay theirs
        seen: dict[int, Any] = {}
        found: list[object] = []
        pending: list[Any] = [x]
        # Without a bound, as the last of many may be a value of the trace. References from what a
        # program makes seldom lead far: they end at classes, modules and what was there before.
        while pending:
            part = pending.pop()
            kind = type(part)
            if kind is slice:
                pending += [part.start, part.stop, part.step]
            if kind in SIMPLE or id(part) in seen:
                continue
            if wanted(part):
                found.append(part)
            elif not issubclass(kind, torch.Tensor) and kind not in SYMBOLIC:
                seen[id(part)] = part
                pending += self._inside(part)
        return found

    def _inside(self, x: Any) -> Iterable[object]:
        """Return what an object holds that the program has made. What was there before has nodes of
        its own."""
        kind = type(x)
        if self.graph.has(x):
            return ()
        if issubclass(kind, (type, ModuleType)):
            return () if is_importable(x) else vars(x).values()
        # by Python's collector, since the methods of a subclass are the user's code
        if issubclass(kind, (dict, list, tuple, set, frozenset, deque)):
            own = attributes_of(x) or {}
            return [*gc.get_referents(x), *own.values()]
        if self.graph.knows(x):
            return ()
        if kind is FunctionType:
            return [*parts_of_function(x), *x.__dict__.values()]
        if issubclass(kind, weakref.ref):  # to what a call would make anew
            return [referent_of(x), *gc.get_referents(x)]
        return gc.get_referents(x)

    def _refuse_value(self, change: Change) -> NoReturn:
        """Raise for a tensor or number of the trace in a container from outside, which has no place
        for it that a call could assign to."""
        kind = type(change.node.owner).__name__
        values = self._values_in((change.label, change.now))
        raise RuntimeError(
            f"the program adds a tensor or number that it computes to a {kind} "
            f"from outside, {change.node.name}. A call would not do that. "
            "Return it, and add it outside of the compiled function."
            f"{computed_at(values)}"
        )

    def returned(self) -> None:
        """Learn that the program has returned for the last time."""
        self._empty_caches(False)

    @as_door
    def put_back(self, changes: Sequence[Change]) -> None:
        """Undo ``changes``, which a call makes in another way or not at all."""
        self._made = [*self._made, *changes]
        for change in changes:
            assert isinstance(change.node, OneByOne)
            change.node.assign(change.label, change.before)

    def leave_assigned(self) -> None:
        """Put back what the program has assigned and no call assigns. ``RuntimeError`` if the
        program reads such a place."""
        found = self.results()
        what = ", ".join(change.what for change in found)
        if any(map(self._is_read, found)):
            raise RuntimeError(
                f"the program reads and assigns {what}, and what it assigns is a tensor that "
                "it computes. A graph would not do that. Let it write to the tensor by copy_(), "
                "or return the new one, or use runtime.jit, which assigns it in each call."
                f"{computed_at([change.now for change in found])}"
            )
        self.put_back(found)
        if found:
            warnings.warn(
                (
                    f"the program assigns a tensor that it computes to {what}. "
                    "A compiled program leaves it as it was. Return the tensor, "
                    "or use runtime.jit, which assigns it in each call."
                ),
                UserWarning,
                stacklevel=2,
            )

    def _is_read(self, change: Change) -> bool:
        """Return whether the program may read what it assigns, and not only assign it."""
        code = self.graph.code
        if not isinstance(change.node, Named):
            return True
        return code.computed or change.label in code.loaded or change.label in code.words

    def effects(self, carried: frozenset[tuple[int, object]], left: Sequence[str] = ()) -> Effects:
        """Return what each call does again. ``carried``: keys of places that it assigns in another
        way. ``left``: names of further ones. ``RuntimeError`` for what no call can do again."""
        self._warn_of_clocks()
        if self._declared is not None:
            refuse_undeclared(self.graph, self._declared, self._ignore, self._made, carried)
        if self.graph.large:
            warnings.warn(
                f"the program may read {', '.join(self.graph.large)}, which a call does not "
                "compare. Pass it as a tensor.",
                UserWarning,
                stacklevel=2,
            )
        found: list[Change] = []
        # a cache that is filled again has other results, and as many as before
        repeats = not any(map(self.graph.knows, self.seen.cleared))
        for change in self.changes():
            if (id(change.node.owner), change.label) in carried:
                continue
            if not change.node.watched:
                self._refuse_moved(change.node)
            if change.node.puts:
                found.append(change)
            repeats = repeats and change.node.puts and self.graph.knows_all(change)
        refuse_opaque_objects(self.graph)
        # after the loop, which refuses an iterator that has moved and that no call asks for
        self._watch_reads()
        self.written = frozenset((id(change.node.owner), change.label) for change in found)
        # what was there before is not the program's to keep alive
        unlinked = [change._replace(before=None) for change in found]
        return Effects(unlinked, repeats, left, self.graph.code.first_line)

    def _watch_reads(self) -> None:
        """Let a call ask how far each iterator, file and random generator is that the program may
        have read, and has not moved. The hook sees each call of a method of Python's random
        generators, so that of these the name is no matter."""
        named = self.graph.code.named_objects(self.graph.nodes, self.graph.roots)
        for node in self.graph.nodes:
            if isinstance(node, Cursor):
                x = node.owner
                may_read = id(x) in named and not isinstance(x, random.Random)
                called = id(x) in self.seen.moved
                node.watched = called or may_read or self.graph.code.reads_state_of(x)

    def _warn_of_clocks(self) -> None:
        """Warn that a graph keeps what a clock said, or the seed of a generator, at the capture."""
        for name, line in self.seen.asked.items():
            warnings.warn(
                f"the program calls {name}, and its graph keeps what that has returned."
                f"{happened_at(line)}",
                UserWarning,
                stacklevel=2,
            )

    def _refuse_moved(self, node: Node) -> NoReturn:
        """Refuse that the program has moved a random generator of Python's or an iterator."""
        # the surest line first: of the call, of any `next`, of the name, of the program
        line = happened_at(
            self.seen.moved.get(id(node.owner))
            or self.seen.advanced
            or line_naming(node.name, self.graph.code.entered.values())
            or self.graph.code.first_line
        )
        kind = type(node.owner).__name__
        if isinstance(node, Draws):
            raise RuntimeError(
                f"the program draws from {node.name}, a {kind} of Python's or NumPy's. A graph "
                "keeps the numbers of the capture. Draw outside of it and pass the number, or "
                f"draw by torch.rand.{line}"
            )
        raise RuntimeError(
            f"the program takes items from {node.name}, a {kind}. No call would take the next "
            f"ones. Take them outside, and pass them.{line}"
        )

    def moved(self) -> list[tuple[Node, Any, Any, Any]]:
        """Return what is not as the program has found it: the node, the label, what was there, what
        is."""
        return [
            (node, *difference)
            for node in self.graph.nodes
            if node.watched
            for difference in node.differences()
        ]

    def settle(
        self,
        carried: frozenset[tuple[int, object]],
        containers: Collection[int],
        effects: Effects,
        undo: bool,
    ) -> StateGuard:
        """Return what a call asks. ``carried``: keys of places whose values are arguments of the
        graph. ``containers``: the identities of those whose contents are arguments, too. ``undo``:
        whether the first call may fail, as its numbers may be on the other side of a branch. It
        makes the ``effects`` like any other one, so that the capture leaves none.
        """
        by_owner: dict[int, set[Any]] = {}
        for owner, label in carried:
            by_owner.setdefault(owner, set()).add(label)
        for node in self.graph.nodes:
            node.free = frozenset(by_owner.get(id(node.owner), ()))
        asked = [node for node in self.graph.nodes if id(node.owner) not in containers]
        guard = self.guard = StateGuard(asked)
        if effects.changes or not effects.repeats:
            # not by the guard's own question, which would keep what is let go below
            guard.stays = self.graph.holds()
        if undo and effects.changes:
            self.restore()
        # before the graph forgets them
        guard.opaque = tuple(dict.fromkeys(name for _, name in self.graph.opaque))
        self.graph.settle()
        self.early.nodes.clear()
        self.early.settle()
        return guard
