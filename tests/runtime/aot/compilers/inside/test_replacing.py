"""Which values of a graph may stand for one another.

Inside: ``runtime.aot.compilers.replacing``. What may not be replaced stays as it is, and a
program that is replaced gives the same results."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime.aot.capture.aliasing import LINEAR
from runtime.aot.compilers.replacing import (
    Returned,
    _is_small,
    _pure,
    replace_alias,
    returned,
    shown,
    times_returned,
    without_copies,
    without_repetitions,
)
from tests.runtime.aot.compilers.by_hand import node_of, symbolic

X, Y = torch.randn(4, 3), torch.randn(4, 3)

aten: Any = torch.ops.aten


def _chain() -> tuple[fx.Graph, list[fx.Node]]:
    """x, sin(x), a view of that, a view of the view, and exp of the view."""
    graph = fx.Graph()
    x = node_of(X, graph)
    sin = graph.call_function(aten.sin.default, (x,))
    t = graph.call_function(aten.t.default, (sin,))
    twice = graph.call_function(aten.t.default, (t,))
    exp = graph.call_function(aten.exp.default, (t,))
    for n in (sin, t, twice, exp):
        n.meta["val"] = X
    return graph, [x, sin, t, twice, exp]


def test_what_shows_a_value_and_which_results_do() -> None:
    graph, (x, sin, t, twice, exp) = _chain()
    graph.output([exp, twice, exp, sin])
    assert [shown(n) for n in (x, sin, t, exp)] == [[x], [sin, t, twice], [t, twice], [exp]]
    assert [returned(n) for n in (x, sin, t, twice, exp)] == [False, True, True, True, True]
    assert times_returned(graph) == {exp: 2, twice: 1, sin: 1}
    single, nodes = _chain()
    single.output(nodes[3])
    assert not times_returned(single)


def test_what_replaces_a_returned_value_is_returned_from_then_on() -> None:
    graph, (x, sin, t, twice, exp) = _chain()
    cos = graph.call_function(aten.cos.default, (sin,))
    graph.output([twice])
    results = Returned(graph)
    assert [n in results for n in (x, sin, t, twice, exp, cos)] == [
        returned(n) for n in (x, sin, t, twice, exp, cos)
    ]
    with graph.inserting_before(t):
        other = graph.call_function(aten.sin.default, (x,))
        alias = graph.call_function(aten.alias.default, (other,))
    results.replace_alias(sin, alias)
    assert t.args == (alias,) and alias in results and other in results and exp not in results
    results.replace(cos, exp)
    assert exp not in results, "cos was not returned"


def test_a_result_takes_another_value_only_where_nobody_can_tell() -> None:
    def replace(n: fx.Node, by: fx.Node) -> None:
        Returned(n.graph).replace(n, by)

    def graph(*, other_is_returned: bool) -> tuple[fx.Node, fx.Node, fx.Node]:
        made = fx.Graph()
        x = node_of(X, made)
        a, b = (
            made.call_function(aten.sin.default, (x,)),
            made.call_function(aten.sin.default, (x,)),
        )
        made.output([b, *([a] if other_is_returned else [])])
        return x, a, b

    x, a, b = graph(other_is_returned=False)
    replace(b, a)
    assert not b.users and len(a.users) == 1
    x, a, b = graph(other_is_returned=True)
    replace(b, a)
    assert len(b.users) == 1, "two results are two tensors"
    replace(b, x)
    assert len(b.users) == 1, "a result is no argument"
    with b.graph.inserting_before(b.graph.output_node()):
        user = b.graph.call_function(aten.cos.default, (b,))
    replace(b, x)
    assert user.args == (x,) and len(b.users) == 1


@pytest.mark.parametrize("same_memory, expected", [(False, False), (True, True)])
def test_a_returned_view_takes_another_value_only_if_that_is_the_same_memory(
    same_memory: bool, expected: bool
) -> None:
    graph, (x, sin, t, _, exp) = _chain()
    graph.output([t, exp])
    if same_memory:
        replace_alias(sin, x)
    else:
        Returned(graph).replace(sin, x)
    assert (t.args == (x,)) is expected


@pytest.mark.parametrize(
    "func, args, pure",
    [
        (aten.sin.default, 1, True),
        (aten.t.default, 1, True),
        (operator.getitem, 1, True),
        (LINEAR, 2, True),
        (abs, 1, False),
        (aten.bernoulli.default, 1, False),
        (aten.add_.Tensor, 2, False),
        (aten.empty.memory_format, 0, False),
        (aten.empty_like.default, 1, False),
        (aten._assert_async.msg, 1, False),
    ],
    ids=str,
)
def test_what_is_computed_twice_may_be_computed_once(func: Any, args: int, pure: bool) -> None:
    graph = fx.Graph()
    given: tuple[Any, ...] = tuple(node_of(X, graph) for _ in range(args))
    given += (0,) * (func is operator.getitem)
    twice = [graph.call_function(func, given) for _ in range(2)]
    for n in twice:
        n.meta["val"] = X
    user = graph.call_function(aten.add.Tensor, tuple(twice))
    user.meta["val"] = X
    graph.output(user)
    assert _pure(twice[0]) is pure
    without_repetitions(graph)
    assert user.args == (twice[0], twice[0] if pure else twice[1])


def test_other_keywords_dtypes_and_constants_make_another_call() -> None:
    graph = fx.Graph()
    x, constant = node_of(X, graph), torch.ones(3)
    calls = [
        graph.call_function(aten.sum.dim_IntList, (x, [0])),
        graph.call_function(aten.sum.dim_IntList, (x, [1])),
    ]
    calls += [
        graph.call_function(aten.sum.dim_IntList, (x, [0], False)),
        graph.call_function(aten.sum.dim_IntList, (x, [0]), {"dtype": None}),
    ]
    calls += [
        graph.call_function(aten.mul.Tensor, (x, a))
        for a in (1, 1.0, True, constant, constant.clone())
    ]
    again = [
        graph.call_function(aten.mul.Tensor, (x, constant)),
        graph.call_function(aten.sum.dim_IntList, (x, (0,))),
    ]
    for n in (*calls, *again):
        n.meta["val"] = X
    user = graph.call_function(aten.stack.default, ([*calls, *again],))
    user.meta["val"] = X
    graph.output(user)
    without_repetitions(graph)
    assert user.args[0] == [*calls, calls[7], calls[0]]


def test_small_values_are_those_of_known_sizes() -> None:
    small, large = torch.empty(1 << 14, device="meta"), torch.empty((1 << 14) + 1, device="meta")
    values = (small, large, [small, small], [small, large], 3, None, symbolic(0))
    assert [_is_small(node_of(v)) for v in values] == [True, False, True, False, True, True, False]


@pytest.mark.parametrize(
    "value, left_out",
    [
        (X, True),
        (X.double(), False),
        (X.t().contiguous().t(), False),
        (X.clone().requires_grad_(), False),
        (torch.complex(X, X), True),
        (torch.complex(X, X).conj(), False),
        (X.to_sparse(), False),
    ],
)
def test_a_copy_of_the_same_layout_is_left_out(value: Tensor, left_out: bool) -> None:
    graph = fx.Graph()
    x = node_of(value, graph)
    copied = graph.call_function(aten.clone.default, (x,))
    copied.meta["val"] = X if not value.is_complex() else torch.complex(X, X)
    user = graph.call_function(aten.sin.default, (copied,))
    graph.output(user)
    without_copies(graph)
    assert (user.args == (x,)) is left_out


@pytest.mark.parametrize(
    "func, which",
    [(aten.copy.default, 1), (aten.lift_fresh_copy.default, 0), (aten._to_copy.default, 0)],
)
def test_a_copy_is_what_was_copied(func: Any, which: int) -> None:
    graph = fx.Graph()
    inputs = [node_of(X, graph), node_of(X, graph)][: 1 + which]
    copied = graph.call_function(func, tuple(inputs))
    copied.meta["val"] = X
    user = graph.call_function(aten.sin.default, (copied,))
    graph.output(user)
    without_copies(graph)
    assert user.args == (inputs[which],)
