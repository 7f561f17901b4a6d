"""The command `gen report`: which results it reads, and what it writes."""

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
from gen.report.runs import history
from gen.report.view import page
from gen.run.results import LAST, OF_A_RUN, Results, ResultsError, read, trait

__all__ = ["add_arguments", "run"]

_CACHE = Path(".cache/gen")
_COVERAGE = _CACHE / "coverage.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--history",
        type=Path,
        metavar="DIR",
        help="results files of earlier runs: what changed, slowed down or is flaky",
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
        "--json", type=Path, metavar="FILE", help="also write counts, failures and changes as JSON"
    )
    parser.add_argument(
        "--open", choices=("yes", "no"), default="no", help="open the page in a browser"
    )


def run(args: argparse.Namespace) -> int:
    try:
        runs = _join([read(path) for path in _chosen(args)])
        coverage, places = _object(_COVERAGE), _object(_CACHE / PLACES)
        others = _of_other_targets(runs)
        past = history(runs, _earlier(args.history)) if args.history else []
    except ResultsError as error:
        print(f"gen report: {error}", file=sys.stderr)
        return 2
    text = page(runs, coverage, others, past=past, places=places)
    replace(args.out, text)
    if args.junit:
        replace(args.junit, as_junit(runs))
    if args.json:
        replace(args.json, as_json(runs, past))
    print(
        f"{args.out}: {sum(len(run.cells) for run in runs)} cells of {len(runs)} run(s), "
        f"{len(text.encode()) / 1e6:.1f} MB"
    )
    if args.open == "yes":
        webbrowser.open(args.out.resolve().as_uri())
    return 0


def _chosen(args: argparse.Namespace) -> list[Path]:
    if args.results:
        return list(args.results)
    if not args.last:
        return [_newest()]
    try:
        return [Path(LAST.read_text("utf-8"))]
    except OSError as error:
        raise ResultsError(
            f"{LAST}: {error.strerror}; run `pytest generated_tests` first"
        ) from error
    except ValueError as error:
        raise ResultsError(
            f"{LAST}: it names no file; run `pytest generated_tests` again"
        ) from error


def _recorded() -> list[Path]:
    """The results files of runs that were not narrowed, oldest first."""
    found = [
        path
        for path in Path(".cache/matrix").glob("results-*.jsonl")
        if not path.stem.endswith("-part")
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _newest() -> Path:
    found = _recorded()
    if not found:
        raise ResultsError(
            "no results in .cache/matrix; run `pytest generated_tests` first, "
            "or name a file with --results"
        )
    return found[-1]


def _of_other_targets(runs: Sequence[Results]) -> list[Results]:
    """Results of targets that the page does not show. Their loops are compared with
    those of `runs`."""
    shown = {run.header["target"] for run in runs}
    return [
        result
        for result in _join([read(path) for path in _recorded()])
        if result.header["target"] not in shown
    ]


def _earlier(folder: Path) -> list[Results]:
    """Every results file of a folder, oldest first: by the time in its header, else by the
    file's."""
    if not folder.is_dir():
        raise ResultsError(f"--history {folder}: it is no folder")
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise ResultsError(f"--history {folder}: it has no results file (*.jsonl)")
    read_ = [(path, read(path)) for path in found]
    read_.sort(
        key=lambda pair: (
            str(pair[1].header.get("began", pair[1].header.get("date", ""))),
            pair[0].stat().st_mtime,
        )
    )
    return [result for _, result in read_]


def _join(results: Sequence[Results]) -> list[Results]:
    """Join shards of one run: those whose headers agree in what :data:`OF_A_RUN` names. Every
    other file is a run."""
    joined: dict[tuple[Any, ...], Results] = {}
    for number, result in enumerate(results):
        header = result.header
        sharded = header.get("shard", "1/1") != "1/1"
        key = (
            ("shards", *(trait(header, name) for name in OF_A_RUN)) if sharded else ("file", number)
        )
        before = joined.get(key)
        if before is None:
            joined[key] = result
            continue
        if header["shard"] in before.header["shard"].split(", "):
            which = f"shard {header['shard']} of {header['target']} on {header['device']}"
            raise ResultsError(f"{which} stands in two files; give each shard once")
        end = {
            "complete": bool(before.end.get("complete") and result.end.get("complete")),
            "wall_seconds": before.end.get("wall_seconds", 0) + result.end.get("wall_seconds", 0),
            "never_happened": [],
        }
        header = {**before.header, "shard": f"{before.header['shard']}, {header['shard']}"}
        joined[key] = Results(header, before.cells + result.cells, end)
    return list(joined.values())


def _object(path: Path) -> dict[str, Mapping[str, Any]]:
    """A JSON object of objects that `gen generate` wrote; empty if it has not."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError:
        return {}
    except ValueError as error:
        raise ResultsError(
            f"{path}: not JSON ({error}); `python -m gen generate` writes it"
        ) from error
    return (
        {name: part for name, part in data.items() if isinstance(part, dict)}
        if isinstance(data, dict)
        else {}
    )
