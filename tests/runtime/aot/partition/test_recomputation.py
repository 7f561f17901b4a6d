"""A partition recomputes only the ops that records allow: cheap ones without side effects or draws."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.library import Library

import runtime
from runtime.aot import aot_function, aot_module, default_partition, min_cut_rematerialization_partition, nop
from runtime.aot.partition.recompute import recomputable
from runtime.rules.derive import pointwise, random
from runtime.rules.record import RECORDS, register

aten: Any = torch.ops.aten
NAMESPACE = "recomputation_tests"
runs: list[str] = []


def doubled(name: str, x: torch.Tensor) -> torch.Tensor:
    runs.append(name)
    return x * 2


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """Ops that double their argument and write down that they ran: `plain` has no record, the others one by their name."""
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


def again(func: Any) -> bool:
    graph = fx.Graph()
    return recomputable(graph.call_function(func, (graph.placeholder("x"),)))


@pytest.mark.parametrize(
    ("name", "expected"), [("plain", False), ("unsaid", False), ("low", True), ("high", False), ("family", True), ("draw", False)]
)
def test_an_op_of_a_library_runs_again_only_if_its_record_calls_it_cheap(library: Any, name: str, expected: bool) -> None:
    assert again(getattr(library, name).default) is expected


@pytest.mark.parametrize("func", [aten.sin.default, aten.view.default, aten.sum.default, aten.full.default, aten.native_layer_norm.default])
def test_atens_ops_are_cheap_where_nothing_else_is_said(func: Any) -> None:
    assert again(func)


@pytest.mark.parametrize(
    "func", [aten.mm.default, aten.sort.stable, aten.linalg_eig.default, aten.rand_like.default, aten.rand.default, aten.add_.Tensor]
)
def test_contractions_sorts_factorizations_draws_and_writes_are_not_run_again(func: Any) -> None:
    assert not again(func)


@pytest.mark.parametrize(("name", "times"), [("low", 2), ("high", 1), ("unsaid", 1)])
def test_a_compiled_program_runs_an_op_as_often_as_its_cost_allows(library: Any, name: str, times: int) -> None:
    op = getattr(library, name)
    compiled = aot_function(lambda x: op(x.sin()).cos().sum(), nop, partition_fn=min_cut_rematerialization_partition)
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
    assert not again(aten.mkldnn_rnn_layer.default)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("op", [torch.linalg.inv, torch.linalg.cholesky, lambda a: torch.linalg.tensorsolve(a, a[0])])
def test_a_check_of_the_program_runs_in_every_call(op: Any, requires_grad: bool, partition: Any, dynamic: bool) -> None:
    f = aot_function(op, nop, partition_fn=partition, dynamic=dynamic)
    f(runtime.wrap(torch.eye(3), requires_grad))
    with pytest.raises(RuntimeError, match=r"singular|positive-definite"):
        f(runtime.wrap(-torch.ones(3, 3), requires_grad))


def test_a_batch_norm_may_run_again_and_counts_its_batches_once() -> None:
    """A budget of 0 runs it again in the backward. Its running statistics are those of one run, to the bit."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    reference = copy.deepcopy(model)
    backwards: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        backwards.append(module)
        return nop(module, inputs)

    compiled = aot_module(model, nop, keep, partition_fn=partial(min_cut_rematerialization_partition, memory_budget=0.0))
    for seed in range(3):
        torch.manual_seed(seed)
        images = torch.randn(4, 2, 16, 16)
        compiled(images).square().mean().backward()
        reference(images).square().mean().backward()
    assert aten._native_batch_norm_legit_functional.default in [n.target for n in backwards[0].graph.nodes]
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None and torch.equal(mine.grad, theirs.grad)
    assert all(map(torch.equal, model.buffers(), reference.buffers()))
