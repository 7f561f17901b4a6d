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

_SAME = ("matrix", "target", "device", "tier", "torch", "narrowed", "rules")
_KEPT = 10_000  # failed cells in memory, whose causes are told


class Output:
    """Write the file, and count.

    Its memory grows little with the run: it stores 8 bytes of each cell that an earlier run had,
    and the first failed cells, `failed`. `severities` counts all of them.
    """

    def __init__(self, path: Path, header: Mapping[str, object], *, resume: bool) -> None:
        """Begin a file, or go on with it. Raises ResultsError if a run that is to go on was of
        other cells.
        """
        self.path = path
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self.severities: Counter[Severity] = Counter()
        self.failed: list[CellResult] = []
        self.met: set[str] = set()
        self.active: dict[str, str] = {}
        self._cells_of_earlier_run = array("Q")
        self._begin = time.perf_counter()
        resumed = resume and path.exists() and self._read(header)
        self._writer = Writer(path, None if resumed else header)

    @property
    def cells(self) -> int:
        """Return how many cells have an outcome."""
        return self.counts.total()

    @property
    def resumed(self) -> int:
        """Return how many of them an earlier run had."""
        return len(self._cells_of_earlier_run)

    def has(self, node: str) -> bool:
        """Return whether an earlier run had the cell."""
        if not self._cells_of_earlier_run:
            return False
        number = _number(node)
        place = bisect_left(self._cells_of_earlier_run, number)
        return (
            place < len(self._cells_of_earlier_run) and self._cells_of_earlier_run[place] == number
        )

    def take(self, nodes: Sequence[str], answer: Answer) -> None:
        """Write what came of the cells with the ids `nodes`."""
        if len(nodes) != len(answer.cells):
            raise ResultsError(
                f"{len(answer.cells)} outcomes came for {len(nodes)} cells; the first is {nodes[0]}"
            )
        self._writer.lines([line for _, line in answer.cells])
        for outcome, line in answer.cells:
            self.counts[outcome] += 1
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
        never = [
            f"{name}: {where}"
            for name, where in sorted(self.active.items())
            if entries_are_known and name not in self.met
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
        severity = severity_of_row(cell.outcome, cell.severity)
        if severity is None:
            return
        self.severities[severity] += 1
        if len(self.failed) < _KEPT:
            self.failed.append(cell)

    def _read(self, header: Mapping[str, object]) -> bool:
        """Read what an earlier run left. Return whether it left at least the header."""
        # Of each cell only a number of 8 bytes stays in memory.
        numbers, began = array("Q"), False
        for record in records(self.path):
            if isinstance(record, CellResult):
                numbers.append(_number(record.node))
                self.counts[record.outcome] += 1
                self._add_failed(record)
                self.met.update(record.entries)
            elif record["event"] == "run":
                began = True
                pairs = [(key, trait(record, key), trait(header, key)) for key in _SAME]
                if different := "; ".join(
                    f"{key} {before}, now {now}" for key, before, now in pairs if before != now
                ):
                    raise ResultsError(
                        f"{self.path} is of another run: {different}. "
                        "Without --resume a new run replaces it"
                    )
        self._cells_of_earlier_run = array("Q", sorted(numbers))
        return began


def _number(node: str) -> int:
    return int.from_bytes(hashlib.blake2b(node.encode(), digest_size=8).digest(), "little")


# --- what a run shows -----------------------------------------------------------------------------
#
# A live line on a terminal, and a line a minute in a log.

_EVERY = 60.0  # seconds between lines of a log


class Display:
    """Show how many cells have an outcome, how many failed, and how many workers there are."""

    def __init__(self, output: Output, total: int | None) -> None:
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
        if self._bar.disable and now - self._printed >= _EVERY:
            self._printed = now
            of = f" of {self._total:,}" if self._total is not None else ""
            print(
                f"{now - self._begin:6.0f} s  {counts.total():,}{of} cells · {text}",
                file=sys.stderr,
                flush=True,
            )
