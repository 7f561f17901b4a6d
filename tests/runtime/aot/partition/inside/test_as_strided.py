"""What ``as_strided`` shows may lie beside its argument, and a saved tensor that hooks have packed
has its own elements alone.

Inside: ``again`` of ``runtime.aot.partition.recompute``. Whether a call may run again shows in a
cut only where a cut would want it to."""

from __future__ import annotations

import torch
from torch import fx

from runtime.aot.partition.recompute import Again, again


def test_as_strided_of_a_view_is_not_taken_again_from_what_was_saved() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    view = graph.call_function(torch.ops.aten.diagonal.default, (x,))
    whole = graph.call_function(torch.ops.aten.as_strided.default, (view, [3], [1], 0))
    assert again(whole) is Again.MEMORY and not again(whole).pure


def test_as_strided_of_a_tensor_of_its_own_is_cheap() -> None:
    graph = fx.Graph()
    made = graph.call_function(torch.ops.aten.sin.default, (graph.placeholder("x"),))
    assert (
        again(graph.call_function(torch.ops.aten.as_strided.default, (made, [3], [1], 0)))
        is Again.LOW
    )
