"""Whole training steps, jitted, beside torch eager: forward, loss, backward, and an optimizer that
updates in place."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch._dynamo
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import memory
from benchmarks.cells import Cell
from benchmarks.models import models
from runtime import jit

Step = Callable[[], object]
_GOALS = {
    "MLP 32-64-32-1": 0.55,
    "chain of 100": 0.55,
    "CNN": 1.0,
    "transformer block": 0.95,
    "GPT-2 tiny": 0.8,
    "LSTM": 0.9,
}


class Chain(nn.Module):
    """A hundred pointwise calls, of vectors of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 0.9))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(50):
            x = (x * self.scale).sin()
        return x


def _small() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def programs() -> dict[str, tuple[Callable[[], nn.Module], Tensor]]:
    """By name, what makes a module, and its input."""
    torch.manual_seed(0)
    found: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
        "MLP 32-64-32-1": (_small, torch.randn(16, 32)),
        "chain of 100": (Chain, torch.randn(16, 64)),
    }
    return found | {m.name: (m.make, m.x) for m in models() if m.name in _GOALS}


def training_step(make: Callable[[], nn.Module], x: Tensor, wrap: Callable[..., Any]) -> Step:
    """One step of Adam, by ``wrap`` of it. The loss is the mean square of the module's result, for
    logits of tokens the entropy of the next ones."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        out = model(x)
        loss = (
            out.square().mean()
            if x.is_floating_point()
            else F.cross_entropy(out[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        )
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = wrap(step)
    return lambda: run(x)


def _both(make: Callable[[], nn.Module], x: Tensor) -> tuple[Step, Step]:
    return training_step(make, x, jit), training_step(make, x, lambda step: step)


def _by_inductor(make: Callable[[], nn.Module], x: Tensor) -> tuple[Step, Step]:
    torch._dynamo.reset()
    return training_step(make, x, partial(jit, compiler="inductor")), training_step(
        make, x, torch.compile
    )


def cells() -> Iterator[Cell]:
    """``torch.compile`` cannot take a step as a whole: it compiles the forward pass, the backward
    pass, and the optimizer's step by itself where that is asked for. Its Python between them is
    part of what is measured."""
    for name, (make, x) in programs().items():
        yield Cell("steps", "", name, "Adam", "torch eager", partial(_both, make, x), _GOALS[name])
    for name, (make, x) in programs().items():
        yield Cell(
            "steps",
            "",
            name,
            "Adam, by Inductor",
            "torch.compile",
            partial(_by_inductor, make, x),
            1.0,
        )


def peaks(only: str = "") -> dict[str, tuple[int, int]]:
    """By program, the most bytes that one step allocates at any time: ours, torch's."""
    found = {}
    for name, (make, x) in programs().items():
        if only.lower() in f"steps / {name}".lower():
            both = []
            for step in _both(make, x):
                for _ in range(3):  # the first steps make the state of the optimizer
                    step()
                both.append(memory.peak_during(step))
            found[name] = both[0], both[1]
    return found


def residents(console: Console, iterations: int) -> dict[str, list[int]]:
    """Print the resident memory over the calls of one jitted step, and over a tenth as many
    captures of steps, and return it."""
    make, x = programs()["MLP 32-64-32-1"]

    def capture() -> None:
        step = training_step(make, x, jit)
        step()  # captures the program
        step()  # generates its code

    step = training_step(make, x, jit)
    calls = memory.resident_line(console, "calls of a jitted step", step, iterations)
    return {
        "calls": calls,
        "captures": memory.resident_line(console, "captures of steps", capture, iterations // 10),
    }


def tables(console: Console, only: str) -> dict[str, tuple[int, int]]:
    """Print the peaks, and return them."""
    found = peaks(only)
    table = memory.empty_table(
        "peak bytes of a jitted step",
        "model",
        "runtime",
        "torch eager",
        "ratio (goal: at most 1.02)",
        numbers=True,
    )
    for name, (ours, torchs) in found.items():
        table.add_row(name, f"{ours:,}", f"{torchs:,}", f"{ours / torchs:.3f}")
    console.print(table)
    return found
