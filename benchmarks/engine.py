"""The eager session beside torch's engine, and programs replayed by runtime.aot
beside torch eager."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import runtime
from benchmarks.cells import Cell
from benchmarks.programs import Training, leaves, trainings
from runtime import aot

Step = Callable[[], object]


def forward_and_backward(p: Training, ours: bool, loss: Callable[..., Any] | None = None) -> Step:
    x, parameters = leaves(p, ours)
    f = loss or p.loss

    def step() -> object:
        for t in parameters:
            t.grad = None
        f(x, *parameters).backward()
        return [t.grad for t in parameters]

    return step


def backward_alone(p: Training, ours: bool) -> Step:
    x, parameters = leaves(p, ours)
    loss = p.loss(x, *parameters)
    grad: Any = runtime.autograd.grad if ours else torch.autograd.grad
    return lambda: grad(loss, parameters, retain_graph=True)


def replayed(p: Training, ours: bool) -> Step:
    """Ours is traced once, then its forward and backward are replayed. The peer is eager."""
    return forward_and_backward(p, ours, aot.aot_function(p.loss, aot.nop) if ours else None)


def cells() -> Iterator[Cell]:
    for p in trainings():
        steps = {"forward + backward": forward_and_backward, "backward": backward_alone}
        if p.name.startswith(("chain", "MLP")):
            steps["aot replay"] = replayed
        for what, build in steps.items():
            yield Cell("engine", "", p.name, what, "torch", partial(_both, build, p))


def _both(build: Callable[[Training, bool], Step], p: Training) -> tuple[Step, Step]:
    return build(p, True), build(p, False)
