"""The way from the arguments of a call to a program that is already compiled: one generated Python
function for each program.

    def take(given):                                    # of f(x), where the program closes
                                                        # over a parameter w
        [x0] = given
        if type(x0) is not T0: return None
        p0 = x0._inner
        if not (list(map(data_ptr, outside)) == pointers): return None
        if not tensors.check(p0, *outside): return None
        if not (list(map(dict_version, dictionaries)) == versions or compare()): return None
        return Call([x0, *leaves], [p0, *inner], [x0, *leaves], KINDS)

It asks what :func:`~.arguments.enter` asks, about tensors of the classes that the first call had.
It returns None where it is not sure. Then the general way decides, which may find the same
program. ``tensors`` compares sizes, strides, dtypes, devices, dispatch keys and ``requires_grad``
with those of the first call. It is a class of torch's, in C++, and takes a sixth of the time of
the same in Python."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...seam.shells import VALUES
from ...session.leaf import as_leaf
from ...session.tensor import unwrap
from ...tape.values import edge_of
from ...torch_private.graph_parts import TensorGuards
from ...trace.generated_code import function
from ..capture.aliasing import Group, sharing
from ..python_state.reads import FACTS, Read
from ..python_state.state_guard import StateGuard
from ..python_state.values import same
from .arguments import Call, Kind, kind_of
from .identities import Apart, Outside, Repeat
from .numbers import in_range
from .outside_tensors import OutsideTensors, has_plain_geometry

Take = Callable[[Sequence[Any]], Call | None]
_ALONE = Apart()  # from no tensor of the state
_is_leaf = operator.attrgetter("is_leaf")


class Sizes(NamedTuple):
    """``holds`` of the plain arguments ``asked``: whether their sizes and values are such that the
    graph is right. ``dynamic``: whether the sizes of arguments are symbols."""

    holds: Callable[..., bool]
    asked: Sequence[int]
    dynamic: bool


class _Source:
    """The text of one function, and the constants that it refers to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "Call": Call,
            "edge_of": edge_of,
            "sharing": sharing,
            "kind_of": kind_of,
            "same": same,
        }
        # by name, a tensor that has the sizes and the like which are asked for
        self.compared: dict[str, torch.Tensor] = {}
        self.outside: dict[int, torch.Tensor] = {}  # by identity, the same of no argument

    def constant(self, value: object, stem: str = "k") -> str:
        name = f"{stem}{len(self.names)}"
        self.names[name] = value
        return name

    def require(self, *conditions: str) -> None:
        if conditions:
            self.lines.append(f"if not ({' and '.join(conditions)}): return None")

    def compare(self) -> None:
        """Require of the tensors in ``compared`` and ``outside`` that they are as they are now, and
        that none of them comes twice."""
        outside = list(self.outside.values())
        now = [*self.compared.values(), *outside]
        if not now:
            return
        sizes: Any = [list(tensor.shape) for tensor in now]
        strides: Any = [list(t.stride()) for t in now]
        tensors = self.constant(
            TensorGuards(*now, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides),
            "tensors",
        )
        compared = [*self.compared, *self.unpacked(outside)]
        self.require(f"{tensors}.check({', '.join(compared)})")

    def unpacked(self, constants: Sequence[object]) -> list[str]:
        """Return the items of ``constants`` as an item of a list display; none if there are
        none."""
        if not constants:
            return []
        return [f"*{self.constant(constants)}"]

    def without_compared(self, reads: Sequence[Read]) -> list[Read]:
        """``reads``, without what tensors say of themselves that :meth:`compare` asks for. The
        program does not compute with these tensors, but has come to them."""
        found: list[Read] = []
        leaves: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for read in reads:
            tensor = read.owner
            if read.name is not FACTS or not has_plain_geometry(tensor):
                found.append(read)
            elif id(tensor) not in self.outside:
                self.outside[id(tensor)] = tensor
                if tensor.requires_grad:  # else it is a leaf
                    (leaves if tensor.is_leaf else others).append(tensor)
        for quantity, tensors in (("all", leaves), ("not any", others)):
            if tensors:
                self.require(
                    f"{quantity}(map({self.constant(_is_leaf)}, {self.constant(tensors)}))"
                )
        return found

    def function(self) -> Take:
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
    that matters. ``sizes``: what must hold of symbols. ``alone``: asks whether the program comes to
    the arguments by itself. None if the arguments are such that only the
    general way can tell.
    """
    source = _Source()
    names = [f"x{index}" for index in range(len(given))]
    source.lines.append(f"if len(given) != {len(given)}: return None")
    if names:
        source.lines.append(f"[{', '.join(names)}] = given")
    source.require(*_identities(source, given))
    source.require(*alone.conditions(given, names, source.constant))
    dynamic = sizes is not None and sizes.dynamic
    plain, targets = [], []
    for x, name, kind in zip(given, names, kinds, strict=True):
        inner, target = _argument(source, x, name, kind, dynamic, tracked)
        plain.append(inner)
        if target:
            targets.append(target)
    tensors = OutsideTensors.of(closed_over, outside, tracked)
    if tensors is None:
        return None
    apart = groups is not None and _are_apart(groups, given, tensors.plain)
    source.outside.update((id(tensor), tensor) for tensor in tensors.compared)
    reads = source.without_compared(reads)
    source.compare()
    _require_distinct(source, given, names)
    source.require(*tensors.conditions(source.constant, apart))
    source.require(*(read.condition(source.constant) for read in reads))
    _require_state(source, state)
    if sizes is not None:
        _require_sizes(source, sizes, plain, tensors.plain)
    all_plain = [*plain, *source.unpacked(tensors.plain)]
    if apart:
        _require_apart(source, plain, given, tensors.plain)
    elif groups is not None:
        source.require(f"sharing([{', '.join(all_plain)}]) == {source.constant(groups)}")
    all_kinds = source.constant([*kinds, *outside])
    all_leaves = [*names, *source.unpacked(tensors.leaves)]
    all_targets = [*targets, *source.unpacked(tensors.targets)]
    source.lines.append(
        f"return Call([{', '.join(all_leaves)}], [{', '.join(all_plain)}], "
        f"[{', '.join(all_targets)}], {all_kinds})"
    )
    return source.function()


def _identities(source: _Source, given: Sequence[object]) -> list[str]:
    """Return which arguments are one object, or one that the program comes to by itself."""
    repeats = [f"x{index} is x{x.index}" for index, x in enumerate(given) if type(x) is Repeat]
    outside = [(i, x) for i, x in enumerate(given) if type(x) is Outside]
    return [*repeats, *(f"{source.constant(x.stands_for)}(x{i})" for i, x in outside)]


def _require_distinct(source: _Source, given: Sequence[object], names: Sequence[str]) -> None:
    """Require of the tensors among the arguments that they are different objects, if some of them
    are not compared in C, where that is asked."""
    tensors = [name for name, x in zip(names, given, strict=True) if isinstance(x, torch.Tensor)]
    if len(tensors) > max(1, len(source.compared)):
        objects = ", ".join(f"id({name})" for name in tensors)
        source.require(f"len({{{objects}}}) == {len(tensors)}")


def _require_state(source: _Source, state: StateGuard | None) -> None:
    """Require that Python's objects are as the program has found them."""
    if state is not None:
        for condition in state.conditions(source.constant):
            source.require(condition)


