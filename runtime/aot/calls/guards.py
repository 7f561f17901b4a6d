"""Generate a guard for each program: a Python function that takes the arguments of a call if the
program is for them.

    def take(given):                                    # of f(x), where the program closes
                                                        # over a parameter w
        [x0] = given
        if type(x0) is not T0: return None
        p0 = x0._inner
        if not tensors.check(p0, *outside): return None
        if not (list(map(data_ptr, outside)) == pointers): return None
        if not (list(map(dict_version, dictionaries)) == versions or compare()): return None
        return Call([x0, *leaves], [p0, *inner], [x0, *leaves], KINDS)

It asks what :func:`~.arguments.enter` asks, about tensors of the classes that the first call had.
It returns None where it is not sure. Then the general way decides, which may find the same
program. ``tensors`` compares sizes, strides, dtypes, devices, dispatch keys and ``requires_grad``
with those of the first call. It is a class of torch, in C++, and takes a sixth of the time of the
same in Python. Where the native part has been built, that compares ``outside``, ``dictionaries``
and other objects (:mod:`runtime.native.noted`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...seam.shells import VALUES
from ...session.leaf import as_leaf
from ...session.tensor import unwrap
from ...tape.values import edge_of
from ...torch_private.mode_stacks import unseen_by_classes
from ...trace.generated_code import function
from ..capture.aliasing import Group, has_own_memory, sharing
from ..capture.subclass_parts import handles_functions
from ..python_state.reads import Read
from ..python_state.state_guard import StateGuard
from ..python_state.values import same
from .arguments import Call, Kind, kind_of
from .identities import Apart, Outside, Repeat, none_among
from .numbers import in_range
from .outside_tensors import OutsideTensors
from .plain_tensors import PlainTensors, geometry_of, has_plain_geometry

Take = Callable[[Sequence[Any]], Call | None]
_ALONE = Apart()  # from no tensor of the state


class Sizes(NamedTuple):
    """Hold the condition under which a graph with symbols is right."""

    # gets the sizes and values of the plain arguments ``asked``
    holds: Callable[..., bool]
    # the numbers of these arguments
    asked: Sequence[int]
    # whether the sizes of arguments are symbols
    dynamic: bool


class _Source:
    """Collect the text of one function, and the constants that it refers to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "Call": Call,
            "edge_of": edge_of,
            "sharing": sharing,
            "kind_of": kind_of,
            "same": same,
        }
        # by name of an argument, a tensor with the geometry that it must have
        self.compared: dict[str, torch.Tensor] = {}

    def constant(self, value: object, stem: str = "k") -> str:
        """Give ``value`` a name in the function, and return the name."""
        name = f"{stem}{len(self.names)}"
        self.names[name] = value
        return name

    def require(self, *conditions: str) -> None:
        """Add a line that returns None unless all ``conditions`` hold."""
        if conditions:
            self.lines.append(f"if not ({' and '.join(conditions)}): return None")

    def compare(self, outside: Sequence[torch.Tensor]) -> None:
        """Require that the tensors in ``compared`` and ``outside`` have the geometry of now, and
        that none of them comes twice.

        ``outside``: tensors that are no arguments.
        """
        now = [*self.compared.values(), *outside]
        if not now:
            return
        # one call of C++ for all of them costs less than a question in Python for each
        tensors = self.constant(geometry_of(now), "tensors")
        compared = [*self.compared, *self.unpacked(outside)]
        self.require(f"{tensors}.check({', '.join(compared)})")

    def unpacked(self, constants: Sequence[object]) -> list[str]:
        """Return ``constants`` as an item of a list display, ``["*k7"]``; nothing if there are
        none."""
        if not constants:
            return []
        return [f"*{self.constant(constants)}"]

    def function(self) -> Take:
        """Compile the text."""
        return function(
            ["def take(given):", *(f"    {line}" for line in self.lines)],
            "take",
            "<guard of a compiled program>",
            self.names,
        )


