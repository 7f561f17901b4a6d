"""Which views show the same elements, and where.

Inside: ``runtime.aot.compilers.view_calls``. Each answer is one of sizes and strides; a program
shows only whether all of them together left out a call."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import aot
from runtime.aot.compilers.peephole import rewritten
from runtime.aot.compilers.view_calls import (
    _can_be_viewed_as,
    _counterpart,
    _geometry,
    _has_new_strides,
    _is_like,
    _is_view_of,
    _shows_all_of,
    _source,
    shorter_views,
)
from tests.runtime.aot.compilers.by_hand import aten, node_of, symbolic
from tests.runtime.aot.compilers.rewritten_graphs import names

X, BIAS, W = torch.randn(8, 6), torch.randn(6), torch.randn(6, 6)


def test_a_returned_view_of_views_that_undo_each_other_is_one_of_what_they_show() -> None:
    graph = aot.make_fx(lambda x: [u := x * 2, u.t().t()[1]])(X).graph
    assert names(rewritten(graph, ())[0]) == ["mul", "select"]


def _call(graph: fx.Graph, func: Any, *args: Any, val: Any) -> fx.Node:
    n = graph.call_function(func, args)
    n.meta["val"] = val
    return n


C = torch.randn(8, 6, dtype=torch.complex64)


@pytest.mark.parametrize(
    "func, value, result, known",
    [
        (aten.t.default, X, X.t(), True),
        (aten._unsafe_view.default, X, X.view(48), True),
        (aten.detach.default, X, X, True),
        (aten.detach.default, X.clone().requires_grad_(), X, False),
        (aten.detach.default, X, X.clone().requires_grad_(), False),
        (aten.t.default, X.clone().requires_grad_(), X.t(), True),
        (aten.neg.default, X, -X, False),
        (aten.neg_.default, X, X, False),
        (aten.view.dtype, X, X.view(torch.int32), False),
        (aten.t.default, C.conj(), C.t(), False),
        (aten.t.default, C, C.conj().t(), False),
        (aten.t.default, C.conj().imag, X.t(), False),
        (aten.t.default, X, C.conj().imag.t(), False),
        (aten.t.default, X, X.t().to("meta"), False),
        (aten.t.default, symbolic(0), X.t(), False),
        (aten.t.default, X, symbolic(0), False),
        (aten.aminmax.default, X, (X[0, 0], X[0, 0]), False),
        (abs, X, X, False),
    ],
    ids=lambda value: str(value) if callable(value) else type(value).__name__,
)
def test_a_view_is_one_of_the_same_elements(
    func: Any, value: Any, result: Any, known: bool
) -> None:
    graph = fx.Graph()
    x = node_of(value, graph)
    assert _source(_call(graph, func, x, val=result)) is (x if known else None)
    assert _source(x) is None


def test_an_item_is_a_view_if_its_call_gives_views() -> None:
    graph = fx.Graph()
    x = node_of(X, graph)
    for func, args, value, known in (
        (aten.unbind.int, (x,), X[0], True),
        (aten.split.Tensor, (x, 4), X[:4], True),
        (aten.max.dim, (x, 0), X[0], False),
        (abs, (x,), X, False),
        (dict, (), X, False),
    ):
        item = _call(graph, operator.getitem, _call(graph, func, *args, val=None), 0, val=value)
        assert _source(item) is (x if known else None)
    assert _source(_call(graph, aten.ones.default, val=X)) is None


def test_where_a_view_lies_is_told_from_the_beginning_of_what_it_shows() -> None:
    base = torch.randn(100)
    x, y = node_of(base[10:58].view(8, 6)), node_of(base[16:58].view(7, 6).t())
    assert _geometry(y, x) == ((6, 7), (1, 6), 6, torch.float32)


@pytest.mark.parametrize(
    "root, view, viewable",
    [
        (X, X.view(2, 24), True),
        (X, X.t(), False),
        (X.t(), X.view(48), False),
        (X, X[1:], False),
        (X[:4], X[1:5], False),
        (X, X.expand(1, 8, 6), True),
    ],
)
def test_a_view_can_be_taken_at_once_where_its_sizes_tell_it(
    root: Tensor, view: Tensor, viewable: bool
) -> None:
    n = node_of(root)
    assert _is_view_of(n, _geometry(node_of(view), n)) is viewable


def test_the_strides_of_a_new_tensor() -> None:
    for t in (
        X,
        X.view(8, 1, 6),
        torch.empty(()),
        torch.empty(0, 3),
        torch.empty(3, 0, 2),
        torch.empty(1, 1),
    ):
        assert _has_new_strides(t)
    for t in (X.t(), X[:, :5], X[:, :1], torch.empty(2, 3, 1).as_strided((2, 3, 1), (3, 1, 7))):
        assert not _has_new_strides(t)


def test_a_view_of_the_whole_shows_all_elements_in_their_order() -> None:
    for view, whole in (
        (X.view(48), True),
        (X[:4], False),
        (X.t(), False),
        (X.as_strided((48, 1), (1, 9)), False),
    ):
        assert _shows_all_of(node_of(view), node_of(X)) is whole
    assert not _shows_all_of(node_of(X), node_of(X.t())) and not _shows_all_of(
        node_of(X), node_of(X.as_strided((48, 1), (1, 9)))
    )


@pytest.mark.parametrize(
    "value, shape, sizes, same",
    [
        (torch.ones(()), (8, 1, 6), (8, 6), True),
        (torch.ones(6), (8, 1, 6), (8, 6), True),
        (torch.ones(1, 6), (8, 1, 6), (8, 6), False),
        (torch.ones(6), (8, 6), (2, 4, 6), True),
        (torch.ones(6), (1, 6), (6,), True),
        (torch.ones(8, 6), (8, 6), (2, 4, 6), False),
        (torch.ones(6), (8, 6), (8, 6), False),
        (torch.ones(6), (8, 6), (6, 8), False),
        (torch.ones(4, 6), (2, 4, 6), (6,), False),
        (symbolic(0), (8, 6), (2, 4, 6), False),
    ],
    ids=lambda value: "value" if isinstance(value, Tensor) else str(value),
)
def test_a_smaller_operand_meets_the_same_elements_where_the_last_sizes_are_the_same(
    value: Any, shape: Any, sizes: Any, same: bool
) -> None:
    n = node_of(value)
    assert _counterpart(n, shape, sizes, {}) is (n if same else None)


def test_a_view_stands_for_what_it_shows_if_both_have_the_sizes_in_question() -> None:
    graph = fx.Graph()
    x = node_of(X, graph)
    view = _call(graph, aten.view.default, x, [48], val=X.view(48))
    assert _counterpart(view, (48,), (8, 6), {view: x}) is x
    for shape, sizes in (((48,), (6, 8)), ((1, 48), (8, 6))):
        assert _counterpart(view, shape, sizes, {view: x}) is not x
    rows = _call(graph, aten.t.default, x, val=X.t())
    assert _counterpart(rows, (6, 8), (8, 6), {rows: x}) is None


def test_a_view_of_a_large_value_is_found_without_its_memory() -> None:
    large = torch.empty(1 << 20, 1 << 20, device="meta")
    n = node_of(large)
    assert _is_view_of(n, _geometry(node_of(large.view(1 << 40)), n))


def test_a_view_that_takes_the_place_of_a_call_is_known_to_later_ones() -> None:
    def f(x: Tensor, bias: Tensor) -> Tensor:
        y = (x * 2).view(8, 1, 6) + bias
        return (
            y.cumsum(0) + y.view(8, 6).view(8, 1, 6).cumsum(0) + y.view(48).view(8, 1, 6).cumsum(0)
        )

    graph = aot.make_fx(f)(X, BIAS).graph
    shorter_views(graph)
    (taken,) = {n.args[0] for n in graph.nodes if n.target is aten.cumsum.default}
    computed: Any = taken.args[0]
    assert taken.target is aten.view.default and computed.target is aten.add.Tensor


CHANNELS = X.as_strided((48, 1), (1, 9))  # contiguous, and not as a new tensor


def test_a_value_is_computed_in_other_sizes_of_as_many_elements_if_it_lies_as_a_new_one() -> None:
    assert (
        _can_be_viewed_as(X, (48,))
        and _can_be_viewed_as(X, (2, 4, 6))
        and _can_be_viewed_as(X[0, 0], ())
        and _can_be_viewed_as(X[0, 0], (1, 1))
    )
    assert (
        not _can_be_viewed_as(X, (7, 6))
        and not _can_be_viewed_as(X, ())
        and not _can_be_viewed_as(CHANNELS, (8, 6))
    )


def test_one_operand_has_the_sizes_the_dtype_and_the_layout_of_the_result() -> None:
    assert _is_like(node_of(X), (8, 6), torch.float32)
    assert not _is_like(node_of(X), (48,), torch.float32)
    assert not _is_like(node_of(X), (8, 6), torch.float64) and not _is_like(
        node_of(CHANNELS), (48, 1), torch.float32
    )
