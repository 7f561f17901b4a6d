"""A partition recomputes only the ops that records allow: cheap ones without side
effects or draws."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.library import Library

import runtime
from runtime import aot
from runtime.aot import (
    aot_function,
    aot_module,
    default_partition,
    min_cut_rematerialization_partition,
    nop,
)
from runtime.aot.partition.recompute import Again, again, n_bytes, recomputable, work
from runtime.extend import pointwise, random, register
from runtime.rules import RECORDS

aten: Any = torch.ops.aten
NAMESPACE = "recomputation_tests"
runs: list[str] = []


def doubled(name: str, x: torch.Tensor) -> torch.Tensor:
    runs.append(name)
    return x * 2


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """Ops that double their argument and write down that they ran: `plain` has no record, the
    others one by their name."""
    made = Library(NAMESPACE, "FRAGMENT")
    for name in ("plain", "unsaid", "low", "high", "family", "draw"):
        made.define(f"{name}(Tensor x) -> Tensor")
        made.impl(name, partial(doubled, name), "CompositeExplicitAutograd")
    before = set(RECORDS)
    rule: dict[str, Any] = {"vjp": {"x": lambda g: g * 2}, "batch": lambda f, n, b, a, k: f(a[0])}
    register(f"{NAMESPACE}::unsaid", **rule)
    register(f"{NAMESPACE}::low", cost="low", **rule)
    register(f"{NAMESPACE}::high", cost="high", **rule)
    pointwise(f"{NAMESPACE}::family", x=lambda: 2)
    random(f"{NAMESPACE}::draw", cost="low")
    yield getattr(torch.ops, NAMESPACE)
    for func in set(RECORDS) - before:
        del RECORDS[func]
    made._destroy()


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


@pytest.mark.parametrize(("name", "times"), [("low", 2), ("high", 1), ("unsaid", 1)])
def test_a_compiled_program_runs_an_op_as_often_as_its_cost_allows(
    library: Any, name: str, times: int
) -> None:
    op = getattr(library, name)
    compiled = aot_function(
        lambda x: op(x.sin()).cos().sum(), nop, partition_fn=min_cut_rematerialization_partition
    )
    x = torch.randn(5, dtype=torch.float64)
    compiled(runtime.wrap(x, requires_grad=True))
    t = runtime.wrap(x, requires_grad=True)
    runs.clear()
    compiled(t).backward()
    assert runs == [name] * times
    torch.testing.assert_close(runtime.unwrap(t.grad), -(2 * x.sin()).sin() * 2 * x.cos())


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_a_recurrent_layer_is_expensive_and_its_gradients_are_eager_s(budget: float) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(4, 4, batch_first=True), torch.randn(2, 3, 4)
    layer(x)[0].square().sum().backward()
    expected = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    cut = partial(min_cut_rematerialization_partition, memory_budget=budget)
    aot_function(lambda x: layer(x)[0].square().sum(), nop, partition_fn=cut)(x).backward()
    torch.testing.assert_close([p.grad for p in layer.parameters()], expected)
    assert not may_run_again(aten.mkldnn_rnn_layer.default)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "op", [torch.linalg.inv, torch.linalg.cholesky, lambda a: torch.linalg.tensorsolve(a, a[0])]
)
def test_a_check_of_the_program_runs_in_every_call(
    op: Any, requires_grad: bool, partition: Any, dynamic: bool
) -> None:
    f = aot_function(op, nop, partition_fn=partition, dynamic=dynamic)
    f(runtime.wrap(torch.eye(3), requires_grad))
    with pytest.raises(RuntimeError, match=r"singular|positive-definite"):
        f(runtime.wrap(-torch.ones(3, 3), requires_grad))


def test_a_batch_norm_may_run_again_and_counts_its_batches_once() -> None:
    """A budget of 0 runs it again in the backward. Its running statistics are those of one
    run, to the bit."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    reference = copy.deepcopy(model)
    backwards: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        backwards.append(module)
        return nop(module, inputs)

    compiled = aot_module(
        model,
        nop,
        keep,
        partition_fn=partial(min_cut_rematerialization_partition, memory_budget=0.0),
    )
    for seed in range(3):
        torch.manual_seed(seed)
        images = torch.randn(4, 2, 16, 16)
        compiled(images).square().mean().backward()
        reference(images).square().mean().backward()
    assert aten._native_batch_norm_legit_functional.default in [
        n.target for n in backwards[0].graph.nodes
    ]
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (
            mine.grad is not None
            and theirs.grad is not None
            and torch.equal(mine.grad, theirs.grad)
        )
    assert all(map(torch.equal, model.buffers(), reference.buffers()))


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
