"""The values that a partition saves, with where they come from and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import fx

from ...checkpoint.selective import CheckpointPolicy
from ...trace.provenance import line_of
from ...trace.regions import region_of
from .halves import Parts
from .memory import Memory
from .recompute import Again, again, call_of, is_size, n_bytes, policy_of, viewed


class Why(Enum):
    """Why a value is saved."""

    ARGUMENT = "an argument of the program"
    CLOSED_OVER = "a tensor that the program closes over"
    SIZE = "a size"
    DRAW = "a random draw, which a second run would not repeat"
    UNKNOWN = "no record says that its op is pure"
    EFFECT = "its call writes to something"
    POLICY = "a checkpoint policy asks for it"
    BOUNDARY = "it leaves a checkpoint region"
    RESULT = "a result of the forward anyway"
    EXPENSIVE = "its op is expensive to run again"
    CHEAPEST = "the cheapest cut passes here"
    FORWARD = "the forward has it, and the partition runs nothing again"


_OF_CALLS = {
    Again.DRAW: Why.DRAW,
    Again.UNKNOWN: Why.UNKNOWN,
    Again.EFFECT: Why.EFFECT,
    Again.SIZE: Why.SIZE,
}


@dataclass(frozen=True)
class SavedValue:
    """One value that the forward hands to the backward.

    ``name``: of its node, in the joint graph, the forward and the backward. ``source``: the op that
    made it, as ``aten.mm.default``; for an argument its place, as ``args[0]``, or the name of the
    parameter. ``line``: the user's line that made it, if it is known. ``bytes``: of its elements.
    ``shares``: the saved value before it in whose memory it lies.
    """

    name: str
    source: str
    shape: tuple[Any, ...]
    dtype: torch.dtype | None
    bytes: int
    why: Why
    line: str | None = None
    shares: str | None = None


def saved_values(
    parts: Parts,
    memory: Memory,
    saved: Sequence[fx.Node],
    called: dict[fx.Node, str],
    outside: set[fx.Node],
    recomputes: bool,
) -> tuple[SavedValue, ...]:
    owners: dict[fx.Node, str] = {}
    found = []
    for n in saved:
        value = n.meta.get("val")
        tensor = isinstance(value, torch.Tensor)
        shares = (
            next((owners[home] for home in memory.homes[n] if home in owners), None)
            if tensor
            else None
        )
        for home in memory.homes[n]:
            owners.setdefault(home, n.name)
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        dtype = value.dtype if isinstance(value, torch.Tensor) else None
        why = _why(parts, n, outside, recomputes)
        found.append(
            SavedValue(
                n.name, source_of(n, called), shape, dtype, n_bytes(value), why, line_of(n), shares
            )
        )
    return tuple(found)


def _why(parts: Parts, n: fx.Node, outside: set[fx.Node], recomputes: bool) -> Why:
    reason = again(n)
    if reason is Again.INPUT:
        return Why.CLOSED_OVER if n in outside else Why.ARGUMENT
    if is_size(n):
        return Why.SIZE
    if reason in _OF_CALLS:
        return _OF_CALLS[reason]
    if policy_of(n) is CheckpointPolicy.MUST_SAVE:
        return Why.POLICY
    if region_of(call_of(n)) is not None and parts.leaves_region(n):
        return Why.BOUNDARY
    if n in parts.results:
        return Why.RESULT
    if reason is Again.HIGH:
        return Why.EXPENSIVE
    seen = viewed(n)
    if seen is not n:
        return _why(parts, seen, outside, recomputes)
    return Why.CHEAPEST if recomputes or n not in parts.forward_set else Why.FORWARD


def source_of(n: fx.Node, called: dict[fx.Node, str]) -> str:
    if n.op == "placeholder":
        return called.get(n, str(n.target))
    call, seen = call_of(n), viewed(n)
    if call is not seen:
        return f"{call.target} of {source_of(seen, called)}"
    return f"{call.target}" if call is n else f"{call.target}[{n.args[1]}]"
