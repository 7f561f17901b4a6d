"""Regions of a traced program: the calls of a checkpoint are marked in the graph, and its policy is
asked for each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime.aot import make_fx
from runtime.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

X = torch.tensor([1.0, 2.0])
SAVE, RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
Policy = Callable[..., CheckpointPolicy]


def region(policy: Policy, function: Callable[..., Any], *args: Tensor) -> Any:
    """Call a function as a checkpoint whose policy is asked for each call."""
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


def save_all(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return SAVE


def recompute_all(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return RECOMPUTE


def calls(module: fx.GraphModule) -> dict[str, fx.Node]:
    return {n.name: n for n in module.graph.nodes if n.op == "call_function"}


def marks(module: fx.GraphModule) -> dict[str, Any]:
    return {name: n.meta.get("recompute") for name, n in calls(module).items()}


def number(n: fx.Node) -> Any:
    """The number of the region that a call belongs to, under torch's key."""
    return n.meta.get("ac_graph_id")


def test_the_calls_of_a_region_are_marked_in_the_order_of_the_program() -> None:
    asked: list[str] = []

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        asked.append(op.name())
        return SAVE if op is torch.ops.aten.cos.default else RECOMPUTE

    def program(x: Tensor) -> Any:
        y = region(policy, lambda y: y.cos() * torch.ones(2), x.sin())
        return y.exp()

    module = make_fx(program)(X)
    assert asked == ["aten::cos", "aten::ones", "aten::mul.Tensor"]
    wishes = {"cos": SAVE, "ones": RECOMPUTE, "mul": RECOMPUTE}
    assert marks(module) == {"sin": None, **wishes, "exp": None}
    numbers = {name: number(n) for name, n in calls(module).items()}
    assert numbers["cos"] == numbers["ones"] == numbers["mul"] is not None
    assert numbers["sin"] is numbers["exp"] is None


def test_constants_are_no_calls_of_a_region() -> None:
    closed = torch.ones(2)
    module = make_fx(lambda x: region(save_all, lambda y: y * closed, x))(X)
    assert any(n.op == "get_attr" for n in module.graph.nodes)
    assert [n.name for n in module.graph.nodes if "recompute" in n.meta] == ["mul"]


def test_a_region_may_be_all_of_a_program() -> None:
    module = make_fx(lambda: region(save_all, lambda: torch.ones(2).sin()))()
    assert marks(module) == {"ones": SAVE, "sin": SAVE}


def test_each_region_has_a_number_and_one_inside_another_belongs_to_it() -> None:
    def outer(x: Tensor) -> Any:
        return region(save_all, torch.exp, x.cos())

    def program(x: Tensor) -> Any:
        return region(recompute_all, outer, region(save_all, torch.sin, x))

    module = make_fx(program)(X)
    assert marks(module) == {"sin": SAVE, "cos": RECOMPUTE, "exp": RECOMPUTE}
    sin, cos, exp = (number(n) for n in calls(module).values())
    assert cos == exp != sin


def test_a_region_is_marked_in_the_graphs_of_all_traces_around_it() -> None:
    inner: list[fx.GraphModule] = []

    def program(x: Tensor) -> Tensor:
        # a draw stays in the outer graph, too, where nobody uses the first one
        inner.append(make_fx(lambda y: region(save_all, torch.rand_like, y))(x))
        result: Tensor = inner[0](x).cos()
        return result

    outer_module = make_fx(program)(X)
    outer_call, inner_call = (calls(m)["rand_like"] for m in (outer_module, inner[0]))
    assert outer_call.graph is not inner_call.graph
    assert outer_call.meta["recompute"] == inner_call.meta["recompute"] == SAVE
    assert number(outer_call) == number(inner_call) is not None


def test_what_fails_in_a_region_asks_no_policy() -> None:
    asked: list[Any] = []

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        asked.append(op)
        return SAVE

    def fails(x: Tensor) -> Tensor:
        x.sin()
        raise KeyError

    with pytest.raises(KeyError):
        make_fx(lambda x: region(policy, fails, x))(X)
    assert asked == []


def test_a_policy_sees_the_values_of_each_call() -> None:
    shapes: list[Any] = []

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        shapes.append([t.shape for t in torch.utils._pytree.tree_leaves(args) if t is not None])
        return SAVE

    make_fx(lambda x: region(policy, lambda y: torch.cat([y, y]).sin(), x))(X)
    assert shapes[1] == [(4,)]
