"""Compare the failures of a run with those of an earlier one: ``--baseline FILE``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gen.run.failure_groups import group_failures
from gen.run.results import CellResult, read
from gen.severity import severity_of_row

__all__ = ["Baseline"]


class Baseline:
    """The cells of an earlier run, by pytest id.

    A failure is old if the earlier run has the same cell with the same outcome and the same cause.
    Numbers in a message do not count. All other failures are new.
    """

    def __init__(self, path: Path) -> None:
        """Read a results file. Raises ResultsError for one that cannot be read."""
        self._path = path
        self._cells = {cell.node: cell for cell in read(path).cells}

    def is_new(self, cell: CellResult) -> bool:
        """Return whether a cell fails, and did not fail so in the earlier run."""
        if not _fails(cell):
            return False
        before = self._cells.get(cell.node)
        return before is None or _failure(before) != _failure(cell)

    def lines(self, cells: Sequence[CellResult], listed: int) -> list[str]:
        """Return what the summary of a run says: counts, and the first causes of new failures."""
        new = [cell for cell in cells if self.is_new(cell)]
        old = sum(map(_fails, cells)) - len(new)
        before = [self._cells[cell.node] for cell in cells if cell.node in self._cells]
        now = {cell.node for cell in cells if _fails(cell)}
        gone = sum(_fails(cell) and cell.node not in now for cell in before)
        lines = [
            f"against {self._path}: {len(new)} failures are new, {old} are old, "
            f"{gone} cells fail no more"
        ]
        causes = group_failures(new)
        lines += [f"  new: {cause.line()}" for cause in causes[:listed]]
        if len(causes) > listed:
            lines.append(f"  … and {len(causes) - listed} more causes, in the results file")
        return lines

    def new_failures(self, cells: Iterable[CellResult]) -> list[CellResult]:
        """Return the cells with new failures."""
        return [cell for cell in cells if self.is_new(cell)]


def _fails(cell: CellResult) -> bool:
    return severity_of_row(cell.outcome, cell.severity) is not None


def _failure(cell: CellResult) -> tuple[str, str, str]:
    return cell.outcome, cell.severity, cell.cause or cell.why
