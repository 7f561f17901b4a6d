"""Several runs: beside one another, and one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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

LISTED = 400
_SLOWER = 2.0  # times the median of the earlier runs
_NAMED = 5
_NOTICEABLE = 0.05  # seconds: below, times are noise


def title(result: Results) -> str:
    """What a run was of, as its heading."""
    return f"{result.header['target']} on {result.header['device']}, tier {result.header['tier']}"


@dataclass(frozen=True)
class Differences:
    """Runs side by side. `cells` has the common cells whose outcomes differ, `table` how often each
    combination of outcomes occurs."""

    names: tuple[str, ...]
    table: Sequence[tuple[tuple[str, ...], int]]
    cells: Sequence[tuple[CellResult, ...]]
    differing: int
    only: tuple[int, ...]
    seconds: tuple[float, ...]
    common: int


def side_by_side(runs: Sequence[Results]) -> Differences:
    """Two or more runs, cell by cell."""
    tables = [by_key(run) for run in runs]
    both = sorted(set.intersection(*(set(table) for table in tables)))
    rows = [tuple(table[key] for table in tables) for key in both]
    differing = [row for row in rows if len({cell.outcome for cell in row}) > 1]
    counts = Counter(tuple(cell.outcome for cell in row) for row in differing)
    return Differences(
        names=_names(runs),
        table=counts.most_common(40),
        cells=[tuple(map(_short, row)) for row in differing[:LISTED]],
        differing=len(differing),
        only=tuple(len(table) - len(both) for table in tables),
        seconds=tuple(sum(table[key].seconds for key in both) for table in tables),
        common=len(both),
    )


def _names(runs: Sequence[Results]) -> tuple[str, ...]:
    """The target of each run; with its number if two are alike."""
    targets = [str(run.header["target"]) for run in runs]
    return tuple(
        f"{target} ({number})" if targets.count(target) > 1 else target
        for number, target in enumerate(targets, 1)
    )


@dataclass(frozen=True)
class Step:
    """One run of a history."""

    began: str
    counts: Sequence[tuple[str, int]]
    failing: int
    cells: int
    seconds: float


@dataclass(frozen=True)
class History:
    """Runs, oldest first, and what the last one changed. `notes` say what a run lacks, and what
    stands in it twice.

    `slower` has (cell, usual seconds). `flaky` has (cell, outcomes), of cells that failed, did not,
    and failed again, or the reverse."""

    name: str
    steps: Sequence[Step]
    changes: Changes
    slower: Sequence[tuple[CellResult, float]]
    flaky: Sequence[tuple[CellResult, Sequence[str]]]
    notes: Sequence[str] = ()


def history(runs: Sequence[Results]) -> History:
    """What the last of `runs` changed. There are two or more, oldest first."""
    notes = [
        note
        for run, name in zip(runs, _called(len(runs)), strict=True)
        for note in _notes(run, name)
    ]
    runs = [once(run) for run in runs]
    tables = [by_key(run) for run in runs]
    last = tables[-1]
    before: dict[Key, list[CellResult]] = {}
    for table in tables[:-1]:
        for key, cell in table.items():
            before.setdefault(key, []).append(cell)
    lines = {key: [*before[key], last[key]] for key in last if key in before}
    usual = {key: median(cell.seconds for cell in line[:-1]) for key, line in lines.items()}
    slower = [
        (last[key], seconds)
        for key, seconds in usual.items()
        if last[key].seconds > max(_SLOWER * seconds, seconds + _NOTICEABLE)
    ]
    flaky = [
        (line[-1], [cell.outcome for cell in line]) for line in lines.values() if _changes(line) > 1
    ]
    return History(
        title(runs[-1]),
        [_step(run) for run in runs],
        changes(
            runs[-2],
            runs[-1],
            {key: line[-1] for key, line in before.items()},
            whole_before=any(not lacks(run, runs[-1]) for run in runs[:-1]),
        ),
        sorted(slower, key=lambda pair: pair[1] - pair[0].seconds)[:LISTED],
        flaky[:LISTED],
        notes,
    )


def _called(count: int) -> list[str]:
    """What the runs are called: the last ones A and B, and others by their number."""
    return [*(f"run {number}" for number in range(1, count - 1)), "A", "B"]


def _notes(run: Results, name: str) -> Iterator[str]:
    """What is to be known of a run before its cells are compared."""
    if run.cut:
        yield f"{name} was cut: it did not come to its end, and has no result of some cells"
    shard = str(run.header.get("shard", "1/1"))
    given = shard.split(", ")
    count = int(given[0].partition("/")[2] or 1)
    if len(given) < count:
        yield f"{name} has {len(given)} of {count} shards: {shard}"
    began = run.header.get("parts", {})
    if len(set(began.values())) > 1:
        when = ", ".join(f"{part} at {at or 'no time'}" for part, at in began.items())
        yield f"{name} is joined of shards that began at different times: {when}"
    if several := twice(run):
        yield (
            f"{len(several)} cells stand in {name} more than once, and the worst outcome counts: "
            f"{', '.join(several[:_NAMED])}{', …' * (len(several) > _NAMED)}"
        )


def _changes(line: Sequence[CellResult]) -> int:
    """How often a cell began to fail or ceased to."""
    return sum(fails(one) != fails(other) for one, other in pairwise(line))


def _step(run: Results) -> Step:
    counts = run.counts()
    return Step(
        began=str(run.header.get("began", run.header.get("date", ""))),
        counts=[(outcome, counts[outcome]) for outcome in OUTCOMES if counts[outcome]],
        failing=sum(counts[outcome] for outcome in FAILURES),
        cells=len(run.cells),
        seconds=sum(cell.seconds for cell in run.cells),
    )


def _short(cell: CellResult) -> CellResult:
    return replace(cell, why=cell.why if len(cell.why) <= 160 else cell.why[:159] + "…")
