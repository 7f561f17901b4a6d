"""Which tensors share memory, and which results of ops may.

Inside: ``runtime.aot.capture.aliasing``. Captures ask these questions of any op and any strides,
and a program shows the answer for few of them."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

from runtime import aot
from runtime.aot.capture.aliasing import (
    LINEAR,
    fresh,
    functional_pointwise,
    may_alias,
    may_return_argument,
    memory_of,
    overlapping,
    saved_of,
    saved_of_results,
    sharing,
    within_reach,
)

aten: Any = torch.ops.aten


def members(*tensors: Any) -> list[tuple[int, ...]]:
    return [group.members for group in sharing(tensors)]


def test_tensors_of_other_memories_and_numbers_are_in_no_group() -> None:
    assert members(torch.ones(2), torch.ones(2)) == []
    assert members(1, 1, None, torch.ones(2)) == []
    assert members(torch.eye(2).to_sparse(), torch.ones(2)) == []


def test_pieces_that_overlap_are_a_group_and_those_beside_one_another_are_none() -> None:
    x = torch.arange(10.0)
    assert members(x[:5], x[5:]) == []
    assert members(x[:6], 7, x[5:]) == [(0, 2)]
    assert members(x[:3], x[7:], x[2:5], x[6:8]) == [(0, 2), (1, 3)]
    assert members(x[:3], x[4:], x[2:5]) == [(0, 1, 2)], "two meet in a third one"
    assert members(x, x[2:3], x[8:]) == [(0, 1, 2)], "one spans the others"
    assert members(x[::2], x[1::2]) == [(0, 1)], "by the elements between first and last"


def test_a_group_says_where_its_members_lie() -> None:
    x = torch.arange(12.0)
    a, b = x[2:8].view(2, 3), x[4:10:2]
    (group,) = sharing([a, b])
    assert (group.identical, group.start, group.length) == (False, 2, 7)
    assert group.base([a, b]).tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert group.place(0) == ((2, 3), (3, 1), 0)
    assert group.place(1) == ((3,), (2,), 2)
    assert not group.differentiated
    base = group.base([a, b]).clone()  # an offset counts from the start of the base
    assert all(torch.equal(base.as_strided(*group.place(i)), t) for i, t in enumerate((a, b)))


def test_places_count_elements_of_any_size() -> None:
    x = torch.arange(6, dtype=torch.int64)
    a, b = x[1:4], x[3:]
    (group,) = sharing([a, b])
    assert (group.start, group.length) == (1, 5)
    base = group.base([a, b]).clone()
    assert [base.as_strided(*group.place(i)).tolist() for i in (0, 1)] == [[1, 2, 3], [3, 4, 5]]


def test_one_tensor_that_is_given_twice_is_identical() -> None:
    x = torch.ones(3)
    (group,) = sharing([x, 2.0, x])
    assert group.identical and group.members == (0, 2) and group.first(2) == 0
    (group,) = sharing([x, x.view(3)])
    assert not group.identical and group.first(1) == 1 and group.firsts == ()


def test_the_first_of_each_tensor_stands_for_it() -> None:
    x = torch.ones(3)
    y = x[:2]
    (group,) = sharing([x, y, x, y])
    assert not group.identical and [group.first(i) for i in range(4)] == [0, 1, 0, 1]
    assert (
        group.alone(0, (0, 1, 0, 1))
        and not group.alone(0, (0, 0, 0, 0))
        and not group.alone(1, (0, 0, 1, 1))
    )


def test_an_expanded_tensor_that_is_given_twice_is_no_identical_one() -> None:
    x = torch.ones(1).expand(3)
    (group,) = sharing([x, x])
    assert not group.identical


def test_tensors_without_elements_share_nothing_but_themselves() -> None:
    x = torch.ones(4)
    empty, other = x[:0], x[1:1]
    assert members(empty, other, x) == []
    (group,) = sharing([empty, x, empty])
    assert (
        group.members == (0, 2)
        and group.identical
        and (group.start, group.length, group.places) == (0, 0, ())
    )


def test_parts_of_subclasses_share_memory_as_the_whole() -> None:
    x, y = torch.ones(3), torch.ones(3)
    one = TwoTensor(x, y)
    (group,) = sharing([one, torch.ones(3), one])
    assert (group.members, group.identical, group.parts_of) == ((0, 2), True, "TwoTensor")
    (group,) = sharing([y, TwoTensor(torch.ones(3), y)])
    assert (group.members, group.identical, group.parts_of) == ((0, 1), False, "TwoTensor")
    (group,) = sharing([TwoTensor(x, x)])
    assert (group.members, group.identical, group.parts_of) == ((0,), False, "TwoTensor")
    assert sharing([one, TwoTensor(torch.ones(3), torch.ones(3)), x.clone()]) == ()


def test_plain_tensors_beside_a_subclass_are_grouped_by_their_own_numbers() -> None:
    x = torch.arange(5.0)
    (group,) = sharing([TwoTensor(torch.ones(3), torch.ones(3)), x[:3], x[2:], x[:3]])
    assert (group.members, group.parts_of, group.start, group.length) == ((1, 2, 3), "", 0, 5)
    same = x[:3]
    (group,) = sharing([TwoTensor(torch.ones(3), torch.ones(3)), same, x[2:], same])
    assert [group.first(i) for i in group.members] == [1, 2, 1]


def test_a_tensor_that_shows_an_element_twice_is_a_group_of_its_own() -> None:
    x = torch.arange(6.0)
    windows = x[1:].unfold(0, 3, 1)
    (group,) = overlapping([torch.ones(2), windows], ())
    assert (group.members, group.identical, group.start, group.length) == ((1,), False, 1, 5)
    assert group.places == (((3, 3), (1, 1), 1),)
    assert overlapping([x, 3, x[::2]], ()) == []
    assert overlapping([windows, x], sharing([windows, x])) == []
    conjugated = torch.ones(4, dtype=torch.complex64).unfold(0, 3, 1).conj()
    with pytest.raises(
        RuntimeError,
        match="argument 0, which shows an element of its memory several times, as unfold does",
    ):
        overlapping([conjugated], ())


def test_a_memory_is_known_by_its_storage() -> None:
    x = torch.ones(4)
    assert memory_of(x) == memory_of(x[2:]) != memory_of(x.clone())
    assert memory_of(torch.eye(2).to_sparse()) is None


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (aten.view.default, True),
        (aten.t.default, True),
        (aten.split.Tensor, True),
        (aten.unsafe_split.Tensor, True),
        (aten._unsafe_view.default, True),
        (aten.reshape.default, True),
        (aten.add_.Tensor, True),
        (aten.add.Tensor, False),
        (aten.clone.default, False),
        (aten.cat.default, False),
        (aten.mm.default, False),
    ],
)
def test_which_ops_may_return_memory_of_an_argument(func: Any, expected: bool) -> None:
    assert may_return_argument(func) is expected


@pytest.mark.parametrize(
    ("func", "expected"),
    [(aten.add.Tensor, True), (aten.sin.default, True), (aten.sin_.default, False),
        (aten.sin.out, False), (aten.sum.default, False),
     (aten.frexp.Tensor, False), (aten.square.default, False), (torch.sin, False)],
)  # fmt: skip
def test_which_ops_compute_each_element_of_a_new_tensor(func: Any, expected: bool) -> None:
    assert functional_pointwise(func) is expected


def graph_of(f: Any, *args: torch.Tensor) -> fx.Graph:
    graph: fx.Graph = aot.make_fx(f)(*args).graph
    return graph


def test_what_the_caller_can_write_to_among_what_is_saved() -> None:
    """After one result: an argument, a view of it, the result, a view of that, and two values of
    the graph's own."""

    def f(x: Any, y: Any) -> Any:
        r, own = y.sin(), y.exp()
        return r, x, x.view(-1), r, r.t(), own, own.t()

    graph = graph_of(f, torch.ones(2, 2), torch.ones(2, 2))
    assert within_reach(graph, 1) == (0, 1, 2, 3)
    assert within_reach(graph_of(lambda x: (x * 2, x * 3, x.t()), torch.ones(2, 2)), 1) == (1,)
    assert within_reach(graph_of(lambda x: (x * 2, x * 3, x * 4), torch.ones(2, 2)), 2) == ()
    assert saved_of(graph_of(lambda x: (x * 2, x.t()), torch.ones(2, 2)), 1, [0]) == (0,)
    first, last = graph_of(lambda x: (lambda r: (r, x * 1, r.t()))(x.sin()), torch.ones(2, 2)), (1,)
    assert within_reach(first, 1) == last, "of a view of the first result"
    assert (
        saved_of(graph, 1, [0]) == (0, 1)
        and saved_of(graph, 1, [1]) == ()
        and saved_of(graph, 1, [0, 1]) == (0, 1)
    )


