"""The way from the arguments of a call to a program that is already compiled: one generated Python
function for each program.

    def take(given):                                    # of f(x), where the program closes
                                                        # over a parameter w
        [x0] = given
        if type(x0) is not T0: return None
        p0 = x0._inner
        if not (c1.requires_grad and …): return None
        if not tensors.check(p0, c1): return None
        if not (names1.get('w') is c1 …): return None
        return Call([x0, leaf1], [p0, inner1], [x0, leaf1], KINDS)

It asks what :func:`~.arguments.enter` asks, about tensors of the classes that the first call had.
It returns None where it is not sure. Then the general way decides, which may find the same
program. ``tensors`` compares sizes, strides, dtypes, devices, dispatch keys and ``requires_grad``
with those of the first call. It is a class of torch's, in C++, and takes a sixth of the time of
the same in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._dynamo.guards import TensorGuards

from ...seam.shells import VALUES
from ...session.leaf import as_leaf
from ...session.tensor import SESSION, Tensor, unwrap
from ...tape.values import edge_of
from ...trace.generated_code import function
from ..capture.aliasing import Group, sharing
from ..python_state.reads import FACTS, Read
from ..python_state.state_guard import StateGuard
from .arguments import Call, Kind, kind_of
from .numbers import in_range

Take = Callable[[Sequence[Any]], Call | None]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


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
        }
        # by name, a tensor that has the sizes and the like which are asked for
        self.compared: dict[str, torch.Tensor] = {}

    def constant(self, value: Any, stem: str = "k") -> str:
        name = f"{stem}{len(self.names)}"
        self.names[name] = value
        return name

    def require(self, *conditions: str) -> None:
        if conditions:
            self.lines.append(f"if not ({' and '.join(conditions)}): return None")

    def compare(self) -> None:
        """Require of the tensors in ``compared`` that they are as they are now."""
        if self.compared:
            now = list(self.compared.values())
            sizes: Any = [list(t.shape) for t in now]
            strides: Any = [list(t.stride()) for t in now]
            tensors = self.constant(
                TensorGuards(*now, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides),
                "tensors",
            )
            self.require(f"{tensors}.check({', '.join(self.compared)})")

    def function(self) -> Take:
        return function(
            ["def take(given):", *(f"    {line}" for line in self.lines)],
            "take",
            "<guard of a compiled program>",
            self.names,
        )


def guard(
    given: Sequence[Any],
    kinds: Sequence[Kind],
    closed_over: Sequence[torch.Tensor],
    outside: Sequence[Kind],
    reads: Sequence[Read],
    groups: tuple[Group, ...] | None,
    sizes: Sizes | None,
    tracked: bool,
    state: StateGuard | None = None,
) -> Take | None:
    """The function for calls like the one with arguments ``given``, of the kinds ``kinds``.

    ``outside``: the kinds of ``closed_over``. ``groups``: which of the arguments share memory, if
    that matters. ``sizes``: what must hold of symbols. None if the arguments are such that only the
    general way can tell.
    """
    source = _Source()
    names = [f"x{i}" for i in range(len(given))]
    source.lines.append(f"if len(given) != {len(given)}: return None")
    if names:
        source.lines.append(f"[{', '.join(names)}] = given")
    leaves, plain, targets = [], [], []
    for x, name, kind in zip(given, names, kinds, strict=True):
        inner, target = _argument(
            source, x, name, kind, sizes is not None and sizes.dynamic, tracked
        )
        leaves.append(name)
        plain.append(inner)
        if target:
            targets.append(target)
    for t, kind in zip(closed_over, outside, strict=True):
        found = _outside(source, t, kind, tracked)
        if found is None:
            return None
        leaf, inner, target = found
        leaves.append(leaf)
        plain.append(inner)
        if target:
            targets.append(target)
    reads = [
        read for read in reads if read.name is not FACTS or not _says_the_same(source, read.owner)
    ]
    source.compare()
    source.require(*(read.condition(source.constant) for read in reads))
    if state is not None and not state.is_empty:
        source.require(f"{source.constant(state.holds)}()")
    if sizes is not None:
        source.require(
            f"{source.constant(sizes.holds)}({', '.join(plain[i] for i in sizes.asked)})"
        )
    if groups is not None:
        _sharing(source, groups, plain, given, closed_over)
    all_kinds = source.constant([*kinds, *outside])
    source.lines.append(
        f"return Call([{', '.join(leaves)}], [{', '.join(plain)}], "
        f"[{', '.join(targets)}], {all_kinds})"
    )
    return source.function()


def _argument(
    source: _Source, x: Any, name: str, kind: Kind, dynamic: bool, tracked: bool
) -> tuple[str, str]:
    """(what is given to the graph, where the gradient goes or nothing) for argument ``x``."""
    wanted = bool(kind[0])
    source.require(f"type({name}) is {source.constant(type(x), 'T')}")
    if not isinstance(x, torch.Tensor) and len(kind) == 2:  # a number of any value
        source.require(
            f"{name} - {name} == 0.0"
            if type(x) is float
            else f"{source.constant(in_range)}({name})"
        )
        return name, ""
    if not isinstance(x, torch.Tensor):
        # else equality is not enough: ``0.0 == -0.0``
        exact = type(x) in (bool, int, str, type(None))
        source.require(
            f"{name} == {source.constant(x)}"
            if exact
            else f"kind_of({name}, False, {dynamic}) == {source.constant(kind)}"
        )
        return name, ""
    inner, target = name, ""
    value = unwrap(x)
    if type(x) in VALUES:
        inner = f"p{name[1:]}"
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
    elif wanted:
        leaf = f"t{name[1:]}"
        source.require(f"{name}.requires_grad")
        source.lines.append(f"{leaf} = {name} = {source.constant(as_leaf)}({name})")
        inner, target, value = f"{leaf}._inner", leaf, unwrap(as_leaf(x))
    elif tracked:
        source.require(f"not {name}.requires_grad")
    _geometry(source, value, inner, kind, dynamic)
    return inner, target


def _sharing(
    source: _Source,
    groups: tuple[Group, ...],
    plain: Sequence[str],
    given: Sequence[Any],
    closed_over: Sequence[Any],
) -> None:
    """Require that the tensors share memory as ``groups`` says. Most often none do: then the
    closed-over ones have the storages that they have now, and the arguments have others."""
    arguments = [name for name, x in zip(plain, given, strict=False) if isinstance(x, torch.Tensor)]
    outside = [unwrap(t) for t in closed_over]
    tensors = [*(unwrap(x) for x in given if isinstance(x, torch.Tensor)), *outside]
    if groups or any(t.layout is not torch.strided or type(t) not in _PLAIN for t in tensors):
        source.require(f"sharing([{', '.join(plain)}]) == {source.constant(groups)}")
        return
    if outside:
        pointers = ", ".join(f"{name}.data_ptr()" for name in plain[len(given) :])
        source.require(f"({pointers},) == {source.constant(tuple(t.data_ptr() for t in outside))}")
    if arguments:
        storages = source.constant(frozenset(t.untyped_storage()._cdata for t in outside))
        of_arguments = [f"{name}.untyped_storage()._cdata" for name in arguments]
        if len(arguments) == 1:
            source.require(f"{of_arguments[0]} not in {storages}")
        else:
            source.lines.append(f"found = {{{', '.join(of_arguments)}}}")
            source.require(f"len(found) == {len(arguments)}", f"found.isdisjoint({storages})")


def _geometry(source: _Source, value: torch.Tensor, inner: str, kind: Kind, dynamic: bool) -> None:
    """Require of the plain tensor ``inner`` what ``kind`` says of ``value``."""
    if dynamic or value.layout is not torch.strided or type(value) not in _PLAIN:
        source.require(f"kind_of({inner}, {bool(kind[0])}, {dynamic}) == {source.constant(kind)}")
    else:
        source.compared[inner] = value


def _says_the_same(source: _Source, t: torch.Tensor) -> bool:
    """Require of a tensor that the program does not compute with that it says of itself what it
    says now. False if that needs Python."""
    if t.layout is not torch.strided or type(t) not in _PLAIN:
        return False
    if all(t is not other for other in source.compared.values()):
        name = source.constant(t, "a")
        source.compared[name] = t
        if t.requires_grad:  # else it is a leaf
            source.require(f"{name}.is_leaf is {t.is_leaf}")
    return True


def _outside(
    source: _Source, t: torch.Tensor, kind: Kind, tracked: bool
) -> tuple[str, str, str] | None:
    """(leaf, what is given to the graph, where the gradient goes or nothing) for closed-over tensor
    ``t``, which is always the same."""
    wanted = bool(kind[0])
    name = source.constant(t, "c")
    if type(t) in VALUES:
        v: Tensor = t  # type: ignore[assignment]
        if v._level is not SESSION or v._edge is not None or v._view is not None:
            return None  # its history may change
        if tracked:
            source.require(
                f"{name}._req is {wanted} and {name}._edge is None and {name}._view is None"
            )
        inner = source.constant(v._inner, "i")
        source.require(f"{name}._inner is {inner}")
        _geometry(source, v._inner, inner, kind, False)
        return name, inner, name if wanted else ""
    if wanted:
        if t.layout is not torch.strided:
            return None  # a guard of its own for each layout would not pay
        leaf: Tensor = as_leaf(t)  # type: ignore[assignment]
        known, inner = source.constant(leaf, "l"), source.constant(leaf._inner, "i")
        # what `as_leaf` asks
        source.require(f"{name}.requires_grad and {name}.data_ptr() == {leaf._inner.data_ptr()}")
        _geometry(source, t, name, kind, False)
        source.lines.append(f"{known}._hooks = {name}._backward_hooks")
        return known, inner, known
    if tracked:
        source.require(f"not {name}.requires_grad")
    _geometry(source, t, name, kind, False)
    return name, name, ""
