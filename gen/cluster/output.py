"""Write the results file of a cluster's run, and show how far the run is.

Answers are appended to the file as they come. A run that was stopped goes on in the same file.
"""

from __future__ import annotations

import hashlib
import sys
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gen.cluster.job import Answer
from gen.run.failure_groups import count_severe
from gen.run.results import CellResult, ResultsError, Writer, parse_cell, records, trait
from gen.severity import Severity, severity_of_row

__all__ = ["Display", "Output"]

# What two headers must agree in, for one run to go on in the file of the other.
_IDENTITY = ("matrix", "target", "device", "tier", "torch", "narrowed", "rules")
# Most failed cells in memory. The summary groups them by cause, and ten thousand show each cause.
_MOST_FAILED = 10_000


class Output:
    """Write the file of a run, and count what it says.

    Its memory grows little with the run: it stores 8 bytes of each cell that an earlier run had,
    and the first failed cells.
    """

    def __init__(self, path: Path, header: Mapping[str, object], *, resume: bool) -> None:
        """Begin a file, or go on with it. Raises ResultsError if a run that is to go on was of
        other cells.
        """
        self.path = path
        self.counts: Counter[str] = Counter()  # cells by outcome
        self.seconds = 0.0  # that workers ran cells, all workers together
        self.severities: Counter[Severity] = Counter()  # all failed cells
        self.failed: list[CellResult] = []  # the first of them
        self.met: set[str] = set()  # names of the entries of known failures that happened
        self.active: dict[str, str] = {}  # where each entry stands that a cell could have met
        self._cells_of_earlier_run = array("Q")  # numbers of cells in order, for `has`
        self._begin = time.perf_counter()
        goes_on = resume and path.exists() and self._read(header)
        self._writer = Writer(path, None if goes_on else header)

    @property
    def cells(self) -> int:
        """Return how many cells have an outcome."""
        return self.counts.total()

    @property
    def resumed(self) -> int:
        """Return how many cells an earlier run had."""
        return len(self._cells_of_earlier_run)

    def has(self, node: str) -> bool:
        """Return whether an earlier run had the cell with the pytest id `node`."""
        earlier = self._cells_of_earlier_run
        number = _number(node)
        place = bisect_left(earlier, number)
        return place < len(earlier) and earlier[place] == number

    def take(self, nodes: Sequence[str], answer: Answer) -> None:
        """Write what came of the cells with the ids `nodes`."""
        if len(nodes) != len(answer.cells):
            raise ResultsError(
                f"{len(answer.cells)} outcomes came for {len(nodes)} cells; the first is {nodes[0]}"
            )
        self._writer.lines([line for _, line in answer.cells])
        for outcome, line in answer.cells:
            self.counts[outcome] += 1
            # the outcome alone says whether a cell failed, so the other lines need no parsing
            if severity_of_row(outcome, "") is not None:
                self._add_failed(parse_cell(line))
        self.met |= answer.met
        self.active.update(answer.active)
        self.seconds += answer.seconds

    def close(self, *, complete: bool, whole: bool) -> list[str]:
        """Write the last line. Return the entries that never happened, if the run was of every cell
        of its tier.
        """
        # entries that were active in an earlier run are not in its file
        entries_are_known = complete and whole and not self.resumed
        never: list[str] = []
        if entries_are_known:
            never = [
                f"{name}: {where}"
                for name, where in sorted(self.active.items())
                if name not in self.met
            ]
        wall = round(time.perf_counter() - self._begin, 2)
        self._writer.close({"complete": complete, "wall_seconds": wall, "never_happened": never})
        return never

    def fails(self, fail_on: Severity | None) -> bool:
        """Return whether a cell failed at least as severely as `fail_on`, or none passed."""
        if count_severe(self.severities, fail_on):
            return True
        return not (self.counts["passed"] or self.counts["xfailed"])

    def _add_failed(self, cell: CellResult) -> None:
        """Count a cell if it failed, and store it if it is one of the first."""
        severity = severity_of_row(cell.outcome, cell.severity)
        if severity is None:
            return
        self.severities[severity] += 1
        if len(self.failed) < _MOST_FAILED:
            self.failed.append(cell)

    def _read(self, header: Mapping[str, object]) -> bool:
        """Count the cells of an earlier run. Return whether its file has at least the header."""
        # of each cell only a number of 8 bytes stays in memory
        numbers, began = array("Q"), False
        for record in records(self.path):
            if isinstance(record, CellResult):
                numbers.append(_number(record.node))
                self.counts[record.outcome] += 1
                self._add_failed(record)
                self.met.update(record.entries)
            elif record["event"] == "run":
                began = True
                self._refuse_other_run(record, header)
        self._cells_of_earlier_run = array("Q", sorted(numbers))
        return began

    def _refuse_other_run(
        self, earlier: Mapping[str, object], header: Mapping[str, object]
    ) -> None:
        """Raise ResultsError if the file is of a run of other cells."""
        different: list[str] = []
        for key in _IDENTITY:
            before, now = trait(earlier, key), trait(header, key)
            if before != now:
                different.append(f"{key} {before}, now {now}")
        if different:
            raise ResultsError(
                f"{self.path} is of another run: {'; '.join(different)}. "
                "Without --resume a new run replaces it"
            )


def _number(node: str) -> int:
    """Return a number of 8 bytes for a pytest id.

    Two of a million cells have one number in about one run of thirty million.
    """
    return int.from_bytes(hashlib.blake2b(node.encode(), digest_size=8).digest(), "little")


# --- what a run shows -----------------------------------------------------------------------------
#
# A live line on a terminal, and a line a minute in a log.

_LOG_INTERVAL = 60.0  # seconds between lines of a log


class Display:
    """Show how many cells have an outcome, how many failed, and how many workers there are."""

    def __init__(self, output: Output, total: int | None) -> None:
        """Prepare a display of `total` cells. None: nobody knows how many there are."""
        self._output = output
        self._total = total
        self._begin = self._printed = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("cells", total=total)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, workers: int, lost: int) -> None:
        """Show the state of the run."""
        counts, now = self._output.counts, time.monotonic()
        failed = self._output.severities.total()
        words = [f"{workers} workers" if workers else "waiting for workers", f"{failed} failed"]
        if lost:
            words.append(f"{lost} groups lost their worker")
        text = " · ".join(words)
        self._bar.update(self._task, completed=counts.total(), description=text)
        if self._bar.disable and now - self._printed >= _LOG_INTERVAL:
            self._printed = now
            whole = f" of {self._total:,}" if self._total is not None else ""
            print(
                f"{now - self._begin:6.0f} s  {counts.total():,}{whole} cells · {text}",
                file=sys.stderr,
                flush=True,
            )