def test_which_results_may_share_memory_with_what_is_saved() -> None:
    def f(x: Any) -> Any:
        r, own = x.sin(), x.exp()
        return r, own, r.t(), x * 2, r.view(-1)

    graph = graph_of(f, torch.ones(2, 2))
    assert saved_of_results(graph, [[0], [1], [2], [3]], 4) == (0, 2)
    assert saved_of_results(graph, [[1, 3], [3, 2], []], 4) == (1,)
    assert saved_of_results(graph, [[0], [1]], 5) == ()


def test_a_linear_layer_of_a_graph_that_is_about_to_run_is_a_tensor_of_its_own() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(LINEAR, (x, x))
    part = graph.call_function(operator.getitem, (y, 0))
    graph.output((y, part))
    assert not may_alias(y) and may_alias(part) and fresh(y)
    assert saved_of(graph, 0, [0]) == ()


def test_which_values_are_tensors_of_their_own() -> None:
    def f(x: Any) -> Any:
        values, places = x.sort(0)
        return x.sin(), x.t(), x.mm(x), values, places, x

    nodes = {n.name: n for n in graph_of(f, torch.ones(2, 2)).nodes}
    assert fresh(nodes["sin"]) and fresh(nodes["mm"])
    assert not fresh(nodes["t"] if "t" in nodes else nodes["transpose"]) and not any(
        fresh(n) for n in nodes.values() if n.op == "placeholder"
    )


def test_an_item_of_several_results_is_fresh_if_it_has_no_other_name() -> None:
    def items(*numbers: int, whole: bool = False) -> list[bool]:
        graph = fx.Graph()
        several = graph.call_function(
            torch.ops.aten.native_layer_norm.default,
            (graph.placeholder("x"), [2], None, None, 1e-5),
        )
        made = [graph.call_function(operator.getitem, (several, i)) for i in numbers]
        graph.output((*made, several) if whole else tuple(made))
        return [fresh(n) for n in made]

    assert items(0, 1) == [True, True] and items(0) == [True]
    assert items(0, 1, 0) == [False, True, False] and items(0, 1, whole=True) == [False, False]
