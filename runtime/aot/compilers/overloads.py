"""The forms of an op that write to a given tensor, and what is known of the tensors of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import fx

from ..capture.aliasing import functional_pointwise

aten = torch.ops.aten
SETS = frozenset((aten.copy.default, aten.fill.Scalar, aten.fill.Tensor, aten.zero.default))
"""Ops whose first argument says what the result looks like, and not what is in it. Their in-place
forms set the elements of a tensor."""


_KNOWN = "static"


@cache
def in_place(func: Any) -> Callable[..., Any] | None:
    """Return the op that writes the result of the pointwise op ``func`` over its first argument:
    ``add_`` for ``add``. None if there is none."""
    if not _deterministic(func) and func not in SETS:
        return None
    found = getattr(
        getattr(aten, func._schema.name.split("::")[1] + "_", None), func._overloadname, None
    )
    return (
        found
        if found is not None
        and _parameters(found._schema.arguments) == _parameters(func._schema.arguments)
        else None
    )


@cache
def with_out(func: Any) -> tuple[Callable[..., Any], str] | None:
    """Return the overload that writes the result of the pointwise op ``func`` to a given tensor,
    and the name of that argument."""
    if not _deterministic(func):
        return None
    given = _parameters(func._schema.arguments)
    packet = func.overloadpacket
    for found in (getattr(packet, name) for name in packet.overloads()):
        *others, last = found._schema.arguments
        if last.kwarg_only and last.alias_info is not None and _parameters(others) == given:
            return found, last.name
    return None


def _deterministic(func: Any) -> bool:
    return functional_pointwise(func) and bool(
        func.namespace == "aten" and torch.Tag.nondeterministic_seeded not in func.tags
    )


def _parameters(arguments: Iterable[Any]) -> list[tuple[str, str]]:
    """Names and types: overloads may differ in the types alone."""
    return [(argument.name, str(argument.type)) for argument in arguments]


def calls_of(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def static(n: object) -> bool:
    """Return whether ``n`` is a strided tensor whose sizes, strides and offset are known, none of
    them a symbol."""
    if not isinstance(n, fx.Node):
        return False
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    known = n.meta.get(_KNOWN)
    if known is None or known[0] is not value:  # each rewrite asks
        known = n.meta[_KNOWN] = value, value.layout is torch.strided and _plain(value)
    found: bool = known[1]
    return found


def _plain(value: torch.Tensor) -> bool:
    return all(
        type(size) is int for size in (*value.shape, *value.stride(), value.storage_offset())
    )


def on_cpu(node: fx.Node) -> bool:
    """Return whether ``node`` is such a tensor on the CPU."""
    # `is_cpu` of an abstract tensor is a call of an op
    return static(node) and node.meta["val"].device.type == "cpu"


def kind(n: Any) -> Any:
    value = n.meta["val"]
    return value.shape, value.dtype, value.device


def same_layout(a: fx.Node, b: fx.Node) -> bool:
    """Return whether two static tensors have the same sizes, dtype, device and strides."""
    return bool(kind(a) == kind(b) and a.meta["val"].stride() == b.meta["val"].stride())
