"""The command `gen diff`: what changed between runs, or between the torches of two Pythons."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen.checks.tables import TIERS
from gen.files import replace
from gen.report.changes import KINDS, Change, Changes
from gen.report.exports import changes_as_json
from gen.report.ledgers import in_folder, joined, newest
from gen.report.runs import History, history
from gen.report.view import page
from gen.run.results import CellResult, Results, ResultsError, read

__all__ = ["add_arguments", "run"]

_FOLDER = Path(".cache/matrix/diff")
_LISTED = 40
_ASK = "import platform, torch; print('is', platform.python_version(), torch.__version__)"
_STDERR = 2  # its descriptor; standard output is for what changed
_ENDED = (0, 1)  # pytest's exit codes of a run that came to its end


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
    job = _Job(args.target, args.tier, args.tests, args.workers, args.select)
    try:
        runs = joined([result for name in args.runs for result in _results(name, job)])
        if len(runs) == 1:
            runs.append(read(newest()))
    except ResultsError as error:
        print(f"gen diff: {error}", file=sys.stderr)
        return 2
    past = history(runs)
    print(_as_text(past, sys.maxsize if args.all else _LISTED), end="")
    if args.json:
        replace(args.json, changes_as_json(past))
    if args.page:
        replace(args.page, page(runs[-1:], {}, past=past))
    return int(bool(past.changes.of("broken")))


def _results(name: str, job: _Job) -> list[Results]:
    if _is_python(name):
        return [read(_results_under(name, job, _FOLDER))]
    path = Path(name)
    return in_folder(path) if path.is_dir() else [read(path)]


# --- the matrix under another Python, which may have another torch ---------------------------


@dataclass(frozen=True)
class _Job:
    """What to run. ``tests``: the folder of the generated modules. ``select``: an expression for
    ``pytest -k``."""

    target: str
    tier: str
    tests: Path
    workers: int
    select: str = ""


def _is_python(name: str) -> bool:
    """Whether ``name`` is a program: the path of one, or a command."""
    path = Path(name)
    if path.is_dir() or path.suffix == ".jsonl":
        return False
    return shutil.which(name) is not None


def _results_under(python: str, job: _Job, folder: Path) -> Path:
    """Run ``job`` with ``python`` and return its results file, which is in ``folder``. pytest's
    progress goes to standard error. :class:`ResultsError` if it does not come to its end."""
    version, torch = _versions(python)
    words = [job.target, f"torch-{torch}", f"python-{version}", job.tier]
    out = folder / f"results-{re.sub(r'[^A-Za-z0-9._]+', '_', '-'.join(words))}.jsonl"
    print(f"{python}: target {job.target}, torch {torch}, Python {version}", file=sys.stderr)
    select = ["-k", job.select] if job.select else []
    command = [
        *(python, "-m", "pytest", str(job.tests), "-q", "-p", "no:cacheprovider"),
        *("--target", job.target, "--tier", job.tier, "--results", str(out)),
        *("-n", str(job.workers), *select),
    ]
    done = subprocess.run(command, env=_environment(), stdout=_STDERR, check=False)
    if done.returncode not in _ENDED:
        raise ResultsError(f"{python}: the run ended with exit status {done.returncode}")
    return out


def _versions(python: str) -> tuple[str, str]:
    """The versions of a Python and of its torch."""
    asked = subprocess.run(
        [python, "-c", _ASK], env=_environment(), capture_output=True, text=True, check=False
    )
    said = re.search(r"^is (\S+) (\S+)$", asked.stdout, re.MULTILINE)
    if said is None:
        last = (asked.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ResultsError(f"{python}: it is no Python with torch ({last})")
    return said[1], said[2].partition("+")[0]


def _environment() -> dict[str, str]:
    """The environment in which this package and the project's modules are found."""
    places = [os.getcwd(), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


# --- the text ------------------------------------------------------------------------------------


def _as_text(past: History, listed: int) -> str:
    """The changes of each kind, at most ``listed`` of one."""
    return "\n".join(_lines(past, listed)) + "\n"


def _lines(past: History, listed: int) -> Iterator[str]:
    found = past.changes
    for name, header, step in zip("AB", found.headers, past.steps[-2:], strict=True):
        yield f"{name}: {_described(header)}; {step.cells} cells, {step.failing} failing"
    for setting, before, now in found.settings:
        yield f"   {setting}: {before or 'not written'} -> {now or 'not written'}"
    yield f"{found.common} cells of both, {len(found.cells)} changed"
    for kind, changes in found.by_kind.items():
        yield f"\n{len(changes)} {KINDS[kind]}:"
        shown = _by_op(changes) if kind == "values" else map(_change, changes)
        yield from _at_most(list(shown), listed)
    yield from _alone(found, listed)
    yield from _of_several(past, listed)


def _described(header: Mapping[str, Any]) -> str:
    return (
        f"target {header['target']} on {header['device']}, tier {header['tier']}, torch "
        f"{header.get('torch', 'unknown')}, {header.get('began', header.get('date', 'no date'))}"
    )


def _change(change: Change) -> str:
    before, now = change.before, change.now
    if change.kind == "refusals":
        return f"{now.node}: {_refusal(before)} -> {_refusal(now)}"
    why = f": {now.why or before.why}" if now.why or before.why else ""
    return f"{now.node}: {before.outcome} -> {now.outcome}{why}"


def _refusal(cell: CellResult) -> str:
    return repr(cell.refusal or cell.why) if cell.refusal or cell.why else "an answer"


def _by_op(changes: Sequence[Change]) -> list[str]:
    counts = Counter(change.now.op for change in changes)
    return [f"{op}: {count} cells" for op, count in counts.most_common()]


def _alone(found: Changes, listed: int) -> Iterator[str]:
    """What one of the runs alone has."""
    for what, ops in (("new", found.new_ops), ("vanished", found.vanished_ops)):
        if ops:
            yield f"\n{len(ops)} {what} ops:"
            yield from _at_most([f"{op}: {count} cells" for op, count in ops.items()], listed)
    for what, cells in (("new", found.new_cells), ("vanished", found.vanished_cells)):
        if cells:
            yield f"\n{len(cells)} {what} cells of ops that both have:"
            yield from _at_most([cell.node for cell in cells], listed)


def _of_several(past: History, listed: int) -> Iterator[str]:
    if past.slower:
        yield f"\n{len(past.slower)} slower by 2x:"
        lines = [f"{c.node}: {usual:.2f} -> {c.seconds:.2f} s" for c, usual in past.slower]
        yield from _at_most(lines, listed)
    if past.flaky:
        yield f"\n{len(past.flaky)} flaky:"
        yield from _at_most([f"{c.node}: {', '.join(line)}" for c, line in past.flaky], listed)


def _at_most(lines: Sequence[str], listed: int) -> Iterator[str]:
    for line in lines[:listed]:
        yield f"  {line}"
    if len(lines) > listed:
        yield f"  … and {len(lines) - listed} more; --all lists them"
