"""Describe the values that a partition saves: where they come from, and why they are saved.

saved_values(parts, memory, saved, names, set(), False)[0].why      # Why.EXPENSIVE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import fx

from ...checkpoint.selective import CheckpointPolicy
from ...trace.provenance import line_of
from .halves import Parts
from .memory import Memory
from .recompute import Again, again, call_of, is_size, n_bytes, policy_of, viewed


class Why(Enum):
    """Say why a value is saved."""

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
    """Describe one value that the forward hands to the backward.

    ``name``: of its node, in the joint graph, the forward and the backward. ``source``: the op of
    its call, as ``aten.mm.default``; for an argument its place, as ``args[0]``, or the name of the
    parameter. ``line``: the user's line of the call, or None. ``bytes``: of its elements.
    ``shares``: the saved value before it in whose memory it lies, or None.
    """

    name: str
    source: str
    shape: tuple[int, ...]
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
    """Describe the ``saved`` values.

    ``called``: the names of arguments. ``outside``: the tensors that the program closes over.
    ``recomputes``: whether the partition runs calls again.
    """
    owners: dict[fx.Node, str] = {}  # by memory, the first value that lies in it
    descriptions = []
    for node in saved:
        value = node.meta.get("val")
        shape: tuple[int, ...] = ()
        dtype: torch.dtype | None = None
        shares: str | None = None
        if isinstance(value, torch.Tensor):
            shape, dtype = tuple(value.shape), value.dtype
            shares = next((owners[home] for home in memory.homes[node] if home in owners), None)
        for home in memory.homes[node]:
            owners.setdefault(home, node.name)
        why = _why(parts, node, outside, recomputes)
        descriptions.append(
            SavedValue(
                node.name,
                source_of(node, called),
                shape,
                dtype,
                n_bytes(value),
                why,
                line_of(node),
                shares,
            )
        )
    return tuple(descriptions)


def _why(parts: Parts, node: fx.Node, outside: set[fx.Node], recomputes: bool) -> Why:
    """Return the first reason that holds. A view has the reason of its base."""
    # first what leaves no choice, then what costs nothing, and last what the cut has weighed
    reason = again(node)
    required = _why_never_again(node, reason, outside)
    if required is not None:
        return required
    if parts.leaves_region(node):
        return Why.BOUNDARY
    if node in parts.results:
        return Why.RESULT
    if reason is Again.HIGH:
        return Why.EXPENSIVE
    # saving the view and saving its base is the same choice
    seen = viewed(node)
    if seen is not node:
        return _why(parts, seen, outside, recomputes)
    if recomputes or node not in parts.forward_set:
        return Why.CHEAPEST
    return Why.FORWARD


def _why_never_again(node: fx.Node, reason: Again, outside: set[fx.Node]) -> Why | None:
    """Return why no partition computes ``node`` again; None if one may."""
    if reason is Again.INPUT:
        if node in outside:
            return Why.CLOSED_OVER
        return Why.ARGUMENT
    if is_size(node):
        return Why.SIZE
    if reason in _OF_CALLS:
        return _OF_CALLS[reason]
    if policy_of(node) is CheckpointPolicy.MUST_SAVE:
        return Why.POLICY
    return None


def source_of(node: fx.Node, called: dict[fx.Node, str]) -> str:
    """Name the source of ``node``: an argument by its name in ``called``, a call by its op."""
    if node.op == "placeholder":
        return called.get(node, str(node.target))
    call, seen = call_of(node), viewed(node)
    if call is not seen:
        return f"{call.target} of {source_of(seen, called)}"
    if call is node:
        return f"{call.target}"
    return f"{call.target}[{node.args[1]}]"
