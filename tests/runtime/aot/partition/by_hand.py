"""Joint graphs that tests make by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from runtime.aot.partition.halves import Parts
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

    def parts(
        self,
        results: list[Any],
        gradients: list[Any],
        number: int | None = None,
        inputs: Any = None,
    ) -> Parts:
        self.graph.output([*results, *gradients])
        return Parts(
            fx.GraphModule({}, self.graph), len(results) if number is None else number, inputs
        )


def region(
    n: fx.Node, number: int, wish: CheckpointPolicy = CheckpointPolicy.MUST_RECOMPUTE
) -> fx.Node:
    n.meta |= {"recompute": wish, "ac_graph_id": number}
    return n
