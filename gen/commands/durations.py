"""`gen durations`: the file of durations by which runs are divided, from the results of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gen.run.cell_durations import PLACE, extended, fit, read_durations, write_durations
from gen.run.results import CellResult, records

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    try:
        taken = _taken(args.results)
        found = extended(read_durations(args.out), taken) if args.add else fit(taken)
    except ValueError as error:
        print(f"gen durations: {error}; nothing was written", file=sys.stderr)
        return 2
    if not found.checks:
        print("gen durations: these results have no cells; nothing was written", file=sys.stderr)
        return 2
    write_durations(args.out, found)
    print(
        f"{args.out}: {len(found.checks)} checks, {len(found.ops)} ops, "
        f"{len(found.families)} families"
    )
    return 0


def _taken(paths: Sequence[Path]) -> Iterator[tuple[str, str, str, float]]:
    for path in paths:
        for record in records(path):
            if isinstance(record, CellResult):
                yield record.family, record.check, record.op, record.seconds
