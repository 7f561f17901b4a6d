"""Compare several runs: side by side, and one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from gen.report.changes import (
    FAILURES,
    Changes,
    Key,
    by_key,
    changes,
    fails,
    lacks,
    once,
    twice,
)
from gen.run.results import OUTCOMES, CellResult, Results

__all__ = ["Differences", "History", "history", "side_by_side", "title"]

LISTED = 400  # cells of a list on the page
_SLOWER = 2.0  # times the median of the earlier runs
_MOST_NAMES = 5  # of cells, in a message
_NOTICEABLE = 0.05  # seconds: below, times are noise


def title(result: Results) -> str:
    """Return what a run was of, as its heading."""
    return f"{result.header['target']} on {result.header['device']}, tier {result.header['tier']}"


@dataclass(frozen=True)
class Differences:
    """Runs side by side."""

    names: tuple[str, ...]
    # how often each combination of outcomes occurs
    table: Sequence[tuple[tuple[str, ...], int]]
    # the common cells whose outcomes differ
    cells: Sequence[tuple[CellResult, ...]]
    # the number of cells that differ, of which `cells` may list a part
    differing: int
    # for each run the number of cells that it alone has
    only: tuple[int, ...]
    # for each run the seconds of the common cells
    seconds: tuple[float, ...]
    # the number of cells that all runs have
    common: int


def side_by_side(runs: Sequence[Results]) -> Differences:
    """Compare two or more runs, cell by cell."""
    tables = list(map(by_key, runs))
    common_keys = sorted(set(tables[0]).intersection(*tables[1:]))
    rows = [tuple(table[key] for table in tables) for key in common_keys]
    differing = [row for row in rows if len(set(_outcomes(row))) > 1]
    return Differences(
        names=_names(runs),
        table=Counter(map(_outcomes, differing)).most_common(40),
        cells=[tuple(map(_short, row)) for row in differing[:LISTED]],
        differing=len(differing),
        only=tuple(len(table) - len(common_keys) for table in tables),
        seconds=tuple(_seconds(table[key] for key in common_keys) for table in tables),
        common=len(common_keys),
    )


def _outcomes(cells: Iterable[CellResult]) -> tuple[str, ...]:
    return tuple(cell.outcome for cell in cells)


def _seconds(cells: Iterable[CellResult]) -> float:
    return sum(cell.seconds for cell in cells)


def _names(runs: Sequence[Results]) -> tuple[str, ...]:
    """Return the target of each run, with its number if two are alike."""
    targets = [str(run.header["target"]) for run in runs]
    names = []
    for number, target in enumerate(targets, 1):
        name = target
        if targets.count(target) > 1:
            name = f"{target} ({number})"
        names.append(name)
    return tuple(names)


@dataclass(frozen=True)
class Step:
    """A run of a history."""

    began: str
    counts: Sequence[tuple[str, int]]
    failing: int
    cells: int
    seconds: float


@dataclass(frozen=True)
class History:
    """Runs, oldest first, and what the last one changed."""

    name: str
    steps: Sequence[Step]
    changes: Changes
    # cells, each with its usual seconds
    slower: Sequence[tuple[CellResult, float]]
    # cells that failed, did not, and failed again, or the reverse, each with its outcomes
    flaky: Sequence[tuple[CellResult, Sequence[str]]]
    # what a run lacks, and what stands in it twice
    notes: Sequence[str] = ()


def history(runs: Sequence[Results]) -> History:
    """Return what the last of `runs` changed. There are two or more, oldest first."""
    # Notes are taken first: afterwards each cell stands in a run once.
    notes: list[str] = []
    for run, name in zip(runs, _names_of_runs(len(runs)), strict=True):
        notes += _notes(run, name)
    runs = list(map(once, runs))
    *earlier, last = runs
    before = _results_by_cell(earlier)
    # what each cell was the last time it ran: the run before may have been narrowed
    latest = {key: cells[-1] for key, cells in before.items()}
    lines = [[*before[key], cell] for key, cell in by_key(last).items() if key in before]
    # One change is a fix or a fault. Two say that the outcome comes and goes.
    flaky = [(line[-1], list(_outcomes(line))) for line in lines if _changes(line) > 1]
    return History(
        name=title(last),
        steps=list(map(_step, runs)),
        changes=changes(
            earlier[-1],
            last,
            latest,
            whole_before=any(not lacks(run, last) for run in earlier),
        ),
        slower=_slower(lines)[:LISTED],
        flaky=flaky[:LISTED],
        notes=notes,
    )


def _results_by_cell(runs: Sequence[Results]) -> dict[Key, list[CellResult]]:
    """Return the results of each cell in the order of the runs, without the runs that lack it."""
    results: dict[Key, list[CellResult]] = {}
    for run in runs:
        for key, cell in by_key(run).items():
            results.setdefault(key, []).append(cell)
    return results


def _slower(lines: Sequence[Sequence[CellResult]]) -> list[tuple[CellResult, float]]:
    """Return the cells that took longer in the last run than they usually do, with the usual
    seconds, the largest difference first.
    """
    slower_cells = []
    for *earlier, last in lines:
        usual = median(cell.seconds for cell in earlier)
        # both: a short cell doubles by chance, and a long one varies by more than a moment
        if last.seconds > max(_SLOWER * usual, usual + _NOTICEABLE):
            slower_cells.append((last, usual))
    return sorted(slower_cells, key=lambda pair: pair[1] - pair[0].seconds)


def _names_of_runs(count: int) -> list[str]:
    """Return what the runs are called: the last ones A and B, and others by their number."""
    return [*(f"run {number}" for number in range(1, count - 1)), "A", "B"]


def _notes(run: Results, name: str) -> Iterator[str]:
    """Yield what a reader must know of a run before its cells are compared."""
    if run.cut:
        yield f"{name} was cut: it did not come to its end, and has no result of some cells"
    shard = str(run.header.get("shard", "1/1"))
    shards = shard.split(", ")
    count = int(shards[0].partition("/")[2] or 1)
    if len(shards) < count:
        yield f"{name} has {len(shards)} of {count} shards: {shard}"
    began = run.header.get("parts", {})
    if len(set(began.values())) > 1:
        when = ", ".join(f"{part} at {at or 'no time'}" for part, at in began.items())
        yield f"{name} is joined of shards that began at different times: {when}"
    if several := twice(run):
        yield (
            f"{len(several)} cells stand in {name} more than once, and the worst outcome counts: "
            f"{', '.join(several[:_MOST_NAMES])}{', …' * (len(several) > _MOST_NAMES)}"
        )


def _changes(line: Sequence[CellResult]) -> int:
    """Return how often a cell began to fail or ceased to."""
    return sum(fails(before) != fails(after) for before, after in pairwise(line))


def _step(run: Results) -> Step:
    """Return the counts of a run, as a step of a history."""
    counts = run.counts()
    return Step(
        began=str(run.header.get("began", run.header.get("date", ""))),
        counts=[(outcome, counts[outcome]) for outcome in OUTCOMES if counts[outcome]],
        failing=sum(counts[outcome] for outcome in FAILURES),
        cells=len(run.cells),
        seconds=_seconds(run.cells),
    )


def _short(cell: CellResult) -> CellResult:
    """Return a cell whose reason fits into a line of the page."""
    if len(cell.why) <= 160:
        return cell
    return replace(cell, why=cell.why[:159] + "…")
