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
    """Describe the ``saved`` values. ``called``: the names of arguments. ``outside``: the tensors
    that the program closes over. ``recomputes``: whether the partition runs calls again."""
    owners: dict[fx.Node, str] = {}  # by memory, the first value that lies in it
    found = []
    for n in saved:
        value = n.meta.get("val")
        shape: tuple[Any, ...] = ()
        dtype: torch.dtype | None = None
        shares: str | None = None
        if isinstance(value, torch.Tensor):
            shape, dtype = tuple(value.shape), value.dtype
            shares = next((owners[home] for home in memory.homes[n] if home in owners), None)
        for home in memory.homes[n]:
            owners.setdefault(home, n.name)
        why = _why(parts, n, outside, recomputes)
        found.append(
            SavedValue(
                n.name, source_of(n, called), shape, dtype, n_bytes(value), why, line_of(n), shares
            )
        )
    return tuple(found)


def _why(parts: Parts, n: fx.Node, outside: set[fx.Node], recomputes: bool) -> Why:
    """Return the first reason that holds. The reason of a view is that of what it views."""
    reason = again(n)
    required = _why_never_again(n, reason, outside)
    if required is not None:
        return required
    if parts.leaves_region(n):
        return Why.BOUNDARY
    if n in parts.results:
        return Why.RESULT
    if reason is Again.HIGH:
        return Why.EXPENSIVE
    seen = viewed(n)
    if seen is not n:
        return _why(parts, seen, outside, recomputes)
    if recomputes or n not in parts.forward_set:
        return Why.CHEAPEST
    return Why.FORWARD


def _why_never_again(n: fx.Node, reason: Again, outside: set[fx.Node]) -> Why | None:
    """Return why no partition computes ``n`` again; None if one may."""
    if reason is Again.INPUT:
        return Why.CLOSED_OVER if n in outside else Why.ARGUMENT
    if is_size(n):
        return Why.SIZE
    if reason in _OF_CALLS:
        return _OF_CALLS[reason]
    if policy_of(n) is CheckpointPolicy.MUST_SAVE:
        return Why.POLICY
    return None


def source_of(n: fx.Node, called: dict[fx.Node, str]) -> str:
    """Describe what made ``n``: an argument by its name in ``called``, a call by its op."""
    if n.op == "placeholder":
        return called.get(n, str(n.target))
    call, seen = call_of(n), viewed(n)
    if call is not seen:
        return f"{call.target} of {source_of(seen, called)}"
    if call is n:
        return f"{call.target}"
    return f"{call.target}[{n.args[1]}]"
