"""Run the cells of a session, each in a process that may die of it.

A :class:`Runner` forks a worker at the first cell, when every module is loaded. The worker runs one
cell after another and sends back what came of it. If it dies or takes too long, that is the outcome
of the cell, and the next cell gets a new worker.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gen.outcomes import Crashed, Mismatch, SamplesError, Vacuous
from gen.run.isolation import POSSIBLE, Worker
from gen.severity import Failed

if TYPE_CHECKING:
    from gen.run.verdict import Verdict

__all__ = ["DEFAULT_LIMIT", "Ran", "Runner", "Told", "Watch", "told"]

DEFAULT_LIMIT = 120.0  # seconds of a cell for which the matrix names no limit
_FRAMES = 12  # of a process that died, innermost first
_HARNESS = str(Path(__file__).parents[1]) + os.sep
_OUTCOMES: dict[str, Any] = {
    "skip": pytest.skip.Exception,
    "xfail": pytest.xfail.Exception,
    "fail": pytest.fail.Exception,
}
_Warned = tuple[str, type[Warning], str, int]


@dataclass(frozen=True)
class Watch:
    """Tell the process that waits for a cell what the cell does. `worker`: the one that runs it."""

    worker: Worker

    def begin(self, sample: int, description: str) -> None:
        """Note that a sample is about to run, of which the process may die."""
        self.worker.note(f"{sample} {description}")

    def outside_limit(self) -> AbstractContextManager[None]:
        """Return a context whose time does not count for the limit of the cell."""
        return self.worker.outside_limit()


@dataclass(frozen=True)
class Ran:
    """The result of a cell: its verdict, and what else its record says."""

    verdict: Verdict
    # the number of samples that it compared
    compared: int
    # how often the target's vmap ran each op in a loop
    loops: Mapping[str, int]
    # a stand-alone program that shows the first failure, if there is one
    program: str = ""
    # the entries of other cells that expect an error like it
    elsewhere: tuple[str, ...] = ()
    # the rules of the target that ran, if they were noted
    rules: tuple[str, ...] = ()
    # a digest of what the target gave, see :class:`gen.checks.compare.Seen`
    values: str = ""
    # the first error that the target gave in place of values
    refusal: str = ""
    # how severe its failure is, if it failed
    failed: Failed | None = None
    # what the cell depends on, if the run notes that
    trace: str = ""


class Told(Exception):
    """An error of another process. Its text is the whole report of it."""


def told(error: BaseException) -> str:
    """Return the report of an error: the message of a comparison, where a process died, or a
    traceback.

    The traceback is Python's. pytest's quotes whole functions, for which it parses torch's files of
    20,000 lines. It begins behind the last frame of the harness, so it is the same for every sample
    that fails alike.
    """
    if isinstance(error, Crashed):
        return _report_of_crash(error)
    if isinstance(error, Mismatch | Vacuous | Told):
        return str(error)
    trace = traceback.TracebackException.from_exception(error)
    for one in _chain(trace):
        _cut_harness(one.stack)
    # The mistake is one of the matrix, so frames of this package say nothing.
    if isinstance(error, SamplesError):
        trace.stack.clear()
        title = "Traceback (most recent call last):\n"
        return "".join(trace.format()).rstrip().removeprefix(title)
    return "".join(trace.format()).rstrip()


def _report_of_crash(error: Crashed) -> str:
    """Describe the death of a process and its last frames, without those of the harness."""
    lines = [line.strip() for line in error.stack.splitlines() if line.startswith("  File ")]
    frames = list(takewhile(lambda line: f'"{_HARNESS}' not in line, lines))[:_FRAMES]
    report = [str(error)]
    if frames:
        report.append("it was here, innermost call first:")
    report += [f"  {frame}" for frame in frames]
    return "\n".join(report)


def _cut_harness(stack: traceback.StackSummary) -> None:
    """Remove the frames down to the last one of the harness. The innermost frame stays."""
    start = 0
    for place, frame in enumerate(stack, 1):
        if frame.filename.startswith(_HARNESS):
            start = place
    stack[:] = stack[start:] or stack[-1:]


def _chain(error: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yield an error, and those that caused it or came before it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Runner:
    """Run the cells of items, and decide in which process.

    `run(item, watch)` runs the cell of an item and tells `watch` what it does. With `here` that is
    always the process of the session, and nobody watches.
    """

    def __init__(
        self,
        items: Sequence[pytest.Item],
        run: Callable[[pytest.Function, Watch | None], Ran],
        *,
        here: bool,
    ) -> None:
        self._items = items
        self._places = {item: place for place, item in enumerate(items)}
        self._run = run
        self._worker = None if here or not POSSIBLE else Worker(self._serve)
        self._filters: list[Any] | None = None  # the filters of warnings that the worker has

    def run(
        self, item: pytest.Function, limit: float | None, *, alone: bool = False
    ) -> Ran | tuple[int | None, str, Crashed]:
        """Return the outcome of the cell.

        If its process was lost: the sample that ran, its description, and how it was lost. `alone`:
        the cell gets a process of its own.
        """
        if self._worker is None:
            return self._run(item, None)
        if alone:
            self._filters = None  # each new process needs them
        # Filters are sent only when they change, as they seldom do between two cells.
        filters = list(warnings.filters)
        changed = None if filters == self._filters else filters
        question = self._places[item], changed
        try:
            ran, caught, raised = self._worker.ask(question, limit, alone=alone)
        # The next worker has none of the filters yet.
        except Crashed as lost:
            self._filters = None
            sample, _, description = self._worker.noted().partition(" ")
            return int(sample) if sample else None, description, lost
        self._filters = None if alone else filters
        # Warnings of the worker are given here, where pytest collects them.
        for warning in caught:
            warnings.warn_explicit(*warning)
        if raised is not None:
            raise _OUTCOMES[raised[0]](raised[1])
        return ran  # type: ignore[no-any-return]  # what `_serve` returned

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()

    def _serve(
        self, question: tuple[int, list[object] | None]
    ) -> tuple[Ran | None, list[_Warned], tuple[str, str] | None]:
        """Run, in the worker, the cell at a place of the session, with the parent's filters of
        warnings.

        Returns what it came to, the warnings, and the outcome of pytest that it raised: these
        exceptions cannot be pickled.
        """
        place, filters = question
        item = self._items[place]
        assert isinstance(item, pytest.Function) and self._worker is not None
        if filters is not None:
            warnings.resetwarnings()
            # a list, which typeshed does not say
            warnings.filters.extend(filters)  # type: ignore[attr-defined]
        with warnings.catch_warnings(record=True) as caught:
            try:
                ran = self._run(item, Watch(self._worker))
            except (SystemExit, KeyboardInterrupt) as error:
                # of the op or its samples: the user's Ctrl-C does not reach this process
                raise Crashed(f"{error!r} was raised") from None
            except tuple(_OUTCOMES.values()) as outcome:
                word = next(name for name, kind in _OUTCOMES.items() if type(outcome) is kind)
                return None, _portable(caught), (word, str(outcome.msg))
        # an error of the op may be of a class that cannot be pickled, so its report is sent
        failures = tuple(
            replace(failure, error=Told(told(failure.error))) for failure in ran.verdict.failures
        )
        verdict = replace(ran.verdict, failures=failures)
        return replace(ran, verdict=verdict), _portable(caught), None


def _portable(caught: Sequence[warnings.WarningMessage]) -> list[_Warned]:
    """Return warnings in a form that can be pickled and repeated."""
    return [(str(one.message), one.category, one.filename, one.lineno) for one in caught]
