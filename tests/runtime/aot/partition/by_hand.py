"""Joint graphs that tests make by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from runtime.aot import Explanation
from runtime.checkpoint import CheckpointPolicy

aten: Any = torch.ops.aten
X = torch.rand(3, 4)


class Joint:
    """A graph of the inputs ``primals_1``, ``primals_2`` and ``tangents_1``."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.inputs = [
            self.graph.placeholder(name) for name in ("primals_1", "primals_2", "tangents_1")
        ]
        for n in self.inputs:
            n.meta["val"] = X

    def call(self, func: Any, *args: Any, val: Any = X) -> fx.Node:
        name = (
            func._schema.name.partition("::")[2]
            if isinstance(func, torch._ops.OpOverload)
            else func.__name__
        )
        n = self.graph.create_node("call_function", func, args, name=name)
        if val is not None:
            n.meta["val"] = val
        return n

    def module(self, results: list[Any], gradients: list[Any]) -> fx.GraphModule:
        self.graph.output([*results, *gradients])
        return fx.GraphModule({}, self.graph)


def hands_over(results: Any, saved: Iterable[fx.Node]) -> fx.GraphModule:
    """A forward whose results are followed by nodes with the names of ``saved``."""
    graph = fx.Graph()
    names = [n.name for n in (*results, *saved)]
    nodes = {name: graph.placeholder(name) for name in dict.fromkeys(names)}
    graph.output([nodes[name] for name in names])
    return fx.GraphModule({}, graph)


def nothing() -> fx.GraphModule:
    """A backward without calls."""
    graph = fx.Graph()
    graph.output([])
    return fx.GraphModule({}, graph)


def explained(
    module: fx.GraphModule, n_results: int, saved: Iterable[fx.Node], **options: Any
) -> Explanation:
    """What there is to say of a cut of ``module`` that saves ``saved``."""
    results: Any = module.graph.output_node().args[0]
    forward = hands_over(results[:n_results], saved)
    return Explanation.of(module, forward, nothing(), num_fwd_outputs=n_results, **options)


def region(
    n: fx.Node, number: int, wish: CheckpointPolicy = CheckpointPolicy.MUST_RECOMPUTE
) -> fx.Node:
    n.meta |= {"recompute": wish, "ac_graph_id": number}
    return n
