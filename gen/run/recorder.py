"""Write what a run leaves: the results file and the summary on the terminal.

Cells may have run in worker processes. Their facts arrive in the controlling process as user
properties of the reports.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from gen.dtypes import DTYPES
from gen.files import replace
from gen.run import earlier_runs
from gen.run.earlier_results import Baseline
from gen.run.failure_groups import count_severe, counts_by_severity, summary_lines
from gen.run.progress import Progress
from gen.run.results import OUTCOMES, CellResult, Writer
from gen.run.selection.shard_plugin import Sharding
from gen.severity import Severity

__all__ = ["FACTS", "RECORDER", "Recorder"]

FACTS = "matrix-cell"
RECORDER = "matrix-recorder"
"""The name of the plug-in that has the cells of a run."""
_MOST_LINES = 40  # of failures in the summary on a terminal


class Recorder:
    """Collect cells from test reports. Nothing is written until the first one comes."""

    def __init__(
        self,
        path: Path,
        header: Mapping[str, object],
        sharding: Sharding | None,
        *,
        last: Path,
        whole: bool,
        fail_on: Severity | None = None,
        earlier: Sequence[CellResult] = (),
        baseline: Baseline | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self.last = last
        self.header = {**header, "began": datetime.datetime.now().isoformat(timespec="seconds")}
        self.sharding = sharding
        # whether the run takes every cell of its tier
        self.whole = whole
        # Neither failures that are less severe, nor those of the baseline, decide the exit status.
        self.fail_on = fail_on
        self.baseline = baseline
        self._progress = progress
        # the cells of the run that this one goes on with
        self._earlier = tuple(earlier)
        # Only reports of cells are counted, but pytest also counts those of other tests.
        self._failed_reports = 0
        self.cells: list[CellResult] = [*earlier]
        self.entries: dict[str, str] = {}
        self.unwritten = ""  # why the results file could not be written
        self._writer: Writer | None = None
        self._pending: dict[str, dict[str, Any]] = {}
        self._seconds: dict[str, float] = {}
        self._start = time.perf_counter()
        self._complete = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the facts of a cell from the reports of its setup, call and teardown."""
        facts = dict(report.user_properties).get(FACTS)
        if not isinstance(facts, dict):
            facts = self._pending.get(report.nodeid) or _facts_of_crash(report)
            if facts is None:
                return
        self._failed_reports += report.failed
        pending = self._pending.setdefault(report.nodeid, facts)
        for key, value in facts.items():
            # The facts of a teardown do not include a setup that failed, which is noted below.
            if key not in ("outcome", "why") or report.when == "call":
                pending[key] = value
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        pending.update(_outcome_without_verdict(report, pending["outcome"]))
        # The last report is that of the teardown, or pytest-xdist's report of a worker that died.
        if report.when not in ("setup", "call"):
            self._finish(report.nodeid)

    def _finish(self, node: str) -> None:
        """Add a cell to the results, once its teardown is over."""
        facts = self._pending.pop(node)
        self.entries.update(facts.pop("ledger", {}))
        cell = CellResult(
            **{"values": "", **facts, "entries": tuple(facts["entries"])},
            seconds=round(self._seconds[node], 5),
            node=node,
        )
        self.cells.append(cell)
        self._write(lambda writer: writer.cell(cell))
        if self._progress is not None:
            self._progress.count(cell)

    def _write(self, what: Callable[[Writer], None]) -> None:
        """Write to the results file.

        If the disk takes no more, the run goes on without the file, and fails at its end.
        """
        if self.unwritten:
            return
        try:
            what(self._open())
        except OSError as error:
            self.unwritten = f"{self.path}: {error.strerror}; the results of this run are not in it"

    def _open(self) -> Writer:
        """Return the writer.

        The file begins with the first cell, so that a run without cells leaves no file.
        """
        if self._writer is None and self._earlier:
            self._writer = Writer(self.path, None)
        if self._writer is None:
            earlier_runs.keep(self.path)
            header = self.header
            # The facts of the shards are known now, because the collection has divided the cells.
            if self.sharding is not None:
                header = {**header, **self.sharding.facts()}
            self._writer = Writer(self.path, header)
        return self._writer

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the last line, and decide the exit status.

        A run fails if nothing passed, or if its results could not be written.
        """
        # A shard without cells has a results file all the same, so that it can be merged.
        if self.sharding is not None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = exitstatus = pytest.ExitCode.OK
            self._write(lambda writer: None)
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._earlier:
            session.exitstatus = exitstatus = pytest.ExitCode.OK
            self._write(lambda writer: None)
        if self._writer is None and not self.unwritten:
            return
        came_to_end = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self._complete = came_to_end and not session.shouldstop and not session.shouldfail
        self._write(lambda writer: writer.close(self._end()))
        # Without this file, a page shows the newest whole run.
        with contextlib.suppress(OSError):
            replace(self.last, str(self.path))
        session.exitstatus = self._exit_status(session, exitstatus)

    def _exit_status(self, session: pytest.Session, exitstatus: int) -> int:
        """Return the exit status of a run, of which pytest gives `exitstatus`."""
        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._only_tolerates(session):
            exitstatus = pytest.ExitCode.OK
        if exitstatus == pytest.ExitCode.OK and (self.nothing_passed() or self.unwritten):
            return pytest.ExitCode.TESTS_FAILED
        # Pytest does not know the cells that failed before the run was interrupted.
        if exitstatus == pytest.ExitCode.OK and self._count_severe(self._earlier):
            return pytest.ExitCode.TESTS_FAILED
        return exitstatus

    def _only_tolerates(self, session: pytest.Session) -> bool:
        """Return whether all failures are below ``--fail-on``, or are those of the baseline.

        A run that did not come to its end tolerates nothing.
        """
        if (self.fail_on is None and self.baseline is None) or not self._complete:
            return False
        severe = self._count_severe(self.cells)
        return not severe and session.testsfailed == self._failed_reports

    def _count_severe(self, cells: Sequence[CellResult]) -> int:
        """Count the failures that ``--fail-on`` and ``--baseline`` are about."""
        new = cells if self.baseline is None else self.baseline.new_failures(cells)
        return count_severe(counts_by_severity(new), self.fail_on or Severity.STALE)

    def _end(self) -> dict[str, object]:
        """Return the last line of the results file."""
        end: dict[str, object] = {
            "complete": self._complete,
            "wall_seconds": round(time.perf_counter() - self._start, 2),
            "never_happened": self.never(),
        }
        if self.sharding is not None:
            end["active"] = self.entries  # for `gen merge`, which knows what happened in all shards
        return end

    def nothing_passed(self) -> bool:
        """Return whether no cell passed or failed as expected. Such a run proves nothing."""
        if not self.cells:
            return False
        return not any(cell.outcome in ("passed", "xfailed") for cell in self.cells)

    def never(self) -> list[str]:
        """Return the active entries that no cell of a whole run needed.

        Strict xfails do not reveal one that shares its cases with another entry.
        """
        # A narrowed run leaves out cells on which an entry may happen.
        if not (self.whole and self._complete):
            return []
        needed = set(chain.from_iterable(cell.entries for cell in self.cells))
        unneeded = [entry for entry in sorted(self.entries.items()) if entry[0] not in needed]
        return [f"{name}: {where}" for name, where in unneeded]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print counts, what proved nothing, what was lacking and the slowest cells."""
        if not self.cells:
            return
        out = terminalreporter
        out.section("matrix")
        # The counts come first, and then the parts that a reader should look at.
        counts = Counter(cell.outcome for cell in self.cells)
        present = [outcome for outcome in OUTCOMES if counts[outcome]]
        out.line(" · ".join(f"{counts[outcome]} {outcome}" for outcome in present))
        seconds = sum(cell.seconds for cell in self.cells)
        mean = 1000 * seconds / len(self.cells)
        out.line(
            f"{len(self.cells)} cells, {mean:.1f} ms a cell on average, "
            f"{seconds:.1f} s in all; {self.path}"
        )
        self._summarize_failures(out)
        _list(out, "vacuous (nothing was proved)", self._vacuous())
        _list(out, "lacking (the target does not offer it)", self._counted("lacking"))
        _list(out, "not covered (the device left an op to the CPU)", self._counted("not covered"))
        _list(out, f"entries that never happened at tier {self.header['tier']}", self.never())
        slowest = sorted(self.cells, key=lambda cell: -cell.seconds)[:10]
        _list(out, "slowest", [f"{1000 * cell.seconds:8.0f} ms  {cell.node}" for cell in slowest])
        if self.unwritten:
            out.line(self.unwritten, red=True)
        if self.nothing_passed():
            out.line(f"nothing passed{self._why_nothing()}", red=True)

    def _summarize_failures(self, out: pytest.TerminalReporter) -> None:
        """Print how severe the failures are, their first causes, and which of them are new."""
        counts = counts_by_severity(self.cells)
        for line in summary_lines(counts, self.cells, _MOST_LINES, self.fail_on):
            out.line(line)
        if self.baseline is not None:
            for line in self.baseline.lines(self.cells, _MOST_LINES):
                out.line(line)

    def _vacuous(self) -> list[str]:
        return [f"{cell.node}: {cell.why}" for cell in self.cells if cell.outcome == "vacuous"]

    def _why_nothing(self) -> str:
        """Say why a run fails of which every cell was left out; empty if one was not."""
        if {cell.outcome for cell in self.cells} <= {"skipped", "lacking", "not covered"}:
            return ": a run of which every cell was left out counts as failed"
        return ""

    def _counted(self, outcome: str) -> list[str]:
        """Count the cells of an outcome, by reason and check."""
        counts = Counter((cell.why, cell.check) for cell in self.cells if cell.outcome == outcome)
        return [
            f"{count} cells of {check}: {why}" for (why, check), count in sorted(counts.items())
        ]


