"""`make bench`: for every program and transform, the time of runtime.func over that of torch.func."""

import argparse
import math
import statistics
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

import runtime.func
from benchmarks.programs import Program, programs
from benchmarks.timing import compare


def _grad(api: Any, p: Program) -> Callable[[], object]:
    return lambda: api.grad(p.loss, argnums=tuple(range(1, 1 + len(p.parameters))))(p.x, *p.parameters)


def _vmap(api: Any, p: Program) -> Callable[[], object]:
    return lambda: api.vmap(p.loss, in_dims=(0, *[None] * len(p.parameters)))(p.batch, *p.parameters)


def _vmap_of_grad(api: Any, p: Program) -> Callable[[], object]:
    per_sample = api.grad(p.loss, argnums=tuple(range(1, 1 + len(p.parameters))))
    return lambda: api.vmap(per_sample, in_dims=(0, *[None] * len(p.parameters)))(p.batch, *p.parameters)


def _jvp(api: Any, p: Program) -> Callable[[], object]:
    inputs = (p.x, *p.parameters)
    return lambda: api.jvp(p.loss, inputs, inputs)


TRANSFORMS: dict[str, Callable[[Any, Program], Callable[[], object]]] = {
    "grad": _grad,
    "vmap": _vmap,
    "vmap∘grad": _vmap_of_grad,
    "jvp": _jvp,
}


def agree(ours: object, peer: object) -> bool:
    """A fast wrong answer is no result: both sides are compared before they are timed."""
    mine, theirs = (torch.utils._pytree.tree_leaves(side) for side in (ours, peer))
    return len(mine) == len(theirs) and all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(mine, theirs, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each program and transform (default 0.5)")
    parser.add_argument("--only", default="", help="run programs whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer: ModuleType = torch.func
    ratios: list[float] = []
    print(f"{'program':<28}{'transform':<12}{'runtime ÷ torch.func':>22}   quartiles by round")
    for program in (p for p in programs() if options.only in p.name):
        for name, build in TRANSFORMS.items():
            ours, theirs = build(runtime.func, program), build(peer, program)
            if not agree(ours(), theirs()):
                print(f"{program.name:<28}{name:<12}{'results differ':>22}")
                return 1
            ratio = compare(ours, theirs, seconds=options.seconds)
            ratios.append(ratio.median)
            quartiles = f"{ratio.low:.2f}–{ratio.high:.2f} in {ratio.rounds} rounds"
            print(f"{program.name:<28}{name:<12}{ratio.median:>22.2f}   {quartiles}", flush=True)
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
