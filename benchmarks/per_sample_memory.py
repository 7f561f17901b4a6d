"""Peak memory of clipped sums of per-sample gradients, beside one ordinary step and Opacus' ghost clipping, where that is installed."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from rich.console import Console
from torch import Tensor, nn

from benchmarks.memory import empty_table, peak_during
from benchmarks.per_sample import losses_of, programs, sides_of
from benchmarks.per_sample_peers import by_ghost_clipping
from runtime import jit
from runtime.per_sample import per_sample, per_sample_grads

Make = Callable[[], nn.Module]
GOAL = 1.2
"""The peak of a clipped sum, divided by that of a step."""


def _step(make: Make, x: Tensor, sum_of: bool) -> Callable[[], object]:
    module, _, _ = sides_of(make, x)

    def run() -> object:
        module.zero_grad()
        losses = losses_of(module(x))
        (losses.sum() if sum_of else losses.mean()).backward()
        return losses.detach()

    return run


def _function(make: Make, x: Tensor, jitted: bool) -> Callable[[], object]:
    _, params, loss = sides_of(make, x)

    def clipped(params: object, x: Tensor) -> object:
        return per_sample_grads(loss)(params, x).clipped_sum(1.0, keep=False)

    run = jit(clipped) if jitted else clipped
    return lambda: run(params, x)


def _context(make: Make, x: Tensor, sum_of: bool) -> Callable[[], object]:
    module, _, _ = sides_of(make, x)

    def run() -> object:
        with per_sample(module.parameters()) as grads:
            losses = losses_of(module(x))
            (losses.sum() if sum_of else losses.mean()).backward()
        return grads.clipped_sum(1.0, keep=False)

    return run


def ways() -> dict[str, Callable[[Make, Tensor], Callable[[], object]]]:
    """By name, what makes a step or a clipped sum of a module and a batch. The first one is what the others stand beside."""
    found: dict[str, Callable[[Make, Tensor], Callable[[], object]]] = {
        "step": partial(_step, sum_of=False),
        "function": partial(_function, jitted=False),
        "context, mean": partial(_context, sum_of=False),
        "context, sum": partial(_context, sum_of=True),
        "jitted": partial(_function, jitted=True),
    }
    return found | ({"Opacus ghost": by_ghost_clipping} if find_spec("opacus") else {})


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes at any time of a second run, beyond those from before it. Gradients and results of the first are freed before."""
    run()
    results: list[object] = []
    return peak_during(lambda: results.append(run()))


def report(console: Console, only: str) -> dict[str, dict[str, int]]:
    """Print the table, and return the bytes."""
    table = empty_table(f"peak of a clipped sum ÷ that of a step (goal: at most {GOAL})", "program", *ways(), numbers=True)
    data: dict[str, dict[str, int]] = {}
    for name, (make, x) in programs().items():
        if only.lower() not in name.lower():
            continue
        data[name] = {way: peak_of(build(make, x)) for way, build in ways().items()}
        step, *others = data[name].values()
        colours = ("green" if peak <= GOAL * step else "red" for peak in others)
        table.add_row(name, f"{step:,}", *(f"[{c}]{peak / step:.2f}[/{c}]" for c, peak in zip(colours, others, strict=True)))
    console.print(table)
    return data