def guard(
    given: Sequence[object],
    kinds: Sequence[Kind],
    closed_over: Sequence[torch.Tensor],
    outside: Sequence[Kind],
    reads: Sequence[Read],
    groups: tuple[Group, ...] | None,
    sizes: Sizes | None,
    tracked: bool,
    alone: Apart = _ALONE,
    state: StateGuard | None = None,
) -> Take | None:
    """Return the function for calls like the one with arguments ``given``, of the kinds ``kinds``.

    ``outside``: the kinds of ``closed_over``. ``groups``: which of the arguments share memory, if
    that matters. ``sizes``: what must hold of symbols. ``alone``: asks whether the program reaches
    the arguments by itself. None if only the general way can decide for such arguments.
    """
    source = _Source()
    names = [f"x{index}" for index in range(len(given))]
    source.lines.append(f"if len(given) != {len(given)}: return None")
    if names:
        source.lines.append(f"[{', '.join(names)}] = given")
    source.require(*_identity_conditions(source, given))
    source.require(*alone.conditions(given, names, source.constant))
    # one question after the other for each argument
    dynamic = sizes is not None and sizes.dynamic
    plain, targets = [], []
    for x, name, kind in zip(given, names, kinds, strict=True):
        inner, target = _pass_argument(source, x, name, kind, dynamic, tracked)
        plain.append(inner)
        # one that is not differentiated has no target
        if target:
            targets.append(target)
    # one question for all tensors that the program closes over or has read
    tensors = OutsideTensors.of(closed_over, outside, tracked)
    if tensors is None:
        return None
    apart = groups is not None and _are_apart(groups, given, tensors.plain)
    reached = PlainTensors(tensors.compared)
    reads = reached.without_facts(reads)
    of_reached = reached.conditions(tensors.placed(apart), source.constant)
    source.compare(reached.compared)
    _require_distinct(source, given, names)
    _require_others(source, reached.noted, alone, names)
    # what C++ cannot compare comes last, since it costs more
    source.require(*of_reached)
    source.require(*tensors.conditions(source.constant))
    source.require(*(read.condition(source.constant) for read in reads))
    _require_state(source, state)
    if sizes is not None:
        _require_sizes(source, sizes, plain, tensors.plain)
    # which tensors share memory; without groups the identities of storages show it
    all_plain = [*plain, *source.unpacked(tensors.plain)]
    if apart:
        _require_apart(source, plain, given, tensors.plain)
    elif groups is not None:
        source.require(f"sharing([{', '.join(all_plain)}]) == {source.constant(groups)}")
    # all holds: return the call
    all_kinds = source.constant([*kinds, *outside])
    all_leaves = [*names, *source.unpacked(tensors.leaves)]
    all_targets = [*targets, *source.unpacked(tensors.targets)]
    source.lines.append(
        f"return Call([{', '.join(all_leaves)}], [{', '.join(all_plain)}], "
        f"[{', '.join(all_targets)}], {all_kinds})"
    )
    take = source.function()
    if any(map(handles_functions, (*given, *closed_over, *reached.compared))):
        return _unseen(take)
    return take


def _unseen(take: Take) -> Take:
    """Return ``take``, whose questions to tensors no ``__torch_function__`` of the user's sees."""

    def take_unseen(given: Sequence[object]) -> Call | None:
        with unseen_by_classes():
            return take(given)

    return take_unseen


def _identity_conditions(source: _Source, given: Sequence[object]) -> list[str]:
    """Return conditions: which arguments are one object, or one that the program reaches itself."""
    repeats = [f"x{index} is x{x.index}" for index, x in enumerate(given) if type(x) is Repeat]
    outside = [(index, x) for index, x in enumerate(given) if type(x) is Outside]
    return [*repeats, *(f"{source.constant(x.stands_for)}(x{index})" for index, x in outside)]


def _require_distinct(source: _Source, given: Sequence[object], names: Sequence[str]) -> None:
    """Require that the tensors among the arguments are different objects.

    The guard in C++ asks that of the tensors that it compares, so nothing is added for these alone.
    """
    tensors = [name for name, x in zip(names, given, strict=True) if isinstance(x, torch.Tensor)]
    if len(tensors) > max(1, len(source.compared)):
        objects = ", ".join(f"id({name})" for name in tensors)
        source.require(f"len({{{objects}}}) == {len(tensors)}")


def _require_others(
    source: _Source, noted: Sequence[torch.Tensor], alone: Apart, names: Sequence[str]
) -> None:
    """Require that no compared argument is one of ``noted``, unless ``alone`` has asked that.

    The guard in C++ asks that of the tensors that it compares together with arguments.
    """
    known = frozenset(map(id, noted))
    asked = source.compared.keys() <= set(names) and known <= alone.known and not alone.leading
    if not asked:
        source.require(*none_among(list(source.compared), known, source.constant))


def _require_state(source: _Source, state: StateGuard | None) -> None:
    """Require that Python's objects are as they were when the program was captured."""
    if state is not None:
        for condition in state.conditions(source.constant):
            source.require(condition)


def _require_sizes(
    source: _Source, sizes: Sizes, plain: Sequence[str], outside: Sequence[object]
) -> None:
    """Require that the graph is right for the sizes and numbers of the call."""
    asked = [_name_of_plain(plain, outside, index, source) for index in sizes.asked]
    source.require(f"{source.constant(sizes.holds)}({', '.join(asked)})")


def _name_of_plain(
    names: Sequence[str], outside: Sequence[object], index: int, source: _Source
) -> str:
    """Return the name of plain argument ``index``. Those after the call's own are ``outside``."""
    if index < len(names):
        return names[index]
    return source.constant(outside[index - len(names)])


