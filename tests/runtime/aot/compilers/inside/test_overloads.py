"""The forms of ops that write to a given tensor, and what is known of the values of a graph.

Inside: ``runtime.aot.compilers.overloads``. The forms of all ops are a table, where a program
shows the form of the few that it calls."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot.compilers.ordering import movable
from runtime.aot.compilers.overloads import (
    calls_of,
    in_place,
    kind,
    on_cpu,
    same_layout,
    static,
    with_out,
)
from tests.runtime.aot.compilers.by_hand import node_of, symbolic

aten: Any = torch.ops.aten


X = torch.rand(4, 3)


@pytest.mark.parametrize(
    "func, over, out",
    [
        (aten.sin.default, aten.sin_.default, (aten.sin.out, "out")),
        (aten.add.Tensor, aten.add_.Tensor, (aten.add.out, "out")),
        (aten.add.Scalar, aten.add_.Scalar, (aten.add.Scalar_out, "out")),
        (aten.lerp.Scalar, aten.lerp_.Scalar, (aten.lerp.Scalar_out, "out")),
        (aten.threshold_backward.default, None, (aten.threshold_backward.grad_input, "grad_input")),
        (aten.tanh_backward.default, None, (aten.tanh_backward.grad_input, "grad_input")),
        (aten.eq.Tensor, aten.eq_.Tensor, (aten.eq.Tensor_out, "out")),
        (aten.copy.default, aten.copy_.default, None),
        (aten.fill.Scalar, aten.fill_.Scalar, None),
        (aten.zero.default, aten.zero_.default, None),
        (aten.bernoulli.default, None, None),
        (aten.sum.default, None, None),
        (aten.mm.default, None, None),
        (aten.t.default, None, None),
        (aten.add_.Tensor, None, None),
        (aten.normal_functional.default, None, None),
        (torch.sin, None, None),
        (operator.getitem, None, None),
    ],
)
def test_the_forms_of_an_op_that_write_to_a_given_tensor(func: Any, over: Any, out: Any) -> None:
    assert in_place(func) is over
    assert with_out(func) == out


def test_a_static_value_is_a_strided_tensor_without_symbols() -> None:
    assert static(node_of(X)) and static(node_of(X.to("meta"))) and static(node_of(symbolic()))
    assert not any(static(node_of(symbolic(i))) for i in (0, 2, 4))
    assert (
        not static(node_of(X.to_sparse()))
        and not static(node_of(None))
        and not static(node_of([X]))
        and not static(node_of(3))
    )
    assert not static(X) and not static(None) and not static(fx.Graph().placeholder("x"))


def test_whether_a_value_is_static_is_asked_anew_when_it_is_another_one() -> None:
    n = node_of(X)
    assert static(n)
    n.meta["val"] = X.to_sparse()
    assert not static(n) and not static(n)
    n.meta["val"] = X
    assert static(n)


def test_where_a_value_lies_and_in_which_layout() -> None:
    assert (
        on_cpu(node_of(X))
        and not on_cpu(node_of(X.to("meta")))
        and not on_cpu(node_of(X.to_sparse()))
    )
    assert kind(node_of(X)) == (X.shape, X.dtype, X.device)
    a = node_of(X)
    assert same_layout(a, node_of(X.clone()))
    others = (X.double(), X[:2], X.t().contiguous().t(), X.to("meta"), X.view(2, 6))
    assert not any(same_layout(a, node_of(other)) for other in others)


def test_the_calls_of_a_graph_are_those_of_functions() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    a, b = graph.call_function(aten.sin.default, (x,)), graph.call_function(aten.cos.default, (x,))
    graph.create_node("get_attr", "held")
    graph.output([a, b])
    assert calls_of(graph) == [a, b]
    assert [n.op for n in movable(graph)] == ["call_function", "call_function", "get_attr"]
