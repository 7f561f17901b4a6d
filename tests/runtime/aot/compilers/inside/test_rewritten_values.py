"""What the nodes of a rewritten graph say of their values.

Inside: ``rewritten`` of ``runtime.aot.compilers.peephole``. The replay decides by these values
where a result may lie; the graph is its own, and nobody else gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime import aot
from runtime.aot.compilers.peephole import rewritten

LIMIT = 1 << 13  # rows of two columns of float32: 64 KiB


def rewritten_graph(f: Callable[..., Any], *sizes: tuple[int, ...]) -> fx.Graph:
    """What the rewrites make of a program, for which no memory is taken."""
    with FakeTensorMode():
        traced = aot.make_fx(f)(*map(torch.empty, sizes))
    return rewritten(traced.graph)[0]


def halves(x: Tensor) -> Tensor:
    return torch.cat([x[:LIMIT].sin(), x[LIMIT:].cos()])


def test_each_call_says_what_it_gives() -> None:
    for n in rewritten_graph(halves, (2 * LIMIT, 2)).nodes:
        if n.op == "call_function":
            rows = 2 * LIMIT if n.target is torch.ops.aten.empty.memory_format else LIMIT
            assert n.meta["val"].shape == (rows, 2)


def column_sums(*each: Tensor) -> list[Tensor]:
    return [(x * 2).sum(0) * 3 for x in each]


def test_each_call_of_a_stack_says_what_it_gives() -> None:
    graph = rewritten_graph(column_sums, *[(5, 7)] * 4)
    (whole,) = graph.find_nodes(op="call_function", target=torch.ops.aten.stack.default)
    (total,) = whole.users
    (rows,) = total.users
    assert whole.meta["val"].shape == (4, 5, 7) and total.meta["val"].shape == (4, 7)
    assert [t.shape for t in rows.meta["val"]] == [(7,)] * 4
    items = sorted(rows.users, key=lambda item: item.args[1])
    assert [item.args[1] for item in items] == [0, 1, 2, 3]
    assert {item.meta["val"].shape for item in items} == {(7,)}
