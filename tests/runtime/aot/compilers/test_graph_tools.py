"""What the rewrites of a graph share: the forms of ops, what is known of values, the order of calls, and replacing."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from runtime.aot.capture.aliasing import LINEAR
from runtime.aot.compilers.epilogue import write_at_the_end
from runtime.aot.compilers.ordering import _ordered, bring_together, movable, successors
from runtime.aot.compilers.overloads import calls_of, in_place, kind, on_cpu, same_layout, static, with_out
from runtime.aot.compilers.placing import Destination
from runtime.aot.compilers.replacing import _pure, _small, replace, results_in, returned, shown, without_copies, without_repetitions

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
    ids=str,
)
def test_the_forms_of_an_op_that_write_to_a_given_tensor(func: Any, over: Any, out: Any) -> None:
    assert in_place(func) is over
    assert with_out(func) == out


def _node(value: Any, graph: fx.Graph | None = None) -> fx.Node:
    n = (graph or fx.Graph()).placeholder("x")
    n.meta["val"] = value
    return n


def _symbolic(*which: int) -> Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    size = mode.from_tensor(torch.ones(5)).shape[0]
    with mode:
        base = torch.empty(100)
        sizes, strides, offset = [2, 2], [2, 1], 0
        given: list[Any] = [*sizes, *strides, offset]
        for i in which:
            given[i] = size
        return base.as_strided(given[:2], given[2:4], given[4])


def test_a_static_value_is_a_strided_tensor_without_symbols() -> None:
    assert static(_node(X)) and static(_node(X.to("meta"))) and static(_node(_symbolic()))
    assert not any(static(_node(_symbolic(i))) for i in (0, 2, 4))
    assert not static(_node(X.to_sparse())) and not static(_node(None)) and not static(_node([X])) and not static(_node(3))
    assert not static(X) and not static(None) and not static(fx.Graph().placeholder("x"))


def test_whether_a_value_is_static_is_asked_anew_when_it_is_another_one() -> None:
    n = _node(X)
    assert static(n)
    n.meta["val"] = X.to_sparse()
    assert not static(n) and not static(n)
    n.meta["val"] = X
    assert static(n)


def test_where_a_value_lies_and_in_which_layout() -> None:
    assert on_cpu(_node(X)) and not on_cpu(_node(X.to("meta"))) and not on_cpu(_node(X.to_sparse()))
    assert kind(_node(X)) == (X.shape, X.dtype, X.device)
    a = _node(X)
    assert same_layout(a, _node(X.clone()))
    others = (X.double(), X[:2], X.t().contiguous().t(), X.to("meta"), X.view(2, 6))
    assert not any(same_layout(a, _node(other)) for other in others)


def test_the_calls_of_a_graph_are_those_of_functions() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    a, b = graph.call_function(aten.sin.default, (x,)), graph.call_function(aten.cos.default, (x,))
    graph.create_node("get_attr", "held")
    graph.output([a, b])
    assert calls_of(graph) == [a, b]
    assert [n.op for n in movable(graph)] == ["call_function", "call_function", "get_attr"]


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
    ids=str,
)
def test_draws_effects_and_functions_keep_their_order(func: Any, value: Any, ordered: bool) -> None:
    graph = fx.Graph()
    n = graph.call_function(func, (graph.placeholder("x"),))
    n.meta["val"] = value
    assert _ordered(n) is ordered


def test_the_op_of_another_library_keeps_its_order() -> None:
    with torch.library._scoped_library("tools_tests", "DEF") as library:
        library.define("own(Tensor x) -> Tensor")
        n = fx.Graph().call_function(torch.ops.tools_tests.own.default, ())
        assert _ordered(n) and not _pure(n)


def _line(*funcs: Any) -> tuple[fx.Graph, list[fx.Node]]:
    """Calls of one argument each, of ``x``."""
    graph = fx.Graph()
    x = _node(X, graph)
    calls = [graph.call_function(f, (x,)) for f in funcs]
    for n in calls:
        n.meta["val"] = X
    graph.output(calls)
    return graph, calls


def test_a_draw_comes_after_the_draw_before_it_and_users_after_what_they_use() -> None:
    graph, (a, b, c, d) = _line(aten.bernoulli.default, aten.sin.default, aten.rand_like.default, aten.bernoulli.default)
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


def _chain() -> tuple[fx.Graph, list[fx.Node]]:
    """x, sin(x), a view of that, a view of the view, and exp of the view."""
    graph = fx.Graph()
    x = _node(X, graph)
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
    assert results_in(sin) == [twice, sin] and results_in(exp) == [exp, exp] and results_in(x) == []
    single, nodes = _chain()
    single.output(nodes[3])
    assert set(results_in(nodes[1])) == set(nodes[1:4])


def test_a_result_takes_another_value_only_where_nobody_can_tell() -> None:
    def graph(*, other_is_returned: bool) -> tuple[fx.Node, fx.Node, fx.Node]:
        made = fx.Graph()
        x = _node(X, made)
        a, b = made.call_function(aten.sin.default, (x,)), made.call_function(aten.sin.default, (x,))
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
    user = b.graph.call_function(aten.cos.default, (b,))
    replace(b, x)
    assert user.args == (x,) and len(b.users) == 1


@pytest.mark.parametrize("same_memory, expected", [(False, False), (True, True)])
def test_a_returned_view_takes_another_value_only_if_that_is_the_same_memory(same_memory: bool, expected: bool) -> None:
    graph, (x, sin, t, _, exp) = _chain()
    graph.output([t, exp])
    replace(sin, x, same_memory)
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
    given: tuple[Any, ...] = tuple(_node(X, graph) for _ in range(args))
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
    x, constant = _node(X, graph), torch.ones(3)
    calls = [graph.call_function(aten.sum.dim_IntList, (x, [0])), graph.call_function(aten.sum.dim_IntList, (x, [1]))]
    calls += [
        graph.call_function(aten.sum.dim_IntList, (x, [0], False)),
        graph.call_function(aten.sum.dim_IntList, (x, [0]), {"dtype": None}),
    ]
    calls += [graph.call_function(aten.mul.Tensor, (x, a)) for a in (1, 1.0, True, constant, constant.clone())]
    again = [graph.call_function(aten.mul.Tensor, (x, constant)), graph.call_function(aten.sum.dim_IntList, (x, (0,)))]
    for n in (*calls, *again):
        n.meta["val"] = X
    user = graph.call_function(aten.stack.default, ([*calls, *again],))
    user.meta["val"] = X
    graph.output(user)
    without_repetitions(graph)
    assert user.args[0] == [*calls, calls[7], calls[0]]


def test_small_values_are_those_of_known_sizes() -> None:
    small, large = torch.empty(1 << 14, device="meta"), torch.empty((1 << 14) + 1, device="meta")
    values = (small, large, [small, small], [small, large], 3, None, _symbolic(0))
    assert [_small(_node(v)) for v in values] == [True, False, True, False, True, True, False]


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
    x = _node(value, graph)
    copied = graph.call_function(aten.clone.default, (x,))
    copied.meta["val"] = X if not value.is_complex() else torch.complex(X, X)
    user = graph.call_function(aten.sin.default, (copied,))
    graph.output(user)
    without_copies(graph)
    assert (user.args == (x,)) is left_out


@pytest.mark.parametrize("func, which", [(aten.copy.default, 1), (aten.lift_fresh_copy.default, 0), (aten._to_copy.default, 0)])
def test_a_copy_is_what_was_copied(func: Any, which: int) -> None:
    graph = fx.Graph()
    inputs = [_node(X, graph), _node(X, graph)][: 1 + which]
    copied = graph.call_function(func, tuple(inputs))
    copied.meta["val"] = X
    user = graph.call_function(aten.sin.default, (copied,))
    graph.output(user)
    without_copies(graph)
    assert user.args == (inputs[which],)


@pytest.mark.parametrize(
    "case, written", [("plain", True), ("twice a result", False), ("its memory is returned", False), ("lazy", False), ("no node", False)]
)
def test_a_new_value_is_written_at_the_end_where_no_result_shows_the_former_one(case: str, written: bool) -> None:
    graph = fx.Graph()
    x = _node(torch.complex(X, X).conj() if case == "lazy" else X, graph)
    new, view = graph.call_function(aten.mul.Tensor, (x, 2)), graph.call_function(aten.t.default, (x,))
    results: list[Any] = [
        new if case != "no node" else 3,
        new if case == "twice a result" else view if case == "its memory is returned" else 7,
    ]
    graph.output(results)
    found = write_at_the_end(graph, [Destination(0, 0, 3)])
    assert found == ({0: 3} if written else {})
    calls = [(n.target, n.args) for n in graph.nodes if n.target is aten.copy_.default]
    assert calls == ([(aten.copy_.default, (x, new))] if written else [])
    assert graph.output_node().args[0] == ([None, *results[1:]] if written else results)
