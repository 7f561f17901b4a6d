"""Transpositions that undo each other are no part of the joint graph that a partition gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

import runtime
from runtime import aot
from runtime.aot.partition.partitions import without_round_trips

aten: Any = torch.ops.aten


def joint_of(f: Any, *args: torch.Tensor) -> fx.Graph:
    """The joint graph as a partition gets it."""
    graphs: list[fx.Graph] = []

    def partition(joint: fx.GraphModule, *rest: Any, **options: Any) -> Any:
        graphs.append(joint.graph)
        return aot.default_partition(joint, *rest, **options)

    aot.aot_function(f, aot.nop, partition_fn=partition)(*args).sum().backward()
    return graphs[0]


def calls(graph: fx.Graph) -> list[str]:
    return [str(n.target).split(".")[1] for n in graph.nodes if n.op == "call_function"]


def simplified(f: Any, *args: torch.Tensor) -> fx.GraphModule:
    module = aot.make_fx(f)(*args)
    without_round_trips(module.graph)
    module.recompile()
    return module


def test_a_partition_gets_no_call_that_nothing_uses() -> None:
    """Both transpositions of a weight's way through ``linear`` and back are gone."""
    graph = joint_of(F.linear, torch.randn(3, 4), torch.randn(5, 4, requires_grad=True))
    assert all(n.users for n in graph.nodes if n.op == "call_function")
    # of the weight in the forward, of the cotangent in the backward
    assert sum(name in ("t", "transpose") for name in calls(graph)) == 2


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (lambda x: x.t(), lambda x: x.t()),
        (lambda x: x.transpose(0, 1), lambda x: x.transpose(1, 0)),
        (lambda x: x.transpose(-1, -2), lambda x: x.transpose(0, 1)),
        (lambda x: x.transpose(0, 1), lambda x: x.t()),
        (lambda x: x.t(), lambda x: x.transpose(-2, 1)),
    ],
)
def test_two_transpositions_of_the_same_dimensions_are_none(there: Any, back: Any) -> None:
    x = torch.arange(6.0).view(2, 3)
    module = simplified(lambda x: back(there(x)) * 2, x)
    assert calls(module.graph) == ["mul"]
    assert torch.equal(module(x), x * 2)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.transpose(0, 1).transpose(1, 2) * 2,
        lambda x: x.transpose(0, 2).transpose(1, 2) * 2,
        lambda x: x.transpose(0, 1).contiguous().view(2, 2, 2).transpose(0, 1) * 2,
        lambda x: x[0].t().sin().t() * 2,
        lambda x: x[0, 0].t().t() * 2,
        lambda x: x[0].t()[0] * 2,
    ],
)
def test_what_does_not_undo_the_transposition_before_it_stays(f: Any) -> None:
    x = torch.arange(8.0).view(2, 2, 2)
    expected = calls(aot.make_fx(f)(x).graph)
    module = simplified(f, x)
    assert calls(module.graph) == expected
    assert torch.equal(module(x), f(x))


def test_three_transpositions_are_one() -> None:
    x = torch.arange(6.0).view(2, 3)
    module = simplified(lambda x: x.t().t().t() * 2, x)
    assert sorted(calls(module.graph)) == ["mul", "t"]
    assert torch.equal(module(x), x.t() * 2)


def test_a_transposition_that_another_call_uses_stays_for_that() -> None:
    x = torch.arange(6.0).view(2, 3)
    module = simplified(lambda x: (x.t() + 1, x.t().t() + 2), x)
    assert torch.equal(module(x)[0], x.t() + 1) and torch.equal(module(x)[1], x + 2)


def test_a_result_that_is_transposed_twice_is_a_tensor_of_its_own() -> None:
    x = torch.arange(6.0).view(2, 3)
    twice = simplified(lambda x: x.t().t(), x)(x)
    assert twice is not x and torch.equal(twice, x)
    both = simplified(lambda x: (lambda y: (y, y.t().t()))(x * 2), x)(x)
    assert both[0] is not both[1] and torch.equal(*both)
    once = simplified(lambda x: (x * 2).t().t(), x)
    assert calls(once.graph) == ["mul"] and torch.equal(once(x), x * 2)


def test_a_compiled_program_returns_another_tensor_for_an_argument_transposed_twice() -> None:
    w = runtime.tensor([[1.0, 2.0]], requires_grad=True)
    seen, loss = aot.aot_function(lambda w: (w.t().t(), (w * w).sum()), aot.nop)(w)
    assert seen is not w
    (loss + seen.sum()).backward()
    assert w.grad.tolist() == [[3.0, 5.0]]


def _simplified(f: Callable[[Tensor], Any], *sizes: int) -> list[str]:
    module = fx.experimental.proxy_tensor.make_fx(f)(torch.rand(*sizes))
    without_round_trips(module.graph)
    return [str(n.target).split(".")[1] for n in module.graph.nodes if n.op == "call_function"]


def test_a_transposition_back_is_none_where_no_result_is_what_it_started_from() -> None:
    assert _simplified(lambda x: x.sin().t().t().cos(), 3, 4) == ["sin", "cos"]
    assert _simplified(lambda x: (y := x.sin(), y.t().t()), 3, 4) == ["sin", "t", "t"]
    assert _simplified(lambda x: x.sin().transpose(0, 2).transpose(-1, -3).cos(), 2, 3, 4) == [
        "sin",
        "cos",
    ]
    assert _simplified(lambda x: x.sin().transpose(0, 2).transpose(0, 1).cos(), 2, 3, 4) == [
        "sin",
        "transpose",
        "transpose",
        "cos",
    ]
    assert _simplified(lambda x: x.sin().t().t().cos(), 3) == ["sin", "t", "t", "cos"]
