"""Models compiled by `runtime.aot`, beside torch eager and beside torch's AOTAutograd with a
compiler that changes nothing.

A step is the forward pass, the mean square of its result, and the backward pass, whose gradients
are compared. `capture` is what comes before the first step ends: tracing, partition and
compilation of both graphs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.cells import Cell
from benchmarks.models import Model, models
from runtime import aot

Compile = Callable[[nn.Module], Callable[..., Any]]
Step = Callable[[], object]


def ours(**options: Any) -> Compile:
    return lambda module: aot.aot_module(module, aot.nop, **options)


def torchs(partition: str) -> Compile:
    import functorch.compile as theirs

    cut = {
        "default": theirs.default_partition,
        "min cut": theirs.min_cut_rematerialization_partition,
    }[partition]
    return lambda module: theirs.aot_module(module, theirs.nop, partition_fn=cut)


class MeanSquare(nn.Module):
    """A model with its loss, so that both are compiled."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.model(x)
        found: torch.Tensor = result.square().mean()
        return found


def eager(module: nn.Module) -> Callable[..., Any]:
    return module


def step(model: Model, compile: Compile) -> Step:
    module = MeanSquare(model.make())
    run, parameters = compile(module), list(module.parameters())
    return lambda: _gradients(run, model, parameters)


def capture(model: Model, compile: Compile) -> Step:
    module = MeanSquare(model.make())
    return lambda: _gradients(compile(module), model, list(module.parameters()))


def _gradients(run: Callable[..., Any], model: Model, parameters: list[nn.Parameter]) -> object:
    for p in parameters:
        p.grad = None
    run(model.x).backward()
    return [p.grad for p in parameters]


def cells() -> Iterator[Cell]:
    partitions = {
        "default": aot.default_partition,
        "min cut": aot.min_cut_rematerialization_partition,
    }
    for model in models():
        for name, partition in partitions.items():
            mine = ours(partition_fn=partition)
            yield _cell(model, f"{name} ÷ eager", "torch", step, mine, lambda: eager, 1.0)
            yield _cell(
                model, f"{name} ÷ AOT", "torch's AOT", step, mine, partial(torchs, name), 1.0
            )
            yield _cell(
                model, f"capture, {name}", "torch's AOT", capture, mine, partial(torchs, name), 0.5
            )
        yield _cell(
            model,
            "dynamic ÷ static",
            "the runtime, static shapes",
            step,
            ours(dynamic=True),
            ours,
            1.3,
        )


def _cell(
    model: Model,
    what: str,
    peer: str,
    build: Callable[[Model, Compile], Step],
    mine: Compile,
    theirs: Callable[[], Compile],
    goal: float,
) -> Cell:
    return Cell(
        "compiled",
        "",
        model.name,
        what,
        peer,
        lambda: (build(model, mine), build(model, theirs())),
        goal,
    )
