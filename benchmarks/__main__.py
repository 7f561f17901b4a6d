"""`make bench`: the runtime beside torch.func and torch's engine in one process, as ratios of
medians; and the memory of both.

Every comparison first checks that both sides return the same. On a shared machine, ratios of
interleaved rounds are meaningful and absolute times are not.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
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
    console = Console(width=None if sys.stdout.isatty() else 140)
    outcomes = _compare(_cells(options), console, options.seconds)
    results = {
        "times": report.as_data(outcomes),
        "imports": _import_times(console, options),
        "guards": _guards(console, options),
        "memory": _memory(console, options),
        "compilers": _compilers(console, options),
    }
    if options.json:
        report.write(options.json, results)
    has_failed = any(o.error.startswith(("runtime:", "the sides")) for o in outcomes)
    return int(has_failed)


def _is_wanted(suite: str, options: argparse.Namespace) -> bool:
    if suite in _ASKED:
        return bool(options.suite == suite)
    # Only the transforms have sizes, so `--size` asks for them alone.
    has_size = options.size is None or suite == "transforms"
    return options.suite in (None, suite) and has_size


def _cells(options: argparse.Namespace) -> list[Cell]:
    """Return the comparisons that the options ask for, in the order in which they run."""
    sizes = (options.size,) if options.size else SIZES
    makers: dict[str, Callable[[], Iterable[Cell]]] = {
        "transforms": lambda: transforms.cells(sizes),
        "jit": jitted.cells,
        "captures": jitted.captures,
        "steps": steps.cells,
        "engine": engine.cells,
        "compiled": compiled.cells,
        "calls": calls.cells,
        "per_sample": per_sample.cells,
        "per_sample_peers": per_sample_peers.cells,
    }
    cells: list[Cell] = []
    for suite, make in makers.items():
        if _is_wanted(suite, options):
            cells += make()
    return [cell for cell in cells if options.only.lower() in cell.name.lower()]


def _compare(cells: list[Cell], console: Console, seconds: float) -> list[Outcome]:
    if not cells:
        return []
    progress = track(cells, description="comparing", console=Console(stderr=True))
    outcomes = [run(cell, seconds=seconds) for cell in progress]
    report.show(outcomes, console)
    return outcomes


def _import_times(console: Console, options: argparse.Namespace) -> dict[str, float]:
    if options.only or not _is_wanted("calls", options):
        return {}
    seconds_of_imports = calls.imports()
    for name, seconds in seconds_of_imports.items():
        console.print(
            f"{name}: {seconds:.2f} s of processor time beyond import torch (goal: at most 1)"
        )
    return seconds_of_imports


def _guards(console: Console, options: argparse.Namespace) -> object:
    if not _is_wanted("guards", options):
        return None
    return guards.report(console, options.only, options.seconds)


def _memory(console: Console, options: argparse.Namespace) -> object:
    """Report the memory of both sides: allocated, resident, of steps and of gradients."""
    if not _is_wanted("memory", options):
        return None
    measured = memory.report(console, options.only, options.iterations)
    measured["compiled"] = partitions.tables(console, options.only)
    measured["steps"] = steps.tables(console, options.only)
    measured["steps resident"] = {}
    if options.iterations:
        measured["steps resident"] = steps.residents(console, options.iterations)
    measured["per_sample"] = per_sample_memory.report(console, options.only)
    return measured


def _compilers(console: Console, options: argparse.Namespace) -> object:
    if not _is_wanted("compilers", options):
        return None
    return peers.report(console, options.only, options.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
