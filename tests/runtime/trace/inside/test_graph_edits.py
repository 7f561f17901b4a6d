"""Copies of graphs.

Inside: ``runtime.trace.graph_edits.copy_of``. The replay rewrites such a copy, which nobody else
sees, and the original belongs to whoever captured it."""

from __future__ import annotations

import torch
from torch import fx

from runtime.trace.graph_edits import copy_of


def test_a_copy_computes_the_same_and_is_another_graph() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = 3
    graph.output([graph.call_function(torch.ops.aten.add.Tensor, (x, x), {"alpha": 2})])
    copied = copy_of(graph)
    x.meta["val"] = 4
    next(n for n in graph.nodes if n.op == "call_function").args = (x, 1)
    t = torch.tensor([1.0, 2.0])
    assert torch.equal(fx.GraphModule({}, copied)(t)[0], t + 2 * t)
    assert [n.meta.get("val") for n in copied.nodes if n.op == "placeholder"] == [3]
    assert [n.name for n in copied.nodes] == [n.name for n in graph.nodes]