def _list(out: pytest.TerminalReporter, title: str, lines: Sequence[str]) -> None:
    """Print a title and the first of some lines. Nothing is printed without lines."""
    if lines:
        out.line(f"{title}:")
        for line in lines[:_MOST_LINES]:
            out.line(f"  {line}")
        if len(lines) > _MOST_LINES:
            out.line(f"  … and {len(lines) - _MOST_LINES} more, in the results file")


def _outcome_without_verdict(report: pytest.TestReport, outcome: str) -> dict[str, str]:
    """Return the outcome of a cell, and why, if its worker process died or pytest decided it.

    `outcome` is that of the cell so far: "error" until its check has a verdict.
    """
    # This is pytest-xdist's report of a worker process that died.
    if report.when not in ("setup", "call", "teardown"):
        return {"outcome": "crashed", "why": report.longreprtext.strip().splitlines()[-1]}
    if report.failed and (report.when != "call" or outcome == "error"):
        return {"outcome": "error", "why": _last_line(report)}
    if report.skipped and outcome == "error":
        return {"outcome": "skipped", "why": _last_line(report)}
    return {}


def _last_line(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return _first_line(crash.message)
    return _first_line(report.longreprtext)


def _first_line(text: str) -> str:
    """Return the first line of a text, at most 300 characters of it."""
    first, *_ = text.strip().splitlines() or [""]
    return first[:300]


def _facts_of_crash(report: pytest.TestReport) -> dict[str, object] | None:
    """Return the facts of a cell whose worker died, from the node id."""
    module, _, rest = report.nodeid.partition("::")
    check, _, case = rest.rstrip("]").partition("[")
    op, *words = case.split("-")
    is_cell = check.startswith("test_") and bool(words) and words[0] in DTYPES
    if not report.failed or not is_cell:
        return None
    return {
        "id": case,
        "family": Path(module).stem.removeprefix("test_"),
        "op": op,
        "dtype": words[0],
        "check": check.removeprefix("test_"),
        "axes": {},
        "outcome": "crashed",
        "why": "",
        "samples": 0,
        "entries": [],
    }
