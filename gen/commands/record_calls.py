"""Run `gen record`: write a project with a matrix of the calls of torch that a command makes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gen.commands.init import (
    PACKAGE_TEMPLATES,
    SHARED,
    TEMPLATES,
    files,
    require_empty,
    versions,
    write_project,
)
from gen.recording.command import Recorded, RecordError, record

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen record`."""
    parser.add_argument(
        "command",
        metavar="'COMMAND'",
        help="what runs, such as 'python train.py --epochs 1'; without a shell",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("recorded"),
        metavar="FOLDER",
        help="the folder of the new project; absent or empty (default: recorded)",
    )
    parser.add_argument(
        "--only",
        choices=("ops", "functions"),
        help="only ATen ops, or only the public functions of torch (default: both)",
    )
    parser.add_argument(
        "--requirement", metavar="TEXT", help="how requirements.txt names this distribution"
    )
    parser.epilog = "Then: cd FOLDER && make matrix"


def run(args: argparse.Namespace) -> int:
    """Write the project, all or nothing. Return 130 if it is interrupted."""
    # before the command runs, which may take long
    require_empty(args.out)
    try:
        return _run(args)
    except RecordError as error:
        print(f"record: {error}\nnothing was written", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("record: interrupted; nothing was written", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace) -> int:
    """Record the calls, try them, and write the project. Raises RecordError."""
    calls = record(args.command)
    if args.only:
        calls = [each for each in calls if f"{each.kind}s" == args.only]
    if not calls:
        raise RecordError(f"`{args.command}` called nothing of torch")
    # after the command, whose first lines should not wait for torch
    from gen.packages.recorded_project import choose, words
    from gen.packages.subprocesses import try_given

    # They are tried in another process, since a call may end it.
    choice = choose(calls)
    trials = []
    for number, trial in enumerate(try_given(choice.givens), 1):
        text = trial.reason or "works"
        print(f"  {number}/{len(choice.givens)} {trial.name}: {text}", file=sys.stderr, flush=True)
        trials.append(trial)
    known = words(choice, trials, args.command) | versions(args.requirement)
    if not known["rows"]:
        raise RecordError(f"none of the {len(calls)} ops and functions of the command can be a row")
    texts = files(TEMPLATES, known, SHARED) | files(PACKAGE_TEMPLATES, known)
    write_project(args.out, texts)
    print(_summary(args.out, calls, len(known["rows"]), len(known["left_out"])))
    return 0


def _summary(out: Path, calls: Sequence[Recorded], rows: int, left_out: int) -> str:
    """Return what was written, and what to do next."""
    total = sum(each.count for each in calls)
    return (
        f"{out}: {rows} rows from {total:,} calls, {left_out} ops and functions left out "
        f"(the end of matrix.yaml says why). Next: cd {out} && make matrix"
    )
