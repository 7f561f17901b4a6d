"""Run `gen report`: choose the results, and write the page and the other forms of them."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gen.files import replace
from gen.plan.matrix_plan import PLACES
from gen.report.exports import as_json, as_junit
from gen.report.ledgers import joined, last, newest, recorded
from gen.report.view import page
from gen.run.earlier_runs import earlier_than
from gen.run.results import Results, ResultsError, read

__all__ = ["add_arguments", "run"]

_CACHE = Path(".cache/gen")
_COVERAGE = _CACHE / "coverage.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen report`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--results",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="shards of one run are joined, runs stand side by side",
    )
    which.add_argument(
        "--last",
        action="store_true",
        help="the last run, whole or narrowed (default: the newest whole run)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report/index.html"),
        help="the page (default report/index.html)",
    )
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="also write JUnit XML, a test case for each cell"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write counts and failures as JSON"
    )
    parser.add_argument(
        "--open", choices=("yes", "no"), default="no", help="open the page in a browser"
    )


def run(args: argparse.Namespace) -> int:
    """Write the page, and JUnit XML and JSON where they are asked for. Return the exit code."""
    try:
        runs = joined(list(map(read, _choose(args))))
        coverage, places = _object(_COVERAGE), _object(_CACHE / PLACES)
        others = _of_other_targets(runs)
    except ResultsError as error:
        print(f"gen report: {error}", file=sys.stderr)
        return 2
    text = page(runs, coverage, others, places=places, earlier=list(map(earlier_than, runs)))
    replace(args.out, text)
    if args.junit:
        replace(args.junit, as_junit(runs))
    if args.json:
        replace(args.json, as_json(runs))
    print(
        f"{args.out}: {sum(len(run.cells) for run in runs)} cells of {len(runs)} run(s), "
        f"{len(text.encode()) / 1e6:.1f} MB"
    )
    if args.open == "yes":
        webbrowser.open(args.out.resolve().as_uri())
    return 0


def _choose(args: argparse.Namespace) -> list[Path]:
    """Return the results files to show: those that are named, the last ones or the newest whole
    run.
    """
    if args.results:
        return list(args.results)
    return [last() if args.last else newest()]


def _of_other_targets(runs: Sequence[Results]) -> list[Results]:
    """Return the results of targets that the page does not show. Their loops are compared with
    those of `runs`.
    """
    shown = {run.header["target"] for run in runs}
    known_runs = joined(list(map(read, recorded())))
    return [run for run in known_runs if run.header["target"] not in shown]


def _object(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return a JSON object of objects that `gen generate` wrote; empty if it has not."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError:
        return {}
    except ValueError as error:
        raise ResultsError(
            f"{path}: not JSON ({error}); `python -m gen generate` writes it"
        ) from error
    # a file of another version: the page does without it
    if not isinstance(data, dict):
        return {}
    return {name: part for name, part in data.items() if isinstance(part, dict)}
