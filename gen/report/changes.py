"""Compare two runs, cell by cell: of the same target, of two versions of torch, or of two targets.

found = changes(before, now)
found.of("broken")      # cells that fail, and did not
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gen.run.results import OUTCOMES, CellResult, Results

__all__ = [
    "DETAILS",
    "FAILURES",
    "KINDS",
    "Change",
    "Changes",
    "Key",
    "by_key",
    "changes",
    "fails",
    "lacks",
    "once",
    "twice",
]

FAILURES = ("vacuous", "xpassed", "failed", "error", "timed out", "crashed")
KINDS = {
    "broken": "fail, and did not",
    "fixed": "fail no more",
    "failures": "fail in another way",
    "outcomes": "have another outcome, and do not fail",
    "refusals": "are refused in another way, or no more, or since now",
    "values": "have other values, within the tolerance of the reference",
    "samples": "have another number of samples",
    "entries": "meet other known entries",
}
"""What can have happened to a cell, the most important first."""
DETAILS = ("failing", "values", "samples", "entries")
"""What else a cell says of itself, in addition to its outcome, why, and what refused it."""
Key = tuple[str, str]
Lacking = tuple[str, str, Sequence[CellResult]]


@dataclass(frozen=True)
class Change:
    """A cell of both runs. ``kind``: one of :data:`KINDS`."""

    kind: str
    before: CellResult
    now: CellResult


@dataclass(frozen=True)
class Changes:
    """What one run changed since another one.

    ``headers``: of both runs. ``common``: how many cells both have. ``new_ops`` and
    ``vanished_ops``: ops of one run alone, with the numbers of their cells. ``new_cells`` and
    ``vanished_cells``: cells of one run alone, of ops that both have. ``new_failing`` and
    ``vanished_failing``: the cells of one run alone that fail, of any op.

    ``without_result`` has ``(run, why, cells)`` for a run that has no result of some cells because
    it was cut, say: these cells are neither new nor vanished.
    """

    headers: tuple[Mapping[str, Any], Mapping[str, Any]]
    common: int
    cells: Sequence[Change]
    new_ops: Mapping[str, int]
    vanished_ops: Mapping[str, int]
    new_cells: Sequence[CellResult]
    vanished_cells: Sequence[CellResult]
    new_failing: Sequence[CellResult]
    vanished_failing: Sequence[CellResult]
    without_result: Sequence[Lacking]

    def of(self, kind: str) -> list[Change]:
        """Return the changes of one kind, of :data:`KINDS`. Empty if there are none."""
        return [change for change in self.cells if change.kind == kind]

    @property
    def by_kind(self) -> dict[str, list[Change]]:
        """Return the changes of each kind that happened."""
        changes_by_kind = {kind: self.of(kind) for kind in KINDS}
        return {kind: some for kind, some in changes_by_kind.items() if some}

    @property
    def alone(self) -> bool:
        """Return whether a run has cells that the other one has not."""
        of_one_run = (
            self.new_ops,
            self.new_cells,
            self.vanished_ops,
            self.vanished_cells,
            self.without_result,
        )
        return any(map(len, of_one_run))

    @property
    def worse(self) -> bool:
        """Return whether a cell fails that did not, or that was not there."""
        return bool(self.of("broken") or self.new_failing)

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """Return (name, before, now) of what the headers say otherwise, but for dates."""
        old, new = self.headers
        settings = []
        for name in {**old, **new}:
            before, now = str(old.get(name, "")), str(new.get(name, ""))
            if before != now and name not in _NO_SETTINGS:
                settings.append((name, before, now))
        return settings


# what differs between any two runs, or says nothing of how the cells ran
_NO_SETTINGS = ("date", "began", "event", "rules", "parts")


def fails(cell: CellResult) -> bool:
    """Return whether the outcome of a cell is one of :data:`FAILURES`."""
    return cell.outcome in FAILURES


def by_key(run: Results) -> dict[Key, CellResult]:
    """Return the cells by what they are. Of a cell that stands twice the worse outcome counts, as
    it happened.
    """
    cells: dict[Key, CellResult] = {}
    for cell in run.cells:
        key = (cell.check, cell.id)
        before = cells.get(key, cell)
        if _badness(cell) >= _badness(before):
            cells[key] = cell
    return cells


def _badness(cell: CellResult) -> int:
    return OUTCOMES.index(cell.outcome)


def once(run: Results) -> Results:
    """Return the run with each cell once."""
    return replace(run, cells=tuple(by_key(run).values()))


def twice(run: Results) -> list[str]:
    """Return the cells that stand in a run more than once."""
    counts = Counter(cell.node for cell in run.cells)
    return [node for node, count in counts.items() if count > 1]


def lacks(run: Results, other: Results) -> str:
    """Return why a run may have no result of a cell that it is of. Empty if it has all.

    What narrows `other` too is no reason.
    """
    if run.cut:
        return "was cut"
    shard = str(run.header.get("shard", "1/1"))
    # a run that is joined of shards names each: "1/4, 2/4"
    shards = shard.split(", ")
    count = int(shards[0].partition("/")[2] or 1)
    if len(shards) < count and shard != other.header.get("shard"):
        return f"has shard {shard} alone"
    narrowed = str(run.header.get("narrowed", "no"))
    if narrowed not in ("no", str(other.header.get("narrowed", "no"))):
        return f"was narrowed by {narrowed}"
    return ""


def changes(
    old: Results,
    new: Results,
    before: Mapping[Key, CellResult] | None = None,
    *,
    whole_before: bool = False,
) -> Changes:
    """Return what ``new`` changed since ``old``.

    ``before``: what each cell was the last time, if that is of several runs, and ``whole_before``
    whether one of them has all cells.

    The result has each cell of both runs that is not as before, under the first of :data:`KINDS`
    that fits it. Cells of one run alone are new or vanished if the other run is whole. Otherwise
    they are listed as without a result.
    """
    cells_before = by_key(old) if before is None else before
    now = by_key(new)
    common_keys = sorted(cells_before.keys() & now.keys())
    added = _Unmatched.of(now, cells_before, "" if whole_before else lacks(old, new))
    gone = _Unmatched.of(cells_before, now, lacks(new, old))
    return Changes(
        headers=(old.header, new.header),
        common=len(common_keys),
        cells=list(_compare((cells_before[key], now[key]) for key in common_keys)),
        new_ops=added.ops(),
        vanished_ops=gone.ops(),
        new_cells=added.cells_of_common_ops(),
        vanished_cells=gone.cells_of_common_ops(),
        # a cell that fails counts, also where the older run may have had no result of it
        new_failing=list(filter(fails, added.cells)),
        vanished_failing=list(filter(fails, gone.comparable)),
        without_result=[*added.without_result("A"), *gone.without_result("B")],
    )


@dataclass(frozen=True)
class _Unmatched:
    """The cells that one run has and the other one has not.

    ``why``: the reason why the other run may have no result of them; ``other_ops``: the ops that
    the other run has.
    """

    cells: list[CellResult]
    why: str
    other_ops: frozenset[str]

    @classmethod
    def of(
        cls, run: Mapping[Key, CellResult], other: Mapping[Key, CellResult], why: str
    ) -> _Unmatched:
        """Return the cells of a run that another one has not, sorted as reports list them."""
        cells = [cell for key, cell in run.items() if key not in other]
        cells.sort(key=lambda cell: cell.node)
        return cls(cells, why, frozenset(cell.op for cell in other.values()))

    @property
    def comparable(self) -> list[CellResult]:
        """Return the cells that are new or vanished: none if the other run is not whole."""
        return [] if self.why else self.cells

    def without_result(self, other_run: str) -> list[Lacking]:
        """Return the cells of which the other run may have no result, with its name. One entry, or
        none if the other run is whole.
        """
        if not self.why or not self.cells:
            return []
        return [(other_run, self.why, self.cells)]

    def ops(self) -> dict[str, int]:
        """Return the ops that the other run lacks, with the numbers of their cells."""
        counts = Counter(cell.op for cell in self.comparable if cell.op not in self.other_ops)
        return dict(sorted(counts.items()))

    def cells_of_common_ops(self) -> list[CellResult]:
        """Return the new or vanished cells of ops of which the other run has cells too."""
        return [cell for cell in self.comparable if cell.op in self.other_ops]


def _compare(pairs: Iterable[tuple[CellResult, CellResult]]) -> Iterator[Change]:
    """Yield what happened to cells of both runs, but for those to which nothing did."""
    for before, now in pairs:
        kind = _kind(before, now)
        if kind:
            yield Change(kind, before, now)


def _kind(before: CellResult, now: CellResult) -> str:
    """Return what happened to a cell. Empty if nothing did."""
    if fails(now) != fails(before):
        return "broken" if fails(now) else "fixed"
    # the kinds in the order of KINDS: a cell is listed once, by the worst that happened to it
    if fails(now) and _failure(before, now) != _failure(now, before):
        return "failures"
    if before.outcome != now.outcome:
        return "outcomes"
    return _kind_of_detail(before, now)


def _kind_of_detail(before: CellResult, now: CellResult) -> str:
    """Return what is different in a cell whose outcome is as before. Empty if nothing is."""
    details = {
        "refusals": (_without_answer(before), _without_answer(now)),
        "values": (_values(before, now), _values(now, before)),
        "samples": (before.samples, now.samples),
        "entries": (sorted(before.entries), sorted(now.entries)),
    }
    for kind, (detail_before, detail_now) in details.items():
        if detail_before != detail_now:
            return kind
    return ""


def _failure(cell: CellResult, other: CellResult) -> tuple[object, ...]:
    """Return how a cell fails, for a comparison."""
    return (cell.outcome, cell.why, cell.refusal, cell.failing, _values(cell, other))


def _values(cell: CellResult, other: CellResult) -> str | None:
    """Return the digest of a cell's values, if both have one: an older file has none."""
    return None if other.values is None else cell.values


def _without_answer(cell: CellResult) -> tuple[str, str]:
    """Return what refused a cell, and why it has no answer. Both are empty if it has one."""
    has_none = cell.outcome in ("lacking", "skipped", "xfailed")
    return cell.refusal, cell.why if has_none else ""
