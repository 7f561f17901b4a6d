"""The command `gen diff`: what changed between runs, or between the torches of two Pythons."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gen.checks.tables import TIERS
from gen.files import replace
from gen.report.changes_text import as_text
from gen.report.exports import changes_as_json
from gen.report.ledgers import in_folder, joined, newest
from gen.report.runs import history
from gen.report.view import page
from gen.run.other_python import Job, is_python, results_under
from gen.run.results import Results, ResultsError, read

__all__ = ["add_arguments", "run"]

_FOLDER = Path(".cache/matrix/diff")
_LISTED = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="two runs or more, oldest first: a results file, a folder of them, or a Python, under "
        "which the matrix then runs; after a single one comes the newest whole run",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the changes as JSON")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="also draw the page of the last run with them"
    )
    parser.add_argument("--all", action="store_true", help=f"list more than {_LISTED} of a kind")
    python = parser.add_argument_group("what runs under a Python")
    python.add_argument("--target", default="torch", help="the target (default torch)")
    python.add_argument("--tier", choices=TIERS, default="default", help="(default: default)")
    python.add_argument("--tests", type=Path, default=Path("generated_tests"), metavar="DIR")
    python.add_argument("-k", dest="select", default="", help="cells, as pytest's -k")
    python.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="(default: one for each core)"
    )


def run(args: argparse.Namespace) -> int:
    job = Job(args.target, args.tier, args.tests, args.workers, args.select)
    try:
        runs = joined([result for name in args.runs for result in _results(name, job)])
        if len(runs) == 1:
            runs.append(read(newest()))
    except ResultsError as error:
        print(f"gen diff: {error}", file=sys.stderr)
        return 2
    past = history(runs)
    print(as_text(past, listed=sys.maxsize if args.all else _LISTED), end="")
    if args.json:
        replace(args.json, changes_as_json(past))
    if args.page:
        replace(args.page, page(runs[-1:], {}, past=past))
    return int(bool(past.changes.of("broken")))


def _results(name: str, job: Job) -> list[Results]:
    if is_python(name):
        return [read(results_under(name, job, _FOLDER))]
    path = Path(name)
    return in_folder(path) if path.is_dir() else [read(path)]
