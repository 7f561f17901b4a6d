"""What is computed twice, copied or not used is not computed again, and results stay
tensors of their own."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import aot, jit
from runtime.aot.capture.aliasing import LINEAR
from runtime.aot.compilers.replacing import (
    Returned,
    _is_small,
    _pure,
    replace_alias,
    results_in,
    returned,
    shown,
    without_copies,
    without_repetitions,
)

from .by_hand import node_of, symbolic
from .rewritten_graphs import calls, runs

X, Y = torch.randn(4, 3), torch.randn(4, 3)


def test_what_is_computed_twice_is_computed_once() -> None:
    assert calls(lambda x, y: x.sin() * x.sin(), X, Y) == ["sin", "mul_"]
    assert calls(lambda x, y: (x * y).t() @ (x * y), X, Y) == ["mul", "t", "mm"]
    assert calls(lambda x: torch.var_mean(x)[0] * torch.var_mean(x)[1], X).count("var_mean") == 1


def test_two_results_of_the_same_elements_are_two_tensors() -> None:
    a, b = aot.aot_function(lambda x: (x.sin(), x.sin()), aot.nop)(X)
    assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    a, b = aot.aot_function(lambda x: (x.sin(), x.sin().t()), aot.nop)(X)
    assert torch.equal(a, b.t()) and a.data_ptr() != b.data_ptr()


def test_draws_are_not_one_draw() -> None:
    torch.manual_seed(0)
    a, b = aot.aot_function(
        lambda x: (torch.rand_like(x) * 1.5, torch.rand_like(x) * 1.5), aot.nop
    )(X)
    torch.manual_seed(0)
    assert torch.equal(a, torch.rand_like(X) * 1.5) and torch.equal(b, torch.rand_like(X) * 1.5)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2 + x * 2.0,
        lambda x: x * 0.0 + x * -0.0,
        lambda x: x.sum(0) * x.sum(0, keepdim=True)[0],
    ],
)
def test_other_arguments_make_another_call(f: Any) -> None:
    assert len(calls(f, X)) >= 3


def test_a_large_value_is_not_kept_for_a_later_call() -> None:
    """A checkpoint computes again what it does not save: that is not undone."""

    def f(x: torch.Tensor) -> Any:
        first = x.exp().sum()
        return first, x.exp().sum() * 2

    def g(x: torch.Tensor) -> Any:
        first = x.exp().sum() * x.sin().sum()
        return first * (x.exp() + x).sum()

    assert calls(g, X).count("exp") == 1 and calls(g, torch.randn(200, 200)).count("exp") == 2
    assert calls(f, X).count("exp") == 1


def test_copies_of_values_that_nobody_writes_to_are_not_made() -> None:
    assert calls(lambda x: (x * 2).clone() + 1, X) == ["mul", "add_"]
    assert calls(lambda x: x.clone() + 1, X) == ["add"]
    assert calls(lambda x: x.neg().neg() + 1, X) == ["add"]
    assert calls(lambda x: (x * 2).clone(), X) == ["mul"]


def test_a_copy_that_is_a_result_is_made() -> None:
    assert calls(lambda x: x.clone(), X) == ["clone"]
    assert calls(lambda x: ((u := x * 2), u.clone()), X) == ["mul", "clone"]
    assert calls(lambda x: x.clone().t(), X) == ["clone", "t"]
    assert calls(lambda x: x.t().contiguous() + 1, X) == ["t", "clone", "add_"]  # of another layout


def test_what_nothing_uses_is_not_computed() -> None:
    assert calls(lambda x: (x.exp(), x * 2)[1], X) == ["mul"]


def test_a_draw_that_nothing_uses_still_draws() -> None:
    torch.manual_seed(0)
    aot.aot_function(lambda x: (torch.rand_like(x), x * 2)[1], aot.nop)(X)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    torch.rand_like(X)
    assert torch.equal(drawn, torch.rand(3))


def test_a_copy_that_the_program_writes_to_is_not_what_it_was_copied_from() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.unfold(0, 2, 1).mul_(2)  # shows elements twice, so that the graph itself writes
        return y.sum()

    x = torch.ones(4, 3)
    assert torch.equal(aot.aot_function(f, aot.nop)(x), f(torch.ones(4, 3)))
    assert torch.equal(x, torch.ones(4, 3)) and x._version == 0


def test_a_write_that_the_graph_itself_makes_counts_as_in_eager_mode() -> None:
    def f(x: torch.Tensor) -> None:
        x.unfold(0, 2, 1).mul_(1.5)
        x.add_(1)

    found, expected = torch.ones(4, 3), torch.ones(4, 3)
    aot.aot_function(f, aot.nop)(found)
    f(expected)
    assert torch.equal(found, expected) and found._version == expected._version


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
    assert results_in(sin) == [twice, sin] and results_in(exp) == [exp, exp] and results_in(x) == []
    single, nodes = _chain()
    single.output(nodes[3])
    assert set(results_in(nodes[1])) == set(nodes[1:4])


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


def test_a_value_of_up_to_2_to_the_14_elements_is_kept_for_a_later_call() -> None:
    def again(x: Tensor) -> Any:
        return x.exp().sum() + x.sin().sum() * x.exp().max()

    assert runs(again, (1 << 14,)).count("exp") == 1
    assert runs(again, (1 << 14 | 1,)).count("exp") == 2
    assert runs(again, (3, 1 << 12)).count("exp") == 1


COPIES: dict[str, Any] = {
    "clone": lambda part: part.clone(),
    "to": lambda part: part.to(part.dtype, copy=True),
    "copy_": lambda part: torch.empty_like(part).copy_(part),
    "neg twice": lambda part: part.neg().neg(),
    "expand": lambda part: part.expand(4, 3).clone(),
    "flip twice": lambda part: part.t().clone().t(),
    "times one": lambda part: part * 1,
    "contiguous": lambda part: part.contiguous(),
}


@pytest.mark.parametrize("made", [False, True], ids=["of an argument", "of a value"])
@pytest.mark.parametrize("name", COPIES)
def test_a_view_of_a_copied_part_is_no_view_of_the_first_part(name: str, made: bool) -> None:
    """A copy begins its memory, and the part begins in the middle of that of the whole."""

    def program(x: Tensor) -> Tensor:
        x = x.sin() if made else x
        copied = COPIES[name](x[1])
        row: Tensor = copied[0] + x[0][0] * 2 + copied.reshape(12)[:3] * x[0].reshape(12)[:3]
        return row

    f = aot.aot_function(program, aot.nop)
    jitted = jit(program)
    for _ in range(3):
        x = torch.randn(2, 4, 3)
        whole = torch.randn(3, 2, 4, 3)
        for given in (x, whole[1]):  # which begins in the middle of its memory
            assert torch.equal(f(given), program(given)) and torch.equal(
                jitted(given), program(given)
            )
