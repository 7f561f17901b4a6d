"""Run `gen diff`: print what changed between runs, or between the torches of two Pythons."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gen.checks.tables import TIERS
from gen.files import replace
from gen.report.changes import once
from gen.report.changes_text import LISTED, changes_as_text
from gen.report.exports import changes_as_json
from gen.report.ledgers import files_in, in_folder, joined, newest_whole
from gen.report.runs import history
from gen.report.view import page
from gen.run.other_python import Job, OtherPython, asked, is_python
from gen.run.results import Results, ResultsError, read

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen diff`."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="two runs or more, oldest first: a results file, a folder of them, or a Python, under "
        "which the matrix then runs; after a single one comes the newest other whole run",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the changes as JSON")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="also draw the page of the last run with them"
    )
    parser.add_argument("--all", action="store_true", help=f"list more than {LISTED} of a kind")
    python = parser.add_argument_group("what runs under a Python")
    python.add_argument("--target", default="torch", help="the target (default torch)")
    python.add_argument("--tier", choices=TIERS, default="default", help="(default: default)")
    python.add_argument("--tests", type=Path, default=Path("generated_tests"), metavar="DIR")
    python.add_argument("-k", dest="select", default="", help="cells, as pytest's -k")
    python.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="(default: one for each core)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the changes, and write them where they are asked for. Return 1 if something is
    worse.
    """
    job = Job(args.target, args.tier, args.tests, args.workers, args.select)
    try:
        runs = _runs(args, job)
    except ResultsError as error:
        print(f"gen diff: {error}", file=sys.stderr)
        return 2
    past = history(runs)
    print(changes_as_text(past, sys.maxsize if args.all else LISTED), end="")
    if args.json:
        replace(args.json, changes_as_json(past))
    # a cell that stands twice has one place in the grid
    if args.page:
        replace(args.page, page([once(runs[-1])], {}, past=past, earlier=[runs[:-1]]))
    return int(past.changes.worse)


def _runs(args: argparse.Namespace, job: Job) -> list[Results]:
    """Return the runs, oldest first.

    Whatever can be wrong with the arguments is said before the matrix runs, which takes long.
    """
    sources = list(map(_source, args.runs))
    if any(source.python for source in sources):
        job.check()
    files = list(chain.from_iterable(source.files(job) for source in sources))
    other = None
    if len(sources) == 1:
        other = _other(sources[0], files)
    if other is not None:
        files = [*files, other]
    _check_outputs(args, files)
    runs = joined(list(chain.from_iterable(source.results(job) for source in sources)))
    if other is not None:
        runs = [*runs, read(other)]
    return runs


@dataclass(frozen=True)
class _Source:
    """What an argument names: a Python, or results that are there."""

    # the argument as the user has it
    path: Path
    # the results that are there already
    known: Sequence[Results] = ()
    # the Python that is to make results, if it names one
    python: OtherPython | None = None

    def files(self, job: Job) -> Iterator[Path]:
        """Yield the files that it reads."""
        yield self.path
        if self.python is not None:
            yield self.python.results(job)
        elif self.path.is_dir():
            yield from files_in(self.path)

    def results(self, job: Job) -> Sequence[Results]:
        return self.known if self.python is None else [read(self.python.run(job))]


def _source(argument: str) -> _Source:
    """Return what an argument names. Raises ResultsError if that is nothing."""
    path = Path(argument)
    if is_python(argument):
        return _Source(path, python=asked(argument))
    if path.is_dir():
        return _Source(path, in_folder(path))
    if path.suffix != ".jsonl" and not path.exists():
        raise ResultsError(
            f"{argument}: no such file, folder or command; "
            "name a results file, a folder of them, or a Python"
        )
    return _Source(path, [read(path)])


def _other(source: _Source, apart: Sequence[Path]) -> Path | None:
    """Return the newest whole run, if there is a single one to compare with it."""
    is_single = source.python is not None or len(joined(source.known)) == 1
    return newest_whole(apart) if is_single else None


def _check_outputs(args: argparse.Namespace, inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read, over the other output, or where nothing can be written."""
    for name in ("json", "page"):
        path = getattr(args, name)
        if path:
            _check_output(name, path, inputs)
    if args.json and args.page and _is_same(args.json, args.page):
        raise ResultsError(f"--json and --page are both {args.json}; name two files")


def _check_output(name: str, path: Path, inputs: Sequence[Path]) -> None:
    """Refuse to write the output `--name` to a file that is read, or cannot be written."""
    for other in inputs:
        if _is_same(path, other):
            raise ResultsError(f"--{name} {path}: it is {other}, which is compared; name another")
    if path.suffix == ".jsonl":
        raise ResultsError(f"--{name} {path}: results files end so; name another")
    why = _why_unwritable(path)
    if why:
        raise ResultsError(f"--{name} {path}: {why}")


def _is_same(one: Path, other: Path) -> bool:
    # links and other spellings of a path; a file that is not there yet has only its path
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _why_unwritable(path: Path) -> str:
    """Return why a file cannot be written. Empty if it can."""
    if path.is_dir():
        return "it is a folder; name a file"
    if path.exists() and not path.is_file():
        return ""  # a pipe or a device
    # folders that lack are made, so the nearest one that is there decides
    folder = next(filter(Path.exists, path.absolute().parents))
    if not folder.is_dir():
        return f"{folder} is no folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written to"
