"""Random programs of matrices, and their joint graphs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from runtime import aot

WIDTH = 6


def drawn(seed: int) -> Callable[..., torch.Tensor]:
    """A random program of products, pointwise ops, reductions, views and draws of matrices and
    weights, all ``WIDTH`` wide."""
    source = random.Random(seed)
    unary: list[Callable[..., torch.Tensor]] = [
        torch.sin,
        torch.exp,
        lambda x: x.softmax(-1),
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: F.layer_norm(x, (WIDTH,)),
        lambda x: x.t().contiguous() if x.shape[0] == x.shape[1] else x.cos(),
        lambda x: F.dropout(x, 0.3),
        lambda x: torch.cat([x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1),
    ]
    steps = [
        (source.randrange(3), source.randrange(len(unary)), source.random(), source.random())
        for _ in range(source.randint(4, 25))
    ]

    def program(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        made = [x]
        for kind, op, first, second in steps:
            a, b = made[int(first * len(made))], made[int(second * len(made))]
            if kind == 0:
                made.append(unary[op](a).tanh())
            elif kind == 1:
                made.append((a @ weights[int(second * len(weights))]).tanh())
            else:
                made.append(a * b)
        return sum((m.sin().sum() for m in made[1:]), made[-1].sum())

    return program


def inputs() -> list[torch.Tensor]:
    return [
        torch.randn(8, WIDTH, requires_grad=True),
        *(torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(2)),
    ]


def joint_graph(seed: int) -> fx.GraphModule:
    """The joint graph of a random program, with one result and three gradients."""

    def program(*args: torch.Tensor) -> list[torch.Tensor]:
        return [drawn(seed)(*args)]

    module = aot.aot_export_joint_simple(program, inputs(), trace_joint=True)
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    module.recompile()
    results: Any = module.graph.output_node().args[0]
    assert len(results) == 4
    return module
