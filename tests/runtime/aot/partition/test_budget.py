"""A smaller memory budget never takes more memory, by the lives of values and by the allocator, and
the gradients stay the same."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import runtime
from runtime import aot
from runtime.aot.partition import partitions
from runtime.aot.partition.budget import choices
from runtime.aot.partition.halves import Parts
from runtime.aot.partition.network import Network
from runtime.aot.partition.recompute import Again, again, is_view, recomputable

from .by_hand import Joint, X

aten: Any = torch.ops.aten
BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
WIDTH = 6


def drawn(seed: int) -> Callable[..., torch.Tensor]:
    """A random program of products, pointwise ops, reductions, views and draws of matrices and
    weights, all ``WIDTH`` wide."""
    source = random.Random(seed)
    unary: list[Callable[..., torch.Tensor]] = [
        torch.sin,
        torch.exp,
        lambda x: x.softmax(-1),
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: F.layer_norm(x, (WIDTH,)),
        lambda x: x.t().contiguous() if x.shape[0] == x.shape[1] else x.cos(),
        lambda x: F.dropout(x, 0.3),
        lambda x: torch.cat([x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1),
    ]
    steps = [
        (source.randrange(3), source.randrange(len(unary)), source.random(), source.random())
        for _ in range(source.randint(4, 25))
    ]

    def program(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        made = [x]
        for kind, op, first, second in steps:
            a, b = made[int(first * len(made))], made[int(second * len(made))]
            if kind == 0:
                made.append(unary[op](a).tanh())
            elif kind == 1:
                made.append((a @ weights[int(second * len(weights))]).tanh())
            else:
                made.append(a * b)
        return sum((m.sin().sum() for m in made[1:]), made[-1].sum())

    return program


def inputs() -> list[torch.Tensor]:
    return [
        torch.randn(8, WIDTH, requires_grad=True),
        *(torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(2)),
    ]


def network(seed: int) -> Network:
    module = aot.aot_export_joint_simple(
        lambda *args: [drawn(seed)(*args)], inputs(), trace_joint=True
    )
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    output = module.graph.output_node()
    module.recompile()
    assert len(output.args[0]) == 4  # type: ignore[arg-type]
    return Network(Parts(module, 1), set(), recomputable)


@pytest.mark.parametrize("seed", range(40))
def test_along_the_choices_work_rises_while_peak_and_saved_bytes_fall(seed: int) -> None:
    chain = choices(network(seed))
    for larger, smaller in itertools.pairwise(chain):
        assert smaller.work > larger.work
        assert smaller.peak < larger.peak
        assert smaller.bytes <= larger.bytes


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_cuts_at_rising_prices_are_nested(seed: int) -> None:
    net = network(seed)
    before: set[Any] | None = None
    for factor in (0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0):
        again = set(
            net.recomputed(
                net.cut(price=lambda n, factor=factor: math.ceil(factor * net.price_of(n)))  # type: ignore[misc]
            )
        )
        dear = {n for n in again if not net.allowed[n]}
        assert before is None or dear <= before
        before = dear


@pytest.mark.parametrize("seed", range(20))
def test_the_first_choice_runs_no_expensive_op_again_and_none_runs_what_is_impure(
    seed: int,
) -> None:
    net = network(seed)
    chain = choices(net)
    assert all(recomputable(n) for n in net.recomputed(chain[0].saved))
    for choice in chain:
        assert all(
            again(n) in (Again.LOW, Again.HIGH, Again.SIZE) for n in net.recomputed(choice.saved)
        )


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("seed", range(12))
def test_gradients_are_eager_s_under_every_budget(seed: int, budget: float) -> None:
    program, plain = drawn(seed), inputs()
    torch.manual_seed(seed)
    expected = torch.autograd.grad(program(*plain), plain, allow_unused=True)
    cut = partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    given = [runtime.wrap(t.detach().clone(), requires_grad=True) for t in plain]
    compiled = aot.aot_function(program, aot.nop, partition_fn=cut)
    torch.manual_seed(seed)
    compiled(*given).backward()
    for t, g in zip(given, expected, strict=True):
        assert (t.grad is None) == (g is None)
        if g is not None:
            torch.testing.assert_close(runtime.unwrap(t.grad), g)


class Block(torch.nn.Module):
    """A transformer block before its norms, with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = (*x.shape[:2], self.heads, x.shape[-1] // self.heads)
        q, k, v = (t.view(split).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        attended = ((q @ k.mT) / math.sqrt(split[-1])).softmax(-1) @ v
        x = x + F.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)), 0.1)
        added: torch.Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return added


