"""Transpositions that undo each other are no part of the joint graph that a partition gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import runtime
from runtime import aot

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


def simplified(f: Callable[[Any], Any], x: Tensor) -> list[str]:
    """The calls of the forward graph of ``f``, which gives what ``f`` gives."""
    graphs: list[fx.Graph] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(module.graph)
        return aot.nop(module, inputs)

    leaf = runtime.wrap(x, requires_grad=True)
    torch.testing.assert_close(
        pytree.tree_map(runtime.unwrap, aot.aot_function(f, keep)(leaf)), f(x), rtol=0, atol=0
    )
    return calls(graphs[0])


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
    assert simplified(lambda x: back(there(x)) * 2, x) == ["mul"]


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
    assert simplified(f, x) == calls(aot.make_fx(f)(x).graph)


def test_three_transpositions_are_one() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert sorted(simplified(lambda x: x.t().t().t() * 2, x)) == ["mul", "t"]


def test_a_transposition_that_another_call_uses_stays_for_that() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert sorted(simplified(lambda x: (x.t() + 1, x.t().t() + 2), x)) == ["add", "add", "t"]


def test_a_result_that_is_transposed_twice_is_a_tensor_of_its_own() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y, y.t().t()

    y, twice = aot.aot_function(f, aot.nop)(torch.arange(6.0).view(2, 3))
    assert twice is not y and torch.equal(twice, y)
    assert twice.data_ptr() == y.data_ptr()
    assert simplified(lambda x: (x * 2).t().t(), torch.ones(2, 3)) == ["mul"]


def test_a_compiled_program_returns_another_tensor_for_an_argument_transposed_twice() -> None:
    w = runtime.tensor([[1.0, 2.0]], requires_grad=True)
    seen, loss = aot.aot_function(lambda w: (w.t().t(), (w * w).sum()), aot.nop)(w)
    assert seen is not w
    (loss + seen.sum()).backward()
    assert w.grad.tolist() == [[3.0, 5.0]]


def gradients(f: Callable[..., Any], cotangent: Tensor) -> list[Tensor]:
    leaves = [runtime.wrap(torch.rand(2, 3), requires_grad=True) for _ in range(2)]
    found = runtime.autograd.grad(aot.aot_function(f, aot.nop)(*leaves), leaves, cotangent)
    return [runtime.unwrap(g) for g in found]


def test_a_gradient_that_is_the_cotangent_transposed_twice_is_a_tensor_of_its_own() -> None:
    cotangent = torch.rand(2, 3)
    gradient, _ = gradients(lambda x, y: x.t().t() + y.sin(), cotangent)
    assert gradient is not cotangent and torch.equal(gradient, cotangent)


def test_a_gradient_that_is_another_one_transposed_twice_is_a_tensor_of_its_own() -> None:
    twice, once = gradients(lambda x, y: (x.t().t() + y) * 2, torch.ones(2, 3))
    assert twice is not once and torch.equal(twice, once)


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x: x.sin().transpose(0, 2).transpose(-1, -3).cos(), id="named anew"),
        pytest.param(lambda x: x[0].sin().t().t().cos(), id="of a matrix"),
    ],
)
def test_a_transposition_back_between_two_calls_is_none(f: Callable[[Any], Any]) -> None:
    assert "transpose" not in (names := simplified(f, torch.rand(2, 3, 4))) and "t" not in names


def test_a_transposition_of_other_dimensions_stays_between_two_calls() -> None:
    names = simplified(lambda x: x.sin().transpose(0, 2).transpose(0, 1).cos(), torch.rand(2, 3, 4))
    assert names == ["sin", "transpose", "transpose", "cos"]


def test_the_transposition_of_a_vector_stays() -> None:
    assert simplified(lambda x: x.sin().t().t().cos(), torch.rand(3)) == ["sin", "t", "t", "cos"]
