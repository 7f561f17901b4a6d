"""Find the forms of an op that write to an existing tensor, and facts about the tensors of a graph.

in_place(aten.add.Tensor)       # aten.add_.Tensor
with_out(aten.add.Tensor)       # (aten.add.out, "out")
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from ...rules.functional_forms import names_and_types
from ...torch_private.dispatcher import OpOverload
from ..capture.aliasing import functional_pointwise

aten = torch.ops.aten
SETS = frozenset((aten.copy.default, aten.fill.Scalar, aten.fill.Tensor, aten.zero.default))
"""Ops whose first argument says what the result looks like, and not what is in it. Their in-place
forms set the elements of a tensor."""
_KNOWN = "static"
"""The key under which a node has the answer of :func:`static`."""


@cache
def in_place(func: OpOverload) -> Callable[..., Any] | None:
    """Return the in-place form of the pointwise op ``func``: ``add_`` for ``add``. None if there is
    none."""
    if not is_deterministic(func) and func not in SETS:
        return None
    packet = getattr(aten, func._schema.name.split("::")[1] + "_", None)
    overload: Callable[..., Any] | None = getattr(packet, func._overloadname, None)
    if overload is None:
        return None
    # an overload of the same name may take other arguments
    parameters = names_and_types(overload._schema.arguments)  # type: ignore[attr-defined]
    if parameters != names_and_types(func._schema.arguments):
        return None
    return overload


@cache
def with_out(func: OpOverload) -> tuple[Callable[..., Any], str] | None:
    """Return the overload of the pointwise op ``func`` that writes its result to an argument, and
    the name of that argument. None if there is none."""
    if not is_deterministic(func):
        return None
    parameters = names_and_types(func._schema.arguments)
    packet = func.overloadpacket
    # by the arguments, as names of overloads follow no rule: `add.out`, `pow.Tensor_Scalar_out`
    for overload in (getattr(packet, name) for name in packet.overloads()):
        *others, last = overload._schema.arguments
        if not last.kwarg_only or last.alias_info is None:
            continue
        if names_and_types(others) == parameters:
            return overload, last.name
    return None


def is_deterministic(func: Any) -> bool:
    """Return whether ``func`` is a pointwise op of ATen that draws no random numbers."""
    if not functional_pointwise(func) or func.namespace != "aten":
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags


def calls_of(graph: fx.Graph) -> list[fx.Node]:
    """List the calls of ``graph``, so that a rewrite may change it meanwhile."""
    return [node for node in graph.nodes if node.op == "call_function"]


def static(n: object) -> bool:
    """Return whether ``n`` is a strided tensor without symbols in sizes, strides and offset."""
    if not isinstance(n, fx.Node):
        return False
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    fact = n.meta.get(_KNOWN)
    # each rewrite asks, so the answer is stored with the value for which it is right
    if fact is None or fact[0] is not value:
        fact = n.meta[_KNOWN] = value, value.layout is torch.strided and _has_known_sizes(value)
    is_static: bool = fact[1]
    return is_static


def _has_known_sizes(value: torch.Tensor) -> bool:
    """Return whether sizes, strides and offset are no symbols."""
    return all(
        type(size) is int for size in (*value.shape, *value.stride(), value.storage_offset())
    )


def on_cpu(node: fx.Node) -> bool:
    """Return whether ``node`` is a static tensor on the CPU."""
    # `is_cpu` of an abstract tensor is a call of an op
    return static(node) and node.meta["val"].device.type == "cpu"


def kind(n: Any) -> Any:
    """Return shape, dtype and device of node ``n``."""
    value = n.meta["val"]
    return value.shape, value.dtype, value.device


def same_layout(a: fx.Node, b: fx.Node) -> bool:
    """Return whether two static tensors have the same sizes, dtype, device and strides."""
    return bool(kind(a) == kind(b) and a.meta["val"].stride() == b.meta["val"].stride())