def models() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    nn = torch.nn
    deep = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.GELU())))
    norm = nn.Sequential(
        nn.Linear(32, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
    )
    return {
        "twelve layers": (deep, torch.randn(512, 64)),
        "batch norm": (norm, torch.randn(512, 32)),
        "transformer": (nn.Sequential(*(Block(32, 4) for _ in range(4))), torch.randn(16, 16, 32)),
    }


def peak(model: torch.nn.Module, x: torch.Tensor, budget: float) -> int:
    """The peak of forward and backward by the events of torch's allocator."""
    cut = partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    compiled = aot.aot_function(model, aot.nop, partition_fn=cut)

    def step() -> None:
        compiled(x).square().mean().backward()
        for p in model.parameters():
            p.grad = None

    step()
    step()
    # torch 2.12 warns once that a second cycle would clear the events, unless they are kept
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        step()
    profiler: Any = seen.profiler
    found: int = max(
        itertools.accumulate(
            e.nbytes() for e in profiler.kineto_results.events() if e.name() == "[memory]"
        )
    )
    return found


@pytest.mark.parametrize("name", models())
def test_the_measured_peak_never_rises_when_the_budget_falls(name: str) -> None:
    torch.manual_seed(0)
    model, x = models()[name]
    peaks = [peak(model, x, budget) for budget in BUDGETS]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.9 * peaks[0]


@pytest.mark.parametrize("budget", [-0.1, 1.1, math.nan])
def test_a_budget_beyond_0_and_1_is_refused(budget: float) -> None:
    net = network(0)
    with pytest.raises(ValueError, match="memory_budget"):
        aot.min_cut_rematerialization_partition(
            net.parts.module, num_fwd_outputs=1, memory_budget=budget
        )


def test_of_a_chain_of_cheap_ops_any_budget_saves_the_argument_alone() -> None:
    saved: list[int] = []

    def counting(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        saved.append(len(module.graph.output_node().args[0]) - 1)  # type: ignore[arg-type]
        return aot.nop(module, inputs)

    for budget in (1.0, 0.0):
        cut = partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
        aot.aot_function(lambda x: x.sin().exp().sin(), counting, aot.nop, cut)(
            runtime.wrap(torch.randn(9), requires_grad=True)
        )
    assert saved == [1, 1]


def test_the_ops_that_a_caller_allows_are_the_only_ones_to_run_again() -> None:
    module = network(0).parts.module
    assert "sin" in {
        n.target.overloadpacket._qualified_op_name.split("::")[1]
        for n in module.graph.nodes
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)
    }
    for ops, expected in (
        ([torch.ops.aten.sin], {"sin"}),
        ([torch.ops.aten.mm.default], {"mm"}),
        ([], set()),
    ):
        _, backward = aot.min_cut_rematerialization_partition(
            module, None, "inductor", ops, num_fwd_outputs=1
        )
        forward_names = {n.name for n in Parts(module, 1).forward}
        ran = {
            n.target._schema.name[6:]
            for n in backward.graph.nodes
            if n.op == "call_function" and n.name in forward_names
        }
        assert ran <= expected


def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    cut = aot.min_cut_rematerialization_partition
    draws = aot.aot_export_joint_simple(
        lambda x: [F.dropout(x, 0.5)], [torch.randn(3, requires_grad=True)], trace_joint=True
    )
    drawing = {
        n.target for n in draws.graph.nodes if n.op == "call_function" and again(n) is Again.DRAW
    }
    with pytest.raises(ValueError, match=r"recomputable_ops has aten.*random draw"):
        cut(draws, recomputable_ops=drawing, num_fwd_outputs=1)
    with pytest.raises(ValueError, match="compiler='eager'"):
        cut(draws, compiler="eager", num_fwd_outputs=1)
    with pytest.raises(ValueError, match="num_fwd_outputs=7"):
        cut(draws, num_fwd_outputs=7)
    with pytest.raises(ValueError, match="exclude each other"):
        cut(draws, recomputable_ops=[], may_recompute=recomputable, num_fwd_outputs=1)
    unsized = torch.fx.symbolic_trace(
        lambda primals_1, tangents_1: [primals_1.sin(), tangents_1 * primals_1.cos()]
    )
    with pytest.raises(ValueError, match="no meta"):
        cut(unsized, num_fwd_outputs=1)
    unknown = torch.fx.symbolic_trace(lambda a, b: [a.sin(), b * a.cos()])
    with pytest.raises(ValueError, match="known to be a tangent"):
        cut(unknown, num_fwd_outputs=1)


def products(number: int) -> Network:
    """A chain of matrix products by one weight, each of which the backward needs,
    the last one first."""
    joint = Joint()
    value, weight, grad = joint.inputs
    values = [value]
    for _ in range(number):
        values.append(joint.call(aten.mm.default, values[-1], weight))
    for value in reversed(values):
        grad = joint.call(aten.mul.Tensor, grad, value)
    return Network(
        joint.parts([joint.call(aten.sum.default, values[-1], val=X[0, 0])], [grad]),
        set(),
        recomputable,
    )


@pytest.mark.parametrize(
    "number, segments, peak",
    [
        (5, 2, 5),
        (12, 3, 8),
        (20, 4, 10),
        (42, 5, 14),
        (49, 6, 15),
        (72, 8, 18),
        (110, 10, 22),
        (156, 12, 26),
        (200, 16, 29),
    ],
)
def test_a_long_chain_takes_the_least_memory_in_about_as_many_segments_as_each_has_calls(
    number: int, segments: int, peak: int
) -> None:
    """Saved are the argument, the weight, and a product at each border. The loss
    takes four bytes."""
    least = choices(products(number))[-1]
    assert len(least.saved) == 2 + (segments - 1)
    assert least.peak == peak * X.nbytes + 4


def test_a_budget_of_one_measures_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise AssertionError("choices are measured")

    monkeypatch.setattr(partitions, "within", fail)
    module = network(0).parts.module
    aot.min_cut_rematerialization_partition(module, num_fwd_outputs=1)
    with pytest.raises(AssertionError, match="measured"):
        aot.min_cut_rematerialization_partition(module, num_fwd_outputs=1, memory_budget=0.9)


def test_views_cost_the_least_that_a_call_can() -> None:
    made = network(0)
    assert {made.price_of(n) for n in made.vertex if is_view(n)} == {1}


def test_a_choice_cannot_be_changed() -> None:
    chosen: Any = choices(network(0))[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.work = 0
