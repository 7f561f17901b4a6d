"""Go on with an earlier run, or compare with one: ``--resume`` and ``--baseline FILE``."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gen.run.failure_groups import group_failures
from gen.run.results import CellResult, ResultsError, read, trait
from gen.severity import severity_of_row

__all__ = ["Baseline", "Resumed"]

_INPUT = "matrix_resume"  # what a worker of pytest-xdist is told
# What two runs must agree in, for one to go on in the file of the other.
_IDENTITY = ("target", "device", "tier", "torch", "sample", "narrowed", "shard", "rules")


class Resumed:
    """The part of a run that an earlier one has done."""

    def __init__(self, config: pytest.Config, path: Path, header: Mapping[str, object]) -> None:
        """Read the results file. Raises UsageError if it is of another run, or of one that has
        ended.
        """
        input_of_worker = getattr(config, "workerinput", {}).get(_INPUT)
        self.cells: tuple[CellResult, ...] = ()
        self._nodes: frozenset[str] = frozenset()
        self._began = 0.0
        self._path = path
        # the first process has read the file, and may write to it already
        if input_of_worker is not None:
            nodes, began = input_of_worker
            self._nodes, self._began = frozenset(nodes), float(began)
            return
        if path.is_file():
            self._read(header)

    def _read(self, header: Mapping[str, object]) -> None:
        """Read the cells of the earlier run, and when it began.

        Raises UsageError if this run cannot go on with it. Each says that without the option a new
        run begins, which writes over the file.
        """
        try:
            earlier = read(self._path)
        except ResultsError as error:
            raise pytest.UsageError(f"--resume: {error}; without it a new run begins") from error
        different: list[str] = []
        for key in _IDENTITY:
            before, now = trait(earlier.header, key), trait(header, key)
            if before != now:
                different.append(f"{key} {before}, now {now}")
        if different:
            raise pytest.UsageError(
                f"--resume: {self._path} is of another run: {'; '.join(different)}; "
                "without --resume a new run begins"
            )
        if not earlier.cut:
            raise pytest.UsageError(
                f"--resume: the run of {self._path} has ended; without --resume a new run begins"
            )
        self.cells = earlier.cells
        self._nodes = frozenset(cell.node for cell in earlier.cells)
        began = datetime.datetime.fromisoformat(str(earlier.header["began"]))
        self._began = began.timestamp()

    @property
    def goes_on(self) -> bool:
        """Return whether there is a run to go on with."""
        return bool(self.cells)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist which cells have an outcome."""
        node.workerinput[_INPUT] = sorted(self._nodes), self._began

    def chosen(self, items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
        """Divide the items into those that run and those that have an outcome.

        Raises UsageError if a module has changed since the earlier run began.
        """
        runs: list[pytest.Item] = []
        done: list[pytest.Item] = []
        for item in items:
            if item.nodeid in self._nodes:
                done.append(item)
            else:
                runs.append(item)
        # An outcome of an older module may be that of another cell with the same id.
        for path in sorted({item.path for item in done}):
            # the header has whole seconds
            if path.stat().st_mtime > self._began + 1:
                raise pytest.UsageError(
                    f"--resume: {path.name} has changed since the run of {self._path} began; "
                    "without --resume a new run begins"
                )
        return runs, done


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
        """Return whether a cell fails, and did not fail so in the earlier run.

        A cell that the earlier run lacks is new as well, since nobody knows what it did.
        """
        if not _fails(cell):
            return False
        before = self._cells.get(cell.node)
        return before is None or _failure(before) != _failure(cell)

    def lines(self, cells: Sequence[CellResult], listed: int) -> list[str]:
        """Return what the summary of a run says: counts, and the first causes of new failures."""
        new = [cell for cell in cells if self.is_new(cell)]
        failed = {cell.node for cell in cells if _fails(cell)}
        old = len(failed) - len(new)
        passed = {cell.node for cell in cells} - failed
        gone = sum(_fails(self._cells[node]) for node in passed & self._cells.keys())
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
