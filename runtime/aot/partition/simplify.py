"""Calls of a joint graph that undo each other, such as the two transpositions on a weight's way
through ``linear`` and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...trace.graph_edits import without_unused

aten = torch.ops.aten


def without_round_trips(graph: fx.Graph) -> None:
    """Replace a transposition of a transposition by what it started from, in place.

    A forward result that is such a view stays one: a program's results are tensors of their own,
    not its arguments or one another."""
    for n in graph.nodes:
        first = n.args[0] if n.op == "call_function" and n.args else None
        if isinstance(first, fx.Node) and first.op == "call_function" and first.args:
            swapped = _swapped(n)
            if swapped is not None and swapped == _swapped(first):
                source: Any = first.args[0]
                keep = source.op != "call_function" or any(
                    user.op == "output" for user in source.users
                )
                n.replace_all_uses_with(
                    source, lambda user, keep=keep: not (keep and user.op == "output")
                )
    without_unused(graph)


def _swapped(n: fx.Node) -> tuple[int, int] | None:
    """The dimensions that a transposition swaps; None for any other call. Of the views in a graph
    of derivatives these two alone come in pairs, so they are named here instead of asking records
    for views that undo each other."""
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    if n.target is aten.t.default:
        return (0, 1) if value.dim() == 2 else None
    if n.target is aten.transpose.int and value.dim():
        a, b = (int(d) % value.dim() for d in n.args[1:3])  # type: ignore[arg-type]
        return min(a, b), max(a, b)
    return None
