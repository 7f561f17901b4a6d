"""Run the cells of a level, and name the op to write next: the first one that fails, in the order
in which an author of a backend brings up ops.

    level 4, views: 61 passed
    level 5, elementwise: 37 passed · 4 failed
    write next: torch.exp (level 5, elementwise): red are 2 of 6 cells
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from gen.checks.tables import Cell
from gen.errors import MatrixError
from gen.language.axes import Axes
from gen.language.backend_levels import Level, LevelError, chosen_levels, read_levels
from gen.run.recorder import RECORDER
from gen.run.results import OUTCOMES, CellResult

__all__ = ["LevelRun", "level_run_asked_for"]

_RED = ("failed", "error", "crashed", "timed out", "vacuous", "xpassed")
_LEFT = {"not covered": "left to the CPU", "xfailed": "expected to fail"}
"""What is no failure, and still has to be written: the outcome, and what the summary says of it."""
_LISTED = 5  # ops of a level


@dataclass(frozen=True)
class OpAtLevel:
    """An op of a level, with its cells that have run."""

    level: Level
    op: str
    cells: Sequence[CellResult]

    @property
    def outcomes(self) -> list[str]:
        return [cell.outcome for cell in self.cells]

    def count(self, *outcomes: str) -> int:
        """Count the cells with one of these outcomes."""
        return sum(map(self.outcomes.count, outcomes))


class LevelRun:
    """The levels that a run takes, and what came of them."""

    def __init__(self, levels: Sequence[Level], count: int) -> None:
        self.levels = levels
        self._count = count  # of all levels of the matrix
        self._places: dict[str, tuple[int, int]] = {}
        """The place of each cell in the order of the levels, by the name of its test."""

    def chosen(self, test: str, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells of a generated test that belong to the levels, and note their places."""
        chosen = []
        for cell in cells:
            place = self._place(test.removeprefix("test_"), cell)
            if place is not None:
                self._places[f"{test}[{cell.id}]"] = place
                chosen.append(cell)
        return chosen

    def _place(self, check: str, cell: Cell) -> tuple[int, int] | None:
        """Return the level and the rank of a cell. None if no level has it."""
        for level in self.levels:
            if level.has(cell.op, check, cell.dtype, cell.axes):
                return level.number, level.rank(cell.op) or 0
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the cells into the order of the levels. Other tests come first."""
        # a stable sort: cells of one place keep the order of their module
        items.sort(key=lambda item: self._places.get(item.name, (0, 0)))

    # --- what came of it --------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Print what came of each level, and which op to write next."""
        recorder = config.pluginmanager.get_plugin(RECORDER)
        if recorder is None or not recorder.cells:
            return
        terminalreporter.section("levels")
        for line in self._lines(recorder.cells):
            terminalreporter.line(line)

    def _lines(self, cells: Sequence[CellResult]) -> Iterator[str]:
        """Yield the lines of the summary."""
        ops = list(self._ops(cells))
        for level in self.levels:
            of_level = [op for op in ops if op.level == level]
            yield f"{level.title}: {_outcomes(of_level)}"
        red = [op for op in ops if op.count(*_RED)]
        if red:
            yield from _red_lines(red)
        else:
            yield from self._green_lines(ops)

    def _ops(self, cells: Sequence[CellResult]) -> Iterator[OpAtLevel]:
        """Yield the ops whose cells have run, in the order in which to write them."""
        for level in self.levels:
            by_op: dict[tuple[int, str], list[CellResult]] = {}
            for cell in cells:
                if level.has(cell.op, cell.check, cell.dtype, Axes.varying(cell.axes)):
                    by_op.setdefault((level.rank(cell.op) or 0, cell.op), []).append(cell)
            for (_, op), those in sorted(by_op.items()):
                yield OpAtLevel(level, op, those)

    def _green_lines(self, ops: Sequence[OpAtLevel]) -> Iterator[str]:
        """Yield what is left to do where nothing fails."""
        for outcome, said in _LEFT.items():
            left = [op for op in ops if op.count(outcome)]
            if left:
                yield f"{said}: {_named(left)}"
        last = self.levels[-1].number
        if last < self._count:
            yield f"it holds; the next level: --level {last + 1}"


def _outcomes(ops: Iterable[OpAtLevel]) -> str:
    """Count the cells of some ops by their outcome."""
    counts = Counter(chain.from_iterable(op.outcomes for op in ops))
    shown = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
    return " · ".join(shown) or "no cell ran"


def _red_lines(red: Sequence[OpAtLevel]) -> Iterator[str]:
    """Yield the op to write next, its first failure, and the ops after it."""
    first = red[0]
    failed = next(cell for cell in first.cells if cell.outcome in _RED)
    share = f"{first.count(*_RED)} of {len(first.cells)} cells"
    yield f"write next: {first.op} ({first.level.title}): red are {share}"
    yield f"  {failed.node}: {failed.why}"
    if red[1:]:
        yield f"and then: {_named(red[1:])}"


def _named(ops: Sequence[OpAtLevel]) -> str:
    """Return the names of some ops, and how many more there are."""
    names = list(dict.fromkeys(op.op for op in ops))
    text = ", ".join(names[:_LISTED])
    if len(names) > _LISTED:
        text += f" and {len(names) - _LISTED} more"
    return text


def level_run_asked_for(root: Path, text: str | None) -> LevelRun | None:
    """Return the levels that a run is to take, by the matrix in `root`. None if it takes all.

    Raises UsageError if there are no such levels.
    """
    if text is None:
        return None
    try:
        levels = read_levels(root / "matrix.yaml")
        return LevelRun(chosen_levels(levels, text), len(levels))
    except (LevelError, MatrixError) as error:
        raise pytest.UsageError(f"--level: {error}") from error
