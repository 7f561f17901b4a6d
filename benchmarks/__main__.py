"""`make bench`: the runtime beside torch.func and torch's engine in one process, as ratios of
medians; and the memory of both.

Every comparison first checks that both sides return the same. On a shared machine, ratios of
interleaved rounds are meaningful and absolute times are not.
"""

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from benchmarks import (
    calls,
    compiled,
    engine,
    guards,
    jitted,
    memory,
    partitions,
    peers,
    per_sample,
    per_sample_memory,
    per_sample_peers,
    report,
    steps,
    transforms,
)
from benchmarks.cells import Cell, Outcome, run
from benchmarks.programs import SIZES

SUITES = (
    "transforms",
    "jit",
    "captures",
    "steps",
    "engine",
    "compiled",
    "calls",
    "guards",
    "per_sample",
    "per_sample_peers",
    "memory",
    "compilers",
)
_ASKED = ("per_sample_peers", "compilers")  # suites that run only if asked for


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help='run what has TEXT in "suite / size / program / transform"',
    )
    parser.add_argument("--size", choices=SIZES, help="one size of the transforms (default: both)")
    parser.add_argument(
        "--suite", choices=SUITES, help=f"one suite (default: all but {', '.join(_ASKED)})"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time for each comparison (default 1.0)"
    )
    parser.add_argument(
        "--iterations",
        type=int,
        default=10_000,
        help="calls over which resident memory is measured (10000)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE as well"
    )
    return parser.parse_args()


def main() -> int:
    options = _options()
    torch.set_num_threads(1)

    def wanted(suite: str) -> bool:
        return options.suite in (None, suite) and (options.size is None or suite == "transforms")

    cells: list[Cell] = []
    if wanted("transforms"):
        cells += transforms.cells((options.size,) if options.size else SIZES)
    if wanted("jit"):
        cells += jitted.cells()
    if wanted("captures"):
        cells += jitted.captures()
    if wanted("steps"):
        cells += steps.cells()
    if wanted("engine"):
        cells += engine.cells()
    if wanted("compiled"):
        cells += compiled.cells()
    if wanted("calls"):
        cells += calls.cells()
    if wanted("per_sample"):
        cells += per_sample.cells()
    if options.suite == "per_sample_peers":
        cells += per_sample_peers.cells()
    cells = [c for c in cells if options.only.lower() in c.name.lower()]
    console = Console(width=None if sys.stdout.isatty() else 140)
    outcomes: list[Outcome] = []
    if cells:
        each = track(cells, description="comparing", console=Console(stderr=True))
        outcomes = [run(c, seconds=options.seconds) for c in each]
        report.show(outcomes, console)
    imported = calls.imports() if wanted("calls") and not options.only else {}
    for name, taken in imported.items():
        console.print(
            f"{name}: {taken:.2f} s of processor time beyond import torch (goal: at most 1)"
        )
    asked = guards.report(console, options.only, options.seconds) if wanted("guards") else None
    kept = memory.report(console, options.only, options.iterations) if wanted("memory") else None
    if kept is not None:
        kept["compiled"] = partitions.tables(console, options.only)
        kept["steps"] = steps.tables(console, options.only)
        kept["steps resident"] = (
            steps.residents(console, options.iterations) if options.iterations else {}
        )
        kept["per_sample"] = per_sample_memory.report(console, options.only)
    beside = (
        peers.report(console, options.only, options.seconds)
        if options.suite == "compilers"
        else None
    )
    if options.json:
        report.write(
            options.json,
            {
                "times": report.as_data(outcomes),
                "imports": imported,
                "guards": asked,
                "memory": kept,
                "compilers": beside,
            },
        )
    return int(any(o.error.startswith(("runtime:", "the sides")) for o in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
