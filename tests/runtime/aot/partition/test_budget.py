"""A smaller memory budget never takes more memory, by the lives of values and by the allocator, and
the gradients stay the same."""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import runtime
from runtime import aot

from .random_programs import drawn, inputs, joint_graph

BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)


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
    with pytest.raises(ValueError, match="memory_budget"):
        aot.min_cut_rematerialization_partition(
            joint_graph(0), num_fwd_outputs=1, memory_budget=budget
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
