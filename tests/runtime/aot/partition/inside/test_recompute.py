"""Which calls may run again, how large their values are, and what they cost.

Inside: ``runtime.aot.partition.recompute``. A cut weighs these answers on single calls together,
so that no report tells one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F

from runtime import aot
from runtime.aot import make_fx
from runtime.aot.partition.partitions import _one_of
from runtime.aot.partition.recompute import (
    UNKNOWN_SIZE,
    Again,
    again,
    call_of,
    flops,
    hint,
    is_item,
    is_size,
    is_view,
    n_bytes,
    policy_of,
    recomputable,
    viewed,
    work,
)
from runtime.checkpoint import CheckpointPolicy
from tests.runtime.trace.graphs import node

aten: Any = torch.ops.aten
X = torch.rand(4, 6)


def test_a_view_of_views_and_items_shows_the_call_that_made_the_memory() -> None:
    module = make_fx(lambda x: x.sin().split(2)[1].t().view(-1))(torch.ones(4, 1))
    assert viewed(node(module, "view")) is node(module, "sin")
    assert viewed(node(module, "sin")) is node(module, "sin")


def last(f: Callable[..., Any], *args: Tensor) -> fx.Node:
    """The last call of a program, or what it returns if it calls nothing."""
    module = make_fx(f)(*args)
    calls: list[fx.Node] = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    return (calls or list(module.graph.nodes)[:1])[-1]


CONSTANT = torch.ones(3)
KINDS: dict[str, tuple[Callable[[Tensor], Any], Again]] = {
    "an argument": (lambda x: x, Again.INPUT),
    "a constant": (lambda x: [x, CONSTANT], Again.CONSTANT),
    "a cheap op": (lambda x: x.sin(), Again.LOW),
    "a view": (lambda x: x.t(), Again.LOW),
    "an expensive op": (lambda x: x @ x.t(), Again.HIGH),
    "an item of an expensive op": (lambda x: x.sort(0)[0], Again.HIGH),
    "an item of a cheap op": (lambda x: F.layer_norm(x, (6,)), Again.LOW),
    "a draw": (lambda x: torch.rand_like(x), Again.DRAW),
    "a draw by probabilities": (lambda x: torch.bernoulli(x), Again.DRAW),
    "an unknown size": (lambda x: torch.ops.aten.nonzero(x), Again.UNKNOWN),
    "a strided view of an argument": (lambda x: x.as_strided((2, 2), (1, 2)), Again.LOW),
    "a strided view of a new tensor": (lambda x: x.sin().as_strided((2, 2), (1, 2)), Again.LOW),
    "a strided view of a view": (lambda x: x.t().as_strided((2, 2), (1, 2)), Again.MEMORY),
}


@pytest.mark.parametrize("f, kind", KINDS.values(), ids=KINDS)
def test_a_call_may_run_again_as_its_record_says(f: Callable[[Tensor], Any], kind: Again) -> None:
    n = last(f, X)
    assert again(n) is kind
    assert recomputable(n) == (kind in (Again.LOW, Again.SIZE))
    assert kind.pure == (kind in (Again.LOW, Again.HIGH, Again.SIZE))


def _called(func: Any, *args: Any, val: Any = None, **kwargs: Any) -> fx.Node:
    graph = fx.Graph()
    given = []
    for a in args:
        given.append(graph.placeholder("x") if isinstance(a, Tensor) else a)
        if isinstance(a, Tensor):
            given[-1].meta["val"] = a
    n = graph.call_function(func, tuple(given), kwargs)
    n.meta["val"] = val
    return n


def test_writes_assertions_and_functions_without_a_record_do_not_run_again() -> None:
    assert again(_called(aten.add_.Tensor, X, X, val=X)) is Again.EFFECT
    assert again(_called(aten.mul.out, X, X, val=X)) is Again.EFFECT
    assert again(_called(aten._assert_async.msg, X[0, 0], "no")) is Again.EFFECT
    assert again(_called(abs, X, val=X)) is Again.UNKNOWN
    assert again(_called(abs, val=3)) is Again.SIZE
    batch = _called(
        aten._native_batch_norm_legit.default,
        X,
        None,
        None,
        X[0],
        X[0],
        True,
        0.1,
        1e-5,
        val=(X, X[0], X[0]),
    )
    assert again(batch) is Again.EFFECT
    graph = batch.graph
    assert again(graph.create_node("call_module", "layer", (batch,))) is Again.UNKNOWN


def test_the_op_of_another_library_says_what_it_costs_or_stays_unknown() -> None:
    with torch.library._scoped_library("recompute_tests", "DEF") as library:
        library.define("own(Tensor x) -> Tensor")
        assert again(_called(torch.ops.recompute_tests.own.default, X, val=X)) is Again.UNKNOWN


def test_a_policy_is_told_by_its_name_and_one_of_an_item_by_its_call() -> None:
    module = make_fx(lambda x: x.sort(0)[0])(X)
    call, item = node(module, "sort"), next(n for n in module.graph.nodes if is_item(n))
    assert policy_of(item) is None
    for policy in CheckpointPolicy:
        call.meta["recompute"] = policy
        assert policy_of(call) is policy is policy_of(item)
    call.meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
    assert policy_of(item) is CheckpointPolicy.MUST_SAVE
    call.meta["recompute"] = 3
    assert policy_of(item) is None


def test_items_calls_views_and_sizes_are_told_apart() -> None:
    module = make_fx(lambda x: x.split(2)[1].sin())(X)
    split, item, sin = (node(module, name) for name in ("split", "getitem_1", "sin"))
    assert [is_item(n) for n in (split, item, sin)] == [False, True, False]
    assert [is_view(n) for n in (split, item, sin, node(module, "x_1"))] == [
        True,
        True,
        False,
        False,
    ]
    assert [call_of(n) for n in (split, item, sin)] == [split, split, sin]
    assert viewed(item) is node(module, "x_1") is viewed(split)
    for value, size in (
        (3, True),
        (2.5, True),
        (X, False),
        ([X], False),
        ((X,), False),
        (None, False),
    ):
        sin.meta["val"] = value
        assert is_size(sin) is size


def test_a_size_counts_as_it_was_in_the_trace_and_as_a_fixed_number_if_values_decide_it() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows = mode.from_tensor(torch.ones(5, 7)).shape[0]
    assert (hint(3), hint(rows), hint(2 * rows)) == (3, 5, 10)
    assert hint(ShapeEnv().create_unbacked_symint()) == UNKNOWN_SIZE == 4096


@pytest.mark.parametrize(
    "value, size",
    [
        (torch.ones(3, 5), 60),
        (torch.ones(3, 5, dtype=torch.int16), 30),
        (torch.ones(3, 5).expand(2, 3, 5), 120),
        (torch.ones(()), 4),
        (torch.ones(0, 5), 0),
        (torch.ones(3, 5).to_sparse(), 60),
        (torch.ones(0, 5).to_sparse(), 1),
        ([torch.ones(3), torch.ones(5, dtype=torch.bool)], 17),
        ((torch.ones(3), (torch.ones(2), 7)), 28),
        (3, 8),
        (None, 8),
        ([], 0),
    ],
)
def test_a_value_has_the_bytes_of_its_elements(value: Any, size: int) -> None:
    assert n_bytes(value) == size


@pytest.mark.parametrize(
    "f, operations, cost",
    [
        pytest.param(lambda x: x.sin(), 0, 96 + 96, id="cheap"),
        pytest.param(lambda x: x * x[0], 0, 96 + 96 + 24, id="of two"),
        pytest.param(lambda x: x.t(), 0, 0, id="a view"),
        pytest.param(lambda x: x, 0, 0, id="an argument"),
        pytest.param(lambda x: x.split(2)[1], 0, 0, id="an item"),
        pytest.param(
            lambda x: x @ x.t(), 2 * 4 * 4 * 6, 64 + 96 + 96 + 2 * 4 * 4 * 6 // 8, id="a product"
        ),
        pytest.param(lambda x: aten.sort(x)[1], 0, 0, id="an item of an expensive op"),
        pytest.param(lambda x: aten.cumsum(x, 0), None, None, id="a sum along a dimension"),
    ],
)
def test_a_call_costs_the_bytes_that_it_moves_and_its_operations(
    f: Any, operations: int | None, cost: int | None
) -> None:
    n = last(f, X)
    if operations is not None:
        assert (flops(n), work(n)) == (operations, cost)
    else:
        assert work(n) == 96 + 96 + flops(n) // 8


def test_an_expensive_op_without_a_formula_has_32_operations_per_element_of_four_bytes() -> None:
    n = _called(aten.sort.default, X, val=(X, X.long()))
    assert flops(n) == 32 * (96 + 192) // 4
    assert work(n) == 96 + 96 + 192 + flops(n) // 8
    assert flops(_called(abs, X, val=X)) == 0


def test_numbers_move_no_bytes() -> None:
    n = _called(aten.add.Tensor, X, X, val=X)
    size = n.graph.placeholder("n")
    size.meta["val"] = 7
    with_number = n.graph.call_function(aten.mul.Tensor, (n, size))
    with_number.meta["val"] = X
    assert work(with_number) == 96 + 96
    assert work(n) == 3 * 96
    sized = n.graph.call_function(abs, (size,))
    sized.meta["val"] = 7
    assert work(sized) == 0


def test_ops_that_may_run_again_are_named_by_packet_or_overload() -> None:
    sin, product, item = (
        last(lambda x: x.sin(), X),
        last(lambda x: x @ x.t(), X),
        last(lambda x: x.sort(0)[0], X),
    )
    for ops in ([aten.sin], [aten.sin.default]):
        allowed = _one_of(ops)
        assert allowed(sin) and not allowed(product) and not allowed(item)
    assert _one_of([aten.sort])(item) and _one_of([aten.mm])(product)
    sized = _called(abs, val=3)
    assert _one_of([])(sized) and not _one_of([])(_called(abs, X, val=X))
    with pytest.raises(
        ValueError,
        match=r"has aten\.bernoulli\.default, which the backward cannot run again: a random draw",
    ):
        _one_of([aten.bernoulli])(last(torch.bernoulli, X))


def may_run_again(func: Any) -> bool:
    graph = fx.Graph()
    return recomputable(graph.call_function(func, (graph.placeholder("x"),)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", False),
        ("unsaid", False),
        ("low", True),
        ("high", False),
        ("family", True),
        ("draw", False),
    ],
)
def test_an_op_of_a_library_runs_again_only_if_its_record_calls_it_cheap(
    library: Any, name: str, expected: bool
) -> None:
    assert may_run_again(getattr(library, name).default) is expected


@pytest.mark.parametrize(
    "func",
    [
        aten.sin.default,
        aten.view.default,
        aten.sum.default,
        aten.full.default,
        aten.native_layer_norm.default,
    ],
)
def test_atens_ops_are_cheap_where_nothing_else_is_said(func: Any) -> None:
    assert may_run_again(func)


@pytest.mark.parametrize(
    "func",
    [
        aten.mm.default,
        aten.sort.stable,
        aten.linalg_eig.default,
        aten.rand_like.default,
        aten.rand.default,
        aten.add_.Tensor,
    ],
)
def test_contractions_sorts_factorizations_draws_and_writes_are_not_run_again(func: Any) -> None:
    assert not may_run_again(func)


def traced(f: Any, *args: torch.Tensor, **options: Any) -> dict[str, fx.Node]:
    """The calls and inputs of a graph by name."""
    return {n.name: n for n in aot.make_fx(f, **options)(*args).graph.nodes}


@pytest.mark.parametrize(
    ("f", "name", "expected"),
    [
        (lambda x: x.sin(), "sin", 2 * 128),  # 32 numbers of 4 bytes are read and written
        (lambda x: x + x, "add", 2 * 128),
        (lambda x: x + x[0], "add", 2 * 128 + 32),
        (lambda x: x.double(), "_to_copy", 128 + 256),
        (lambda x: x > 0, "gt", 128 + 32),
        (lambda x: x.view(-1).sin(), "view", 0),
        (lambda x: x.t().sin(), "t", 0),
        (lambda x: x.max(0)[0].sin(), "getitem", 0),
        (lambda x: x.max(0)[0].sin(), "max_1", 128 + 8 * (4 + 8)),
        # a product and a sum for each term, eight of which are a byte
        (lambda x: x @ x.t(), "mm", 2 * 128 + 64 + 2 * 4 * 4 * 8 // 8),
        # 32 operations for each 4 bytes of results
        (lambda x: x.sort()[0], "sort", 128 + 32 * (4 + 8) + 32 * (32 * (4 + 8) // 4) // 8),
        (lambda x: torch.zeros(2, 3), "zeros", 24),
    ],
)
def test_the_work_of_a_call_is_what_it_moves_and_computes(f: Any, name: str, expected: int) -> None:
    assert work(traced(f, torch.ones(4, 8))[name]) == expected


def test_arguments_and_arithmetic_with_sizes_are_no_work() -> None:
    nodes = traced(
        lambda x: x.sum() * (x.shape[0] * 2 + 1), torch.ones(4, 8), tracing_mode="symbolic"
    )
    numbers = [
        n
        for n in nodes.values()
        if n.op == "call_function" and isinstance(n.meta.get("val"), torch.SymInt)
    ]
    assert numbers and {work(n) for n in numbers} == {0}
    assert work(next(n for n in nodes.values() if n.op == "placeholder")) == 0


def test_bytes_are_those_of_the_elements() -> None:
    assert (
        n_bytes(torch.ones(3, 4)) == 48
        and n_bytes(torch.ones(3, dtype=torch.bool)) == 3
        and n_bytes(torch.ones(())) == 4
    )
    assert n_bytes(torch.ones(3).expand(5, 3)) == 60 and n_bytes(torch.ones(0, 3)) == 0
    assert (
        n_bytes([torch.ones(2), (torch.ones(3), 1)]) == 8 + 12 + 8
        and n_bytes(None) == n_bytes(2.5) == 8
    )
    assert n_bytes(torch.eye(3).to_sparse()) == 36 and n_bytes(torch.zeros(0, 3).to_sparse()) == 1


def again_by_op(program: Callable[..., Any]) -> dict[str, Again]:
    """Return the answer for each kind of node in the graph of a program."""
    return {node.op: again(node) for node in traced(program, torch.ones(3)).values()}


CONSTANT = torch.ones(3)


@pytest.mark.parametrize(
    ("program", "call", "expected"),
    [
        (lambda x: x + CONSTANT, "add", Again.LOW),
        (lambda x: torch.rand_like(x), "rand_like", Again.DRAW),
        # The size of its result depends on values.
        (lambda x: x.nonzero(), "nonzero", Again.UNKNOWN),
        (lambda x: x.sort(), "sort", Again.HIGH),
        (lambda x: x.sort()[0], "getitem", Again.HIGH),
        (lambda x: x.sin().t().as_strided((2,), (1,)), "as_strided", Again.MEMORY),
        (lambda x: x.as_strided((2,), (1,)), "as_strided", Again.LOW),
    ],
)
def test_the_record_of_an_op_says_whether_it_may_run_again(
    program: Callable[..., Any], call: str, expected: Again
) -> None:
    assert again(traced(program, torch.ones(3))[call]) is expected


def test_nodes_that_call_nothing_are_inputs_constants_or_unknown() -> None:
    assert again_by_op(lambda x: x + CONSTANT)["get_attr"] is Again.CONSTANT
    kinds = again_by_op(lambda x: x.sin())
    assert kinds["placeholder"] is Again.INPUT
    assert kinds["output"] is Again.UNKNOWN


def test_only_calls_without_draws_and_effects_are_pure() -> None:
    assert [answer for answer in Again if answer.pure] == [Again.HIGH, Again.SIZE, Again.LOW]


def test_as_strided_of_a_view_is_not_taken_again_from_what_was_saved() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    view = graph.call_function(torch.ops.aten.diagonal.default, (x,))
    whole = graph.call_function(torch.ops.aten.as_strided.default, (view, [3], [1], 0))
    assert again(whole) is Again.MEMORY and not again(whole).pure


def test_as_strided_of_a_tensor_of_its_own_is_cheap() -> None:
    graph = fx.Graph()
    made = graph.call_function(torch.ops.aten.sin.default, (graph.placeholder("x"),))
    assert (
        again(graph.call_function(torch.ops.aten.as_strided.default, (made, [3], [1], 0)))
        is Again.LOW
    )
