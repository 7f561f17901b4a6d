"""Graphs of traces: calls are as torch's own trace adds them, and unused ones are left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx as make_fx_of_torch

from runtime.aot import aot_function, make_fx, nop
from tests.runtime.trace.graphs import node, targets

aten = torch.ops.aten
X = torch.tensor([1.0, 2.0])


def test_a_call_is_the_one_that_torchs_trace_adds() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.add(x, x, alpha=2)

    ours, theirs = make_fx(f)(X), make_fx_of_torch(f)(X)
    assert str(ours.graph) == str(theirs.graph)
    assert node(ours, "add").kwargs == node(theirs, "add").kwargs == {"alpha": 2}


def test_arguments_in_lists_are_users() -> None:
    module = make_fx(lambda x: torch.stack([x, x]))(X)
    x, stacked = node(module, "x_1"), node(module, "stack")
    assert stacked.all_input_nodes == [x]
    assert stacked in x.users


def program_with_unused_calls(x: Tensor) -> Tensor:
    (x * torch.ones(2)).sin()
    x.mul_(2)
    torch.rand_like(x)
    torch.ops.aten._assert_async(x[0])
    return x + x


def test_unused_calls_without_effect_are_left_out_with_what_only_they_use() -> None:
    left = targets(make_fx(program_with_unused_calls)(X.clone()))
    assert left == [
        aten.mul_.Tensor,
        aten.rand_like.default,
        aten.select.int,
        aten._assert_async.default,
        aten.add.Tensor,
    ]


def test_a_compiler_gets_no_unused_calls_without_effect() -> None:
    found: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(module)
        return nop(module, inputs)

    aot_function(program_with_unused_calls, keep)(X.clone())
    left = targets(found[0])
    assert aten.sin.default not in left and aten.ones.default not in left
    assert aten.rand_like.default in left and aten._assert_async.default in left


def test_an_unused_size_is_left_out() -> None:
    def f(x: Tensor) -> Tensor:
        x.new_ones(x.shape[0] + 1)
        return x * 2

    assert targets(make_fx(f, tracing_mode="symbolic")(X)) == [aten.mul.Tensor]


def test_the_graph_that_a_compiler_got_stays_as_it_is() -> None:
    """The replay rewrites a copy: this program is one sine and one product there."""
    module = make_fx(lambda x: [(x * 1).sin() * (x * 1).sin()])(X)
    before = str(module.graph)
    run: Any = nop(module, [X])
    for _ in range(3):
        assert torch.equal(run([X])[0], X.sin() * X.sin())
    assert str(module.graph) == before
    assert [n.target for n in module.graph.nodes].count(aten.sin.default) == 2
