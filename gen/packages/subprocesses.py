"""Scan a package and try its entries in a worker process, with a time limit for each.

    python -m gen.packages.subprocesses scan entmax
    python -m gen.packages.subprocesses try entmax < entries.json
    python -m gen.packages.subprocesses forward entmax < entries.json
    python -m gen.packages.subprocesses draft - < givens.json

The worker prints one line of JSON for each result. What the package prints goes to its standard
error.

A crash or a hang of the package ends the worker. Another one tries the forward pass of the entry
alone, so that its backward pass becomes a cell. If it ends as well, this is the outcome of the
entry. Then a worker goes on with the next one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from gen.packages.drafts import Given, attempt_given
from gen.packages.guesses import has_meaning
from gen.packages.package_scan import Entry, FailedImport, Parameter, Scan, scan
from gen.packages.trials import Trial, attempt, attempt_forward

__all__ = ["PackageError", "scan_package", "try_entries", "try_given"]

_SCAN_SECONDS = 300
_TRY_SECONDS = 400
"""The time of a trial that waits for something. One that computes ends by processor time before,
unless it has less than a tenth of a processor."""
_TRY_CPU_SECONDS = 40
"""The processor time of one trial, which a busy machine does not make longer."""
_START_SECONDS = 300
"""The time until the package is imported."""
_READY = "{}"
"""The line of a worker that has imported the package."""


_ENDED = "its call ended the process, or took too long"


class PackageError(Exception):
    """A package cannot be read."""


def scan_package(package: str) -> Scan:
    """Return what a package has. Raises PackageError if it does not import."""
    try:
        done = subprocess.run(
            _command("scan", package), capture_output=True, text=True, timeout=_SCAN_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise PackageError(f"its import took more than {_SCAN_SECONDS} seconds") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        last = lines[-1]  # of a traceback, the error itself
        raise PackageError(f"it does not import: {last}")
    data = json.loads(done.stdout.splitlines()[-1])
    return Scan(
        data["package"],
        tuple(map(entry_from, data["entries"])),
        tuple(FailedImport(**each) for each in data["failed_imports"]),
    )


def try_entries(package: str, entries: Sequence[Entry]) -> Iterator[Trial]:
    """Yield the trial of each entry, in order, which is that of `Entry.rank`.

    A Function is tried with the arguments that its callers give it. If a caller of a private one
    has derivatives to test, the Function is tested with them, and has no row. Without a caller, a
    private Function is tried with guesses if something says what each of its parameters is, and a
    public one with any guesses.
    """
    tried: list[Trial] = []
    for _, ranked in itertools.groupby(entries, key=lambda entry: entry.rank):
        for trial in _trials_of_rank(package, list(ranked), tuple(tried)):
            tried.append(trial)
            yield trial


def _trials_of_rank(
    package: str, entries: Sequence[Entry], before: Sequence[Trial]
) -> Iterator[Trial]:
    """Yield the trials of entries of one rank, which those of lower ranks may call.

    ``before``: the trials of lower ranks. They say which of the entries their calls reach, and with
    which arguments.
    """
    callers = {}
    alone = []
    for entry in entries:
        callers[entry.name] = [trial for trial in before if entry.name in trial.reaches]
        if not entry.is_private and not callers[entry.name]:
            alone.append(entry)
    # One worker tries these, in the order in which the loop below asks for them.
    guessed = _guessed(package, alone)
    for entry in entries:
        if entry.is_private:
            yield _private(package, entry, callers[entry.name])
        elif callers[entry.name]:
            yield _public(package, entry, callers[entry.name])
        else:
            yield next(guessed)


def _public(package: str, entry: Entry, callers: Sequence[Trial]) -> Trial:
    """Return the trial of a public Function, with guesses if the arguments of callers do not do."""
    trial = _called(entry, callers)
    if not trial.reason:
        return trial
    (trial,) = _guessed(package, [entry])
    return trial


def _private(package: str, entry: Entry, callers: Sequence[Trial]) -> Trial:
    """Return the trial of a private entry."""
    if not callers:
        return _without_caller(package, entry)
    for each in callers:
        if each.differentiable:
            reason = f"it is tested by the row of {each.name}"
            return Trial(entry.name, reason=reason, covered_by=each.name)
    return _called(entry, callers)


def _without_caller(package: str, entry: Entry) -> Trial:
    """Return the trial of a private Function, with guesses if all its parameters have a meaning."""
    unknown = [each.name for each in entry.parameters if not has_meaning(each)]
    if not unknown:
        (trial,) = _guessed(package, [entry])
        return trial
    reason = (
        f"it is private, no call that was guessed reaches it, and nothing says what "
        f"{', '.join(unknown)} may be; probe --record takes the arguments of a program's calls"
    )
    return Trial(entry.name, reason=reason)


def _guessed(package: str, entries: Sequence[Entry]) -> Iterator[Trial]:
    """Yield the trial of each entry, with arguments that are guessed."""
    for entry, trial in zip(entries, _trials(_command("try", package), entries), strict=True):
        if trial.reason != _ENDED:
            yield trial
        else:
            yield from _trials(_command("forward", package), [entry])


def _called(entry: Entry, callers: Sequence[Trial]) -> Trial:
    """Return the trial of a Function, with the arguments that its callers give it."""
    samples = [each.reaches[entry.name] for each in callers]
    given = Given(
        entry.name,
        entry.kind,
        entry.expression,
        samples,
        keeps_sizes=True,
        keeps_flags=True,
        remarks=[f"called as {callers[0].name} calls it"],
    )
    (trial,) = try_given([given])
    return trial


def try_given(givens: Sequence[Given]) -> Iterator[Trial]:
    """Yield the trial of each function with calls of it, in order."""
    yield from _trials(_command("draft", "-"), givens)


def _trials(command: list[str], tasks: Sequence[Entry | Given]) -> Iterator[Trial]:
    """Yield the trial of each task. A worker that ends is followed by another one."""
    waiting = list(tasks)
    while waiting:
        for line in _answers(command, waiting):
            yield Trial(**json.loads(line))
            waiting.pop(0)
        # the first one without an answer is what ended the worker
        if waiting:
            name = waiting.pop(0).name
            yield Trial(name, reason=_ENDED)


def _answers(command: list[str], waiting: Sequence[Entry | Given]) -> Iterator[str]:
    """Yield the lines of a worker, until it ends or is silent for too long."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder) / "entries.json"
        tasks.write_text(json.dumps(list(map(dataclasses.asdict, waiting))))
        with (
            tasks.open() as stdin,
            subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as worker,
        ):
            try:
                yield from _lines(worker)
            finally:
                worker.kill()


