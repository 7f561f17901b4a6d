"""Say during a run how far it is, how severe its failures are, and when it will end.

``matrix: 1,234 of 9,800 cells · 3 wrong, 1 crash · 45 a second · 3 min to go``
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from gen.run.results import CellResult
from gen.severity import Severity, severity_of_row

__all__ = ["Progress"]

_ON_TERMINAL = 5.0  # seconds between two lines
_IN_LOG = 60.0


class Progress:
    """Print a line now and then, in the process that collects the results."""

    def __init__(self, config: pytest.Config, interval: float | None) -> None:
        self._config = config
        self._interval = interval
        self._total = 0
        self._done = 0
        self._severities: Counter[Severity] = Counter()
        self._began = self._printed = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learn how many tests there are. A process with workers has none of its own."""
        if session.items:
            self._begin(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[Any]) -> None:
        """Learn from a worker how many tests there are. All have the same."""
        if not self._total:
            self._begin(len(ids))

    def _begin(self, total: int) -> None:
        """Note how many tests there are. The first line comes an interval later."""
        self._total = total
        self._printed = time.monotonic()

    def count(self, cell: CellResult) -> None:
        """Count a cell that has run, and print a line if the last one is long ago.

        The rate counts from the end of the first cell. A run without a terminal prints nothing.
        """
        self._done += 1
        severity = severity_of_row(cell.outcome, cell.severity)
        if severity is not None:
            self._severities[severity] += 1
        now = time.monotonic()
        if self._done == 1:
            self._began = now  # workers may take longer to start than a cell
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        interval = self._interval
        if interval is None:
            interval = _ON_TERMINAL if reporter.isatty else _IN_LOG
        if interval and now - self._printed >= interval:
            self._printed = now
            # of letters that workers cause pytest does not know that they have begun a line
            if reporter.currentfspath is None and reporter.verbosity <= 0:
                reporter.line("")
            reporter.write_line(self.line(now - self._began))

    def line(self, seconds: float) -> str:
        """Return the line, so many seconds after the first cell."""
        rate = (self._done - 1) / max(seconds, 1e-3)
        left = "?"
        if rate:
            left = _duration(max(0, self._total - self._done) / rate)
        worst_first = sorted(self._severities.items(), reverse=True)
        failures = ", ".join(f"{count} {severity.word}" for severity, count in worst_first)
        words = (
            f"matrix: {self._done:,} of {max(self._total, self._done):,} cells",
            failures or "no failures",
            f"{rate:.3g} a second",
            f"{left} to go",
        )
        return " · ".join(words)


def _duration(seconds: float) -> str:
    """Return a duration as text, in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
