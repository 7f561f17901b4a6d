"""Run `gen watch`: run the cells that a change can affect, whenever a file changes."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gen.plan.matrix_plan import above

__all__ = ["add_arguments", "changes", "run"]

_Stamps = Mapping[Path, tuple[int, int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen watch`."""
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="files, or folders with their files")
    add(
        "--since",
        default="HEAD",
        metavar="REF",
        help="run what a change since this commit can affect (default: HEAD)",
    )
    add("--tests", default="generated_tests", metavar="DIR", help="(default: %(default)s)")
    add("--target", help="as of pytest (default: the matrix's targets.default)")
    add("-k", dest="select", default="", help="cells, as pytest's -k")
    add("--interval", type=above(0), default=0.5, metavar="SECONDS", help="(default: %(default)s)")
    add(
        "--runs",
        type=above(0, kind=int),
        metavar="N",
        help="end after N runs, with the exit status of the last one (default: at Ctrl-C)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the cells once, and again after each change. Return 2 if a path is not there."""
    absent = [str(path) for path in args.paths if not path.exists()]
    if absent:
        print(f"gen watch: {', '.join(absent)}: no such file or folder here", file=sys.stderr)
        return 2
    status = 0
    try:
        for number, changed in enumerate(changes(args.paths, args.interval), 1):
            status = _run_cells(args, changed)
            if number == args.runs:
                return status
            print(f"waiting for a change of {' '.join(map(str, args.paths))}", flush=True)
    except KeyboardInterrupt:
        print()
    return status


def changes(paths: Iterable[Path], interval: float) -> Iterator[list[Path]]:
    """Yield no file at once, and then the files that have changed, each time that some have.

    Changes while the caller is busy come with the next ones. An editor may write a file in several
    steps. So files that change count when they have been the same for an interval.
    """
    roots = list(paths)
    known = _stamps(roots)
    yield []
    while True:
        now = _stamps(roots)
        while (later := _stamps_after(roots, interval)) != now:
            now = later
        differing = [path for path in {**known, **now} if known.get(path) != now.get(path)]
        known = now
        if differing:
            yield sorted(differing)


def _stamps_after(paths: Iterable[Path], interval: float) -> _Stamps:
    time.sleep(interval)
    return _stamps(paths)


def _stamps(paths: Iterable[Path]) -> _Stamps:
    """Return when each file was written, and its size. Files that go meanwhile are left out."""
    stamps: dict[Path, tuple[int, int]] = {}
    for path in _files(paths):
        # an editor may rename it between the listing and this line
        try:
            status = path.stat()
        except OSError:
            continue
        stamps[path] = status.st_mtime_ns, status.st_size
    return stamps


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and those in folders. What Python itself compiles is no change of a person's."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for file in path.rglob("*"):
            if file.is_file() and file.suffix != ".pyc":
                yield file


def _run_cells(args: argparse.Namespace, changed: Iterable[Path]) -> int:
    """Run the cells that a change can affect, and return pytest's exit status.

    A change of the matrix is generated first. If it has a mistake, that is said, and no cell runs.
    """
    if any(path.suffix in (".yaml", ".yml") for path in changed):
        generated = subprocess.run([sys.executable, "-m", "gen", "generate"], check=False)
        if generated.returncode:
            return generated.returncode
    command = [sys.executable, "-m", "pytest", "-q", args.tests, "--since", args.since]
    if args.target:
        command += ["--target", args.target]
    if args.select:
        command += ["-k", args.select]
    return subprocess.run(command, check=False).returncode