def _require_sizes(
    source: _Source, sizes: Sizes, plain: Sequence[str], outside: Sequence[object]
) -> None:
    """Require that the graph is right for the sizes and numbers of the call."""
    asked = [_item(plain, outside, i, source) for i in sizes.asked]
    source.require(f"{source.constant(sizes.holds)}({', '.join(asked)})")


def _item(names: Sequence[str], outside: Sequence[object], index: int, source: _Source) -> str:
    """Return the name of plain argument ``index``, of which those after the call's own are
    ``outside``."""
    if index < len(names):
        return names[index]
    return source.constant(outside[index - len(names)])


def _argument(
    source: _Source, x: object, name: str, kind: Kind, dynamic: bool, tracked: bool
) -> tuple[str, str]:
    """(what is given to the graph, where the gradient goes or nothing) for argument ``x``."""
    wanted = bool(kind[0])
    if type(x) in (Repeat, Outside):  # asked before, as names change
        return source.constant(x), ""
    source.require(f"type({name}) is {source.constant(type(x), 'T')}")
    if not isinstance(x, torch.Tensor):
        if len(kind) == 2:
            _require_number(source, x, name)
        else:
            _require_value(source, x, name)
        return name, ""
    inner, target = name, ""
    value = unwrap(x)
    if type(x) in VALUES:
        inner, target = _argument_of_session(source, name, wanted, tracked)
    elif wanted:
        leaf = f"t{name[1:]}"
        source.require(f"{name}.requires_grad")
        source.lines.append(f"{leaf} = {name} = {source.constant(as_leaf)}({name})")
        inner, target, value = f"{leaf}._inner", leaf, unwrap(as_leaf(x))
    elif tracked:
        source.require(f"not {name}.requires_grad")
    _geometry(source, value, inner, kind, dynamic)
    return inner, target


def _require_number(source: _Source, value: object, name: str) -> None:
    """Require that ``name`` is a number for which the graph's arithmetic is right: a finite float,
    or an integer of 64 bits. ``value``: the number of the first call."""
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


def _argument_of_session(
    source: _Source, name: str, wanted: bool, tracked: bool
) -> tuple[str, str]:
    """As :func:`_argument`, for a tensor of the session. ``wanted``: whether its gradient is."""
    inner, target = f"p{name[1:]}", ""
    source.lines.append(f"{inner} = {name}._inner")
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


def _are_apart(groups: tuple[Group, ...], given: Sequence[Any], outside: Sequence[Any]) -> bool:
    """Return whether no two tensors share memory, and all are such that it shows by their
    storages."""
    tensors = [*(unwrap(x) for x in given if isinstance(x, torch.Tensor)), *outside]
    return not groups and all(map(has_plain_geometry, tensors))


def _require_apart(
    source: _Source, plain: Sequence[str], given: Sequence[object], outside: Sequence[Any]
) -> None:
    """Require of the arguments that no two of them share memory, nor one with a tensor of
    ``outside``. These are where they have been."""
    arguments = [name for name, x in zip(plain, given, strict=True) if isinstance(x, torch.Tensor)]
    if not arguments:
        return
    storages = source.constant(frozenset(tensor.untyped_storage()._cdata for tensor in outside))
    of_arguments = [f"{name}.untyped_storage()._cdata" for name in arguments]
    if len(arguments) == 1:
        source.require(f"{of_arguments[0]} not in {storages}")
    else:
        source.lines.append(f"found = {{{', '.join(of_arguments)}}}")
        source.require(f"len(found) == {len(arguments)}", f"found.isdisjoint({storages})")


def _geometry(source: _Source, value: torch.Tensor, inner: str, kind: Kind, dynamic: bool) -> None:
    """Require of the plain tensor ``inner`` what ``kind`` says of ``value``."""
    if dynamic or not has_plain_geometry(value):
        source.require(f"kind_of({inner}, {bool(kind[0])}, {dynamic}) == {source.constant(kind)}")
    else:
        source.compared[inner] = value
