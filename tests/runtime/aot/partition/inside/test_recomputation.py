"""Which ops may run again, and what they cost.

Inside: ``runtime.aot.partition.recompute``. A cut weighs costs against bytes, so that a program
shows neither alone."""

from typing import Any

import pytest
import torch
from torch import fx

from runtime import aot
from runtime.aot.partition.recompute import Again, again, n_bytes, recomputable, work

aten: Any = torch.ops.aten


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


def test_what_records_say_of_running_a_call_again() -> None:
    constant = torch.ones(3)

    def of(g: Any, name: str, **options: Any) -> Again:
        return again(traced(g, torch.ones(3), **options)[name])

    assert of(lambda x: x + constant, "add") is Again.LOW
    assert {
        again(n)
        for n in traced(lambda x: x + constant, torch.ones(3)).values()
        if n.op == "get_attr"
    } == {Again.CONSTANT}
    assert {
        again(n) for n in traced(lambda x: x.sin(), torch.ones(3)).values() if n.op == "placeholder"
    } == {Again.INPUT}
    assert {
        again(n) for n in traced(lambda x: x.sin(), torch.ones(3)).values() if n.op == "output"
    } == {Again.UNKNOWN}
    assert of(lambda x: torch.rand_like(x), "rand_like") is Again.DRAW
    assert of(lambda x: x.nonzero(), "nonzero") is Again.UNKNOWN, "its size depends on values"
    assert (
        of(lambda x: x.sort(), "sort") is Again.HIGH
        and of(lambda x: x.sort()[0], "getitem") is Again.HIGH
    )
    assert of(lambda x: x.sin().t().as_strided((2,), (1,)), "as_strided") is Again.MEMORY
    assert of(lambda x: x.as_strided((2,), (1,)), "as_strided") is Again.LOW
    assert [one for one in Again if one.pure] == [Again.HIGH, Again.SIZE, Again.LOW]