def _lines(worker: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines of a process; return when it ends or a line is late."""
    assert worker.stdout is not None
    limit = _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while selector.select(limit):
            line = worker.stdout.readline()
            if not line:
                return
            if line.strip() == _READY:
                limit = _TRY_SECONDS
            elif line.startswith("{"):  # and not what a start module of Python prints
                yield line


def _command(task: str, package: str) -> list[str]:
    return [sys.executable, "-m", "gen.packages.subprocesses", task, package]


# --- the worker process ----------------------------------------------------------------------


def entry_from(data: dict[str, object]) -> Entry:
    """Return the entry of its JSON form."""
    for key in ("parameters", "constructor"):
        data[key] = tuple(Parameter(**each) for each in data[key])  # type: ignore[attr-defined]
    return Entry(**data)  # type: ignore[arg-type]


def main(arguments: Sequence[str]) -> None:
    """Run one command."""
    command, package = arguments
    # The answers keep the standard output, and what the package prints goes to the other one.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        if command == "draft":
            _answer(out, lambda data: attempt_given(Given(**data)))
            return
        result = scan(package)
        if command == "scan":
            print(json.dumps(dataclasses.asdict(result)), file=out, flush=True)
            return
        inner = [each for each in result.entries if each.rank]
        attempts: dict[str, Callable[[Entry], Trial]] = {
            "try": functools.partial(attempt, inner=inner),
            "forward": attempt_forward,
        }
        _answer(out, lambda data: attempts[command](entry_from(data)))


def _answer(out: TextIO, attempted: Callable[[dict[str, Any]], Trial]) -> None:
    """Print the trial of each task of the standard input.

    A trial that takes too much processor time ends the process by a signal, which ends code in C
    too.
    """
    print(_READY, file=out, flush=True)
    for data in json.load(sys.stdin):
        signal.setitimer(signal.ITIMER_PROF, _TRY_CPU_SECONDS)
        trial = attempted(data)
        print(json.dumps(dataclasses.asdict(trial)), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
