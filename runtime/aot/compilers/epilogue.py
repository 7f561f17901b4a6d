"""Writes at the end of a graph, for a compiler that computes the new value of an argument in the
argument itself.

    x1 = x + 1; return [x1]        # becomes x1 = x + 1; x.copy_(x1); return [None]

Inductor leaves out the copy where nothing reads the former value any more. See :mod:`.placing` for
what the replay does instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .placing import Destination
from .replacing import shown


def write_at_the_end(graph: fx.Graph, wanted: Sequence[Destination]) -> dict[int, int]:
    """Let ``graph`` write the new values of its arguments to them, where no result shows the memory
    of the argument. Of each such argument: how many writes of the program that stands for."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    output = graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    found: dict[int, int] = {}
    for d in wanted:
        new, target = results[d.result], inputs[d.argument]
        views = shown(target)
        if (
            not isinstance(new, fx.Node)
            or results.count(new) != 1
            or any(r in views for r in results)
            or _is_lazy(target)
        ):
            continue
        with graph.inserting_before(output):
            graph.call_function(torch.ops.aten.copy_.default, (target, new)).meta["val"] = (
                target.meta["val"]
            )
        results[d.result] = None
        found[d.argument] = d.counted
    output.args = (results,)
    return found


def _is_lazy(n: fx.Node) -> bool:
    """Whether the elements are those of the memory conjugated or negated."""
    return bool(n.meta["val"].is_conj() or n.meta["val"].is_neg())
