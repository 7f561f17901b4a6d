"""Run `gen coverage`: count which overloads of torch's dispatcher a run of the matrix calls."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gen.checks.tables import TIERS
from gen.run.project_defaults import declared

__all__ = ["add_arguments", "run"]

_LISTED = 20  # overloads that are no longer called


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen coverage`."""
    add = parser.add_argument
    add("modules", nargs="*", default=["generated_tests"], metavar="PATH", help="as of pytest")
    add("--target", help="as of pytest (default: the matrix's targets.default)")
    add("--device", default="cpu", help="device of the samples (default cpu)")
    add("--tier", choices=TIERS, default="default", help="which cells to take")
    add("--workers", type=int, default=0, metavar="N", help="processes of pytest-xdist")
    add("--calls", type=Path, metavar="FOLDER", help="keep what each process has seen")
    add(
        "--counted",
        type=Path,
        metavar="FOLDER",
        action="append",
        help="run nothing: add up what runs with --calls have left in these folders",
    )
    add("--json", type=Path, metavar="FILE", help="write each overload with its rows or reason")
    add("--page", type=Path, metavar="FILE", help="write the page of docs/")
    add(
        "--against",
        type=Path,
        metavar="FILE",
        help="exit with 1 if an overload that this file has as called is not called any more",
    )


def run(args: argparse.Namespace) -> int:
    """Count, print the table, and write or compare files. Return the exit code."""
    before = json.loads(args.against.read_text()) if args.against else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "calls"
        folder.mkdir()
        if args.counted:
            _gather(args.counted, folder)
        else:
            kept = args.calls or folder
            _count(args, kept)
            folder = kept
        if not any(folder.glob("*.jsonl")):
            print(f"gen coverage: {folder} has no calls: did any cell run?", file=sys.stderr)
            return 2
        return _report(args, folder, before)


def _gather(folders: list[Path], into: Path) -> None:
    """Link the files of several runs into one folder."""
    for place, folder in enumerate(folders):
        for path in folder.glob("*.jsonl"):
            # two runs may have files of one name
            (into / f"{place}-{path.name}").symlink_to(path.resolve())


def _count(args: argparse.Namespace, folder: Path) -> None:
    """Run the cells under pytest, which writes their calls to a folder."""
    target = args.target or declared(Path.cwd()).target
    command = [sys.executable, "-m", "pytest", "-q", *args.modules]
    command += ["--target", target, "--device", args.device, "--tier", args.tier]
    command += ["--overloads", str(folder), "--results", str(folder / "results.txt")]
    if args.workers:
        command += ["-n", str(args.workers)]
    # the profiler says for each cell that it starts and stops
    quiet = {**os.environ, "KINETO_LOG_LEVEL": "99"}
    # a cell that fails has called overloads all the same
    subprocess.run(command, check=False, env=quiet)


def _report(args: argparse.Namespace, folder: Path, before: dict[str, dict[str, object]]) -> int:
    """Print and write what was counted. Return 1 if an overload is no longer called."""
    from gen.dispatcher.coverage_page import page, table
    from gen.dispatcher.overload_coverage import Coverage, lost_since

    coverage = Coverage.of_calls(folder)
    print(table(coverage))
    called, due = coverage.share()
    print(f"{called} of {due} overloads without a reason are called by the target itself")
    if args.json:
        args.json.write_text(json.dumps(coverage.facts(), indent=1) + "\n")
    if args.page:
        target = args.target or declared(Path.cwd()).target
        command = f"python -m gen coverage --target {target} --device {args.device}"
        args.page.write_text(page(coverage, f"{command} --tier {args.tier} --page {args.page}"))
    lost = lost_since(before, coverage)
    for name in lost[:_LISTED]:
        print(f"no longer called: {name}")
    if len(lost) > _LISTED:
        print(f"and {len(lost) - _LISTED} more")
    return int(bool(lost))
