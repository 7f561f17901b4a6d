"""Calls in another order: which must follow which, and where those go that are brought together.

Inside: ``runtime.aot.compilers.ordering``. An order of calls that is allowed gives the same
results as any other one."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot.capture.aliasing import LINEAR
from runtime.aot.compilers.ordering import _has_order, bring_together, successors
from runtime.aot.compilers.replacing import _pure
from tests.runtime.aot.compilers.by_hand import node_of

aten: Any = torch.ops.aten


X = torch.rand(4, 3)


@pytest.mark.parametrize(
    "func, value, ordered",
    [
        (aten.sin.default, X, False),
        (aten.bernoulli.default, X, True),
        (aten.add_.Tensor, X, True),
        (aten._assert_async.msg, None, True),
        (operator.getitem, X, False),
        (LINEAR, X, False),
        (abs, X, True),
        (abs, 3, False),
        (abs, 2.5, False),
        (aten._local_scalar_dense.default, 2.5, False),
        (torch.ops.higher_order.cond, (X,), True),
    ],
    ids=lambda value: str(value) if callable(value) else type(value).__name__,
)
def test_draws_effects_and_functions_keep_their_order(func: Any, value: Any, ordered: bool) -> None:
    graph = fx.Graph()
    n = graph.call_function(func, (graph.placeholder("x"),))
    n.meta["val"] = value
    assert _has_order(n) is ordered


def test_the_op_of_another_library_keeps_its_order() -> None:
    with torch.library._scoped_library("tools_tests", "DEF") as library:
        library.define("own(Tensor x) -> Tensor")
        n = fx.Graph().call_function(torch.ops.tools_tests.own.default, ())
        assert _has_order(n) and not _pure(n)


def _line(*funcs: Any) -> tuple[fx.Graph, list[fx.Node]]:
    """Calls of one argument each, of ``x``."""
    graph = fx.Graph()
    x = node_of(X, graph)
    calls = [graph.call_function(f, (x,)) for f in funcs]
    for n in calls:
        n.meta["val"] = X
    graph.output(calls)
    return graph, calls


def test_a_draw_comes_after_the_draw_before_it_and_users_after_what_they_use() -> None:
    graph, (a, b, c, d) = _line(
        aten.bernoulli.default, aten.sin.default, aten.rand_like.default, aten.bernoulli.default
    )
    user = graph.call_function(aten.mul.Tensor, (a, b))
    assert successors([a, b, c, d]) == {a: [c], b: [], c: [d], d: []}
    assert successors([a, b, c, user]) == {a: [user, c], b: [user], c: [], user: []}


def test_calls_are_brought_to_the_place_of_the_last_of_them() -> None:
    graph, (a, b, c, d, e) = _line(*[aten.sin.default] * 5)
    nodes = [a, b, c, d, e]
    bring_together(graph, nodes, successors(nodes), [[a, d], [b, e]])
    assert [n for n in graph.nodes if n in nodes] == [c, a, d, b, e]


def test_what_needs_a_call_that_was_moved_comes_behind_it() -> None:
    graph, (a, b, c) = _line(*[aten.sin.default] * 3)
    with graph.inserting_after(a):
        user = graph.call_function(aten.cos.default, (a,))
    with graph.inserting_after(user):
        late = graph.call_function(aten.mul.Tensor, (user, a))
    nodes = [a, user, late, b, c]
    bring_together(graph, nodes, successors(nodes), [[a, c]])
    assert [n for n in graph.nodes if n in nodes] == [b, a, c, user, late]
