"""Group failed cells by their cause: one cause over many cells is one finding, with a count.

    for finding in group_failures(cells):      # the most severe first
        print(finding.line())

Cells have one cause if they fail equally severely on one op, by one error, in one line of user
code. Wrong derivatives of one op are one cause, whatever program takes them.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gen.outcomes import Mismatch
from gen.package_names import GENERATOR, RUNTIME, is_inside
from gen.run.results import CellResult
from gen.severity import Severity, severity_of_row

__all__ = [
    "FailureGroup",
    "by_severity",
    "cause_of",
    "count_severe",
    "counts_by_severity",
    "frame_of",
    "group_failures",
    "summary_lines",
    "without_numbers",
]

# Matches a number, a list in brackets, or one of the floats that are written as words.
_NUMBERS = re.compile(r"-?\d[\d.e+-]*|\[[^\]]*\]|\b(?:nan|inf)\b")


@dataclass(frozen=True)
class FailureGroup:
    """A cause of failures, and the cells that fail by it."""

    severity: Severity
    outcome: str
    op: str
    why: str  # the first cell's: those of the others may have other numbers in it
    frame: str  # the line of user code, "ops.py:12 in scale", or empty
    cells: Sequence[CellResult]  # in the order of their nodes

    @property
    def nodes(self) -> list[str]:
        """Return the nodes by which pytest runs the cells."""
        return [cell.node for cell in self.cells]

    @property
    def checks(self) -> list[str]:
        """Return the checks of the cells, each once."""
        return list(dict.fromkeys(cell.check for cell in self.cells))

    def line(self) -> str:
        """Return the finding as a line of text: severity, count, op, reason and place.

        The report of a single cell stands above the line, so the reason is not repeated.
        """
        place = f" [{self.frame}]" if self.frame else ""
        if len(self.cells) == 1:
            return f"{self.severity.word}: {self.nodes[0]}{place}"
        return (
            f"{self.severity.word}: {len(self.cells)} cells of {self.op} "
            f"under {', '.join(self.checks)}: {self.why}{place}; the first is {self.nodes[0]}"
        )


def group_failures(cells: Iterable[CellResult]) -> list[FailureGroup]:
    """Group the failed cells by their cause.

    The most severe cause comes first. Of two equally severe ones, the more frequent comes first.
    """
    grouped: dict[tuple[Severity, str, str, str, str], list[CellResult]] = {}
    for cell in sorted(cells, key=lambda cell: cell.node):
        severity = severity_of_row(cell.outcome, cell.severity)
        if severity is not None:
            # Older results files have no cause.
            cause = cell.cause or cell.why
            key = severity, cell.outcome, cell.op, cause, cell.frame
            grouped.setdefault(key, []).append(cell)
    groups = []
    for (severity, outcome, op, _, frame), members in grouped.items():
        groups.append(FailureGroup(severity, outcome, op, members[0].why, frame, members))

    def rank(group: FailureGroup) -> tuple[int, int, str, str]:
        """Sort by severity and number, and equal ones by name, so that reports can be compared."""
        return -group.severity, -len(group.cells), group.op, group.why

    return sorted(groups, key=rank)


def by_severity(cells: Iterable[CellResult]) -> list[CellResult]:
    """Sort the failed cells to the front, the most severe first. The others stay in order."""

    def rank(cell: CellResult) -> int:
        """Rank a failure at 0 or below, by its severity, and everything else at 1."""
        severity = severity_of_row(cell.outcome, cell.severity)
        return 1 if severity is None else -severity

    return sorted(cells, key=rank)


def counts_by_severity(cells: Iterable[CellResult]) -> Counter[Severity]:
    """Count the failed cells of each severity, the most severe first."""
    severities = [severity_of_row(cell.outcome, cell.severity) for cell in cells]
    failed = [severity for severity in severities if severity is not None]
    return Counter(sorted(failed, reverse=True))


def summary_lines(
    counts: Counter[Severity], failed: Sequence[CellResult], listed: int, fail_on: Severity | None
) -> list[str]:
    """Return the lines of a run's summary that tell of failures. None if no cell failed.

    They count the failures by severity, show the first `listed` findings, and say which failures
    ``--fail-on`` counts. `counts` has all failed cells. `failed` may have a part of them.
    """
    if not counts:
        return []
    worst_first = sorted(counts, reverse=True)
    by_word = " · ".join(f"{counts[severity]} {severity.word}" for severity in worst_first)
    findings = group_failures(failed)
    lines = [f"failed, the most severe first: {by_word}", f"findings ({len(findings)}):"]
    lines += [f"  {finding.line()}" for finding in findings[:listed]]
    if len(findings) > listed:
        lines.append(f"  … and {len(findings) - listed} more, in the results file")
    if fail_on is not None:
        severe = count_severe(counts, fail_on)
        lines.append(
            f"--fail-on {fail_on.word}: {severe} failed cells count, {counts.total() - severe} are "
            "less severe and do not change the exit status"
        )
    return lines


def count_severe(counts: Counter[Severity], fail_on: Severity | None) -> int:
    """Count the failed cells that are at least as severe as ``--fail-on``, by default all."""
    least = fail_on or 0
    return sum(count for severity, count in counts.items() if severity >= least)


# --- the cause and the place of an error ----------------------------------------------------------


def cause_of(error: BaseException) -> str:
    """Return the class and the text of an error, with "#" for each number and list.

    Errors that differ in these alone have one cause. A mismatch may name its cause itself.
    """
    if isinstance(error, Mismatch) and error.cause:
        return f"{type(error).__name__}: {error.cause}"
    # The first line says what went wrong. Further ones are details that differ from cell to cell.
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {without_numbers(lines[0])}"[:300]


def without_numbers(text: str) -> str:
    """Return a message with "#" for each number and list: "at [0, 1] by 3e-5" is "at # by #".

    So errors that differ in these alone count as one.
    """
    return _NUMBERS.sub("#", text)


def frame_of(error: BaseException) -> str:
    """Return the innermost line of user code in the traceback of an error: "ops.py:12 in scale".

    Empty if the error comes from the target before it calls any.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        # The generator calls the target. Further out is only what calls the generator.
        if is_inside(_module(frame), GENERATOR):
            return ""
        if not _is_library(_module(frame)):
            code = frame.f_code
            return f"{Path(code.co_filename).name}:{line} in {code.co_name}"
    return ""


def _module(frame: FrameType) -> str:
    """Return the module of a frame; empty for code without one."""
    return str(frame.f_globals.get("__name__", ""))


def _is_library(module: str) -> bool:
    """Return whether a module belongs to the runtime, torch or Python, and not to the user."""
    package = module.partition(".")[0]
    return is_inside(module, RUNTIME) or package == "torch" or package in sys.stdlib_module_names
