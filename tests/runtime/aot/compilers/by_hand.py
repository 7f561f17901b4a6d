"""Values of graphs that tests make by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

aten: Any = torch.ops.aten


def node_of(value: Any, graph: fx.Graph | None = None, name: str = "x") -> fx.Node:
    n = (graph or fx.Graph()).placeholder(name)
    n.meta["val"] = value
    return n


def symbolic(*which: int) -> Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    size = mode.from_tensor(torch.ones(5)).shape[0]
    with mode:
        base = torch.empty(100)
        sizes, strides, offset = [2, 2], [2, 1], 0
        given: list[Any] = [*sizes, *strides, offset]
        for i in which:
            given[i] = size
        return base.as_strided(given[:2], given[2:4], given[4])