def _pass_argument(
    source: _Source, x: object, name: str, kind: Kind, dynamic: bool, tracked: bool
) -> tuple[str, str]:
    """Ask whether ``name`` is like argument ``x``. Return two expressions: what the graph gets, and
    where the gradient goes, which is empty if it is not wanted."""
    wanted = bool(kind[0])
    # `_identity_conditions` has asked for these: a name may stand for a leaf further on
    if type(x) in (Repeat, Outside):
        return source.constant(x), ""
    source.require(f"type({name}) is {source.constant(type(x), 'T')}")
    if not isinstance(x, torch.Tensor):
        if len(kind) == 2:
            _require_number(source, x, name)
        else:
            _require_value(source, x, name)
        return name, ""
    # a tensor of the session, or one of torch that becomes a leaf, or a plain one
    inner, target = name, ""
    value = unwrap(x)
    if type(x) in VALUES:
        inner, target = _pass_session_tensor(source, name, wanted, tracked)
    elif wanted:
        leaf = f"t{name[1:]}"
        source.require(f"{name}.requires_grad")
        source.lines.append(f"{leaf} = {name} = {source.constant(as_leaf)}({name})")
        inner, target, value = f"{leaf}._inner", leaf, unwrap(as_leaf(x))
    elif tracked:
        source.require(f"not {name}.requires_grad")
    _require_geometry(source, value, inner, kind, dynamic)
    return inner, target


def _require_number(source: _Source, value: object, name: str) -> None:
    """Require that ``name`` is a number for which the graph's arithmetic is right: a finite float,
    or an integer of 64 bits. ``value``: the number of the first call."""
    # `inf - inf` and `nan - nan` are NaN
    if type(value) is float:
        source.require(f"{name} - {name} == 0.0")
    else:
        source.require(f"{source.constant(in_range)}({name})")


def _require_value(source: _Source, value: object, name: str) -> None:
    """Require that ``name`` is what ``value`` was in the first call."""
    constant = source.constant(value)
    if type(value) in (bool, int, str, type(None)):
        source.require(f"{name} == {constant}")
    else:  # equality is not enough: ``0.0 == -0.0``
        source.require(f"({name} is {constant} or same({name}, {constant}))")


def _pass_session_tensor(
    source: _Source, name: str, wanted: bool, tracked: bool
) -> tuple[str, str]:
    """Do the same as :func:`_pass_argument` for a tensor of the session.

    ``wanted``: whether its gradient is wanted.
    """
    inner, target = f"p{name[1:]}", ""
    source.lines.append(f"{inner} = {name}._inner")
    # the gradient goes to the node of its history, or to the leaf itself
    if wanted:
        target = f"t{name[1:]}"
        source.lines.append(
            f"{target} = edge_of({name}) if {name}._edge is not None or {name}._view "
            f"is not None else {name}"
        )
        source.require(f"{target} is not None and ({target} is not {name} or {name}._req)")
    elif tracked:
        source.require(
            f"not {name}._req and {name}._edge is None "
            f"and ({name}._view is None or edge_of({name}) is None)"
        )
    return inner, target


def _are_apart(
    groups: tuple[Group, ...], given: Sequence[object], outside: Sequence[torch.Tensor]
) -> bool:
    """Return whether no two tensors share memory, and all have a storage that would show it: memory
    of NumPy may have several."""
    tensors = [*(unwrap(x) for x in given if isinstance(x, torch.Tensor)), *outside]
    plain = not groups and all(map(has_plain_geometry, tensors))
    return plain and all(map(has_own_memory, tensors))


def _require_apart(
    source: _Source, plain: Sequence[str], given: Sequence[object], outside: Sequence[torch.Tensor]
) -> None:
    """Require that no two arguments share memory, nor an argument and a tensor of ``outside``.

    Another condition asks that the tensors of ``outside`` are where they were.
    """
    arguments = [name for name, x in zip(plain, given, strict=True) if isinstance(x, torch.Tensor)]
    # one tensor alone shares memory with none
    if not arguments or len(arguments) + len(outside) == 1:
        return
    known = frozenset(tensor.untyped_storage()._cdata for tensor in outside)
    storages = [f"storage{index}" for index in range(len(arguments))]
    for storage, name in zip(storages, arguments, strict=True):
        source.lines.append(f"{storage} = {name}.untyped_storage()")
    source.require(*(f"{storage}.resizable()" for storage in storages))
    if len(arguments) == 1:
        source.require(f"{storages[0]}._cdata not in {source.constant(known)}")
        return
    numbers = ", ".join(f"{storage}._cdata" for storage in storages)
    source.lines.append(f"found = {{{numbers}}}")
    source.require(f"len(found) == {len(arguments)}")
    if known:
        source.require(f"found.isdisjoint({source.constant(known)})")


def _require_geometry(
    source: _Source, value: torch.Tensor, inner: str, kind: Kind, dynamic: bool
) -> None:
    """Require of the plain tensor ``inner`` what ``kind`` says of ``value``."""
    if dynamic or not has_plain_geometry(value):
        source.require(f"kind_of({inner}, {bool(kind[0])}, {dynamic}) == {source.constant(kind)}")
    else:
        source.compared[inner] = value
