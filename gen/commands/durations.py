"""Run `gen durations`: write the file of durations by which runs are divided, from the results of a
run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gen.run.cell_durations import PLACE, extended, fit, read_durations, write_durations
from gen.run.results import CellResult, records

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen durations`."""
    parser.add_argument(
        "results",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="results files of whole runs, all of one target and device",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=PLACE,
        metavar="FILE",
        help="the file of durations (default %(default)s)",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help=(
            "keep what the file has, and add what it lacks: "
            "results of some ops at a larger tier will do"
        ),
    )


def run(args: argparse.Namespace) -> int:
    """Write the file, or say why it cannot be written. Return the exit code."""
    try:
        cells = _cells_of(args.results)
        durations = extended(read_durations(args.out), cells) if args.add else fit(cells)
    except ValueError as error:
        print(f"gen durations: {error}; nothing was written", file=sys.stderr)
        return 2
    if not durations.checks:
        print("gen durations: these results have no cells; nothing was written", file=sys.stderr)
        return 2
    write_durations(args.out, durations)
    print(
        f"{args.out}: {len(durations.checks)} checks, {len(durations.ops)} ops, "
        f"{len(durations.families)} families"
    )
    return 0


def _cells_of(paths: Sequence[Path]) -> Iterator[tuple[str, str, str, float]]:
    """Yield the family, check, op and seconds of each cell, one at a time: a run has many."""
    for path in paths:
        for record in records(path):
            if isinstance(record, CellResult):
                yield record.family, record.check, record.op, record.seconds
