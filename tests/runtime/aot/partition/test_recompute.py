"""What the partitioner asks of single calls of a graph."""

from __future__ import annotations

import torch

from runtime.aot import make_fx
from runtime.aot.partition.recompute import viewed
from tests.runtime.func.graphs import node


def test_a_view_of_views_and_items_shows_the_call_that_made_the_memory() -> None:
    module = make_fx(lambda x: x.sin().split(2)[1].t().view(-1))(torch.ones(4, 1))
    assert viewed(node(module, "view")) is node(module, "sin")
    assert viewed(node(module, "sin")) is node(module, "sin")
