"""Peak memory of per-sample gradients, clipped and summed or all of them, beside one ordinary step
and other packages."""

import gc
import sys
from collections.abc import Callable
from functools import partial

from rich.console import Console
from torch import Tensor, nn

from benchmarks.memory import empty_table, peak_during
from benchmarks.per_sample import losses_of, programs, sides_of
from benchmarks.per_sample_peers import PEERS, by_ghost_clipping, clipped, is_installed
from runtime import jit
from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads

Make = Callable[[], nn.Module]
Ask = Callable[[PerSampleGrads], object]
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


def _clip(grads: PerSampleGrads) -> object:
    return grads.clipped_sum(1.0, keep=False)


def _dense(grads: PerSampleGrads) -> object:
    return grads.materialize()


def _function(make: Make, x: Tensor, ask: Ask, jitted: bool) -> Callable[[], object]:
    _, params, loss = sides_of(make, x)

    def found(params: object, x: Tensor) -> object:
        return ask(per_sample_grads(loss)(params, x))

    run = jit(found) if jitted else found
    return lambda: run(params, x)


def _context(make: Make, x: Tensor, ask: Ask, sum_of: bool) -> Callable[[], object]:
    module, _, _ = sides_of(make, x)

    def run() -> object:
        with per_sample(module.parameters()) as grads:
            losses = losses_of(module(x))
            (losses.sum() if sum_of else losses.mean()).backward()
        return ask(grads)

    return run


def _by(
    peer: Callable[[Make, Tensor], Callable[[], list[Tensor]]], make: Make, x: Tensor, clip: bool
) -> Callable[[], object]:
    run = peer(make, x)
    return (lambda: clipped(run())) if clip else run


def ways(clip: bool) -> dict[str, Callable[[Make, Tensor], Callable[[], object]]]:
    """By name, what makes a step, or the gradients of the samples of a module and a batch. The
    first one is what the others stand beside. ``clip``: clipped sums, or all gradients."""
    ask = _clip if clip else _dense
    ours: dict[str, Callable[[Make, Tensor], Callable[[], object]]] = {
        "step": partial(_step, sum_of=False),
        "function": partial(_function, ask=ask, jitted=False),
        "context, mean": partial(_context, ask=ask, sum_of=False),
        "context, sum": partial(_context, ask=ask, sum_of=True),
        "jitted": partial(_function, ask=ask, jitted=True),
    }
    peers = {
        name: partial(_by, peer, clip=clip) for name, peer in PEERS.items() if is_installed(name)
    }
    return (
        ours
        | peers
        | ({"Opacus ghost": by_ghost_clipping} if clip and is_installed("Opacus ghost") else {})
    )


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes at any time of a second run, beyond those from before it. Gradients and
    results of the first are freed before."""
    run()
    gc.collect()
    results: list[object] = []
    return peak_during(lambda: results.append(run()))


def report(console: Console, only: str) -> dict[str, dict[str, dict[str, int]]]:
    """Print a table for clipped sums and one for all gradients, and return the bytes. What a peer
    cannot run is left out."""
    data: dict[str, dict[str, dict[str, int]]] = {}
    titles = {
        True: f"peak of a clipped sum ÷ that of a step (goal: at most {GOAL})",
        False: "peak of all gradients ÷ that of a step",
    }
    for clip, title in titles.items():
        table = empty_table(title, "program", *ways(clip), numbers=True)
        rows = data["clipped sums" if clip else "all gradients"] = {}
        for name, (make, x) in programs().items():
            if only.lower() in name.lower():
                rows[name] = peaks = _peaks(ways(clip), make, x)
                table.add_row(
                    name,
                    f"{peaks['step']:,}",
                    *(_cell(peaks, way, GOAL if clip else None) for way in [*ways(clip)][1:]),
                )
        console.print(table)
    return data


def _peaks(
    found: dict[str, Callable[[Make, Tensor], Callable[[], object]]], make: Make, x: Tensor
) -> dict[str, int]:
    peaks: dict[str, int] = {}
    for way, build in found.items():
        try:
            peaks[way] = peak_of(build(make, x))
        except Exception as error:
            if way not in PEERS and way != "Opacus ghost":
                raise
            print(f"{way}: {type(error).__name__}: {error}".partition("\n")[0], file=sys.stderr)
    return peaks


def _cell(peaks: dict[str, int], way: str, goal: float | None) -> str:
    if way not in peaks:
        return "error"
    ratio = peaks[way] / peaks["step"]
    return (
        f"{ratio:.2f}" if goal is None else f"[{'green' if ratio <= goal else 'red'}]{ratio:.2f}[/]"
    )
