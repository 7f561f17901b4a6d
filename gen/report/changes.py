"""Compare two runs, cell by cell. They may be of two targets, or of two versions of torch.

found = changes(before, now)
found.of("broken")      # cells that fail now, and did not before
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
"""The kinds of changes of a cell, the most important first."""
DETAILS = ("failing", "values", "samples", "entries")
"""The attributes of a cell that a report compares, besides its outcome, reason and refusal."""
Key = tuple[str, str]  # check and id of a cell
Lacking = tuple[str, str, Sequence[CellResult]]  # ("A", "was cut", the cells)


@dataclass(frozen=True)
class Change:
    """A cell of both runs that changed. ``kind`` is one of :data:`KINDS`."""

    kind: str
    before: CellResult
    now: CellResult


@dataclass(frozen=True)
class Changes:
    """The differences between two runs."""

    headers: tuple[Mapping[str, Any], Mapping[str, Any]]
    common: int  # how many cells both runs have
    cells: Sequence[Change]
    # Ops of one run alone, with the numbers of their cells.
    new_ops: Mapping[str, int]
    vanished_ops: Mapping[str, int]
    # Cells of one run alone, if both runs have their op.
    new_cells: Sequence[CellResult]
    vanished_cells: Sequence[CellResult]
    # Cells of one run alone that fail, of any op.
    new_failing: Sequence[CellResult]
    vanished_failing: Sequence[CellResult]
    # Cells of which a run may have no result, for example because it was cut. They are neither
    # new nor vanished.
    without_result: Sequence[Lacking]

    def of(self, kind: str) -> list[Change]:
        """Return the changes of one of :data:`KINDS`. Empty if there are none."""
        return [change for change in self.cells if change.kind == kind]

    @property
    def by_kind(self) -> dict[str, list[Change]]:
        """Map each kind that happened to its changes."""
        changes_by_kind = {kind: self.of(kind) for kind in KINDS}
        return {kind: some for kind, some in changes_by_kind.items() if some}

    @property
    def alone(self) -> bool:
        """Return whether one of the runs has cells that the other one does not have."""
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
        """Return whether a cell fails now that did not fail before, or did not exist."""
        return bool(self.of("broken") or self.new_failing)

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """Return (name, before, now) of each setting that differs between the headers."""
        old, new = self.headers
        settings = []
        for name in {**old, **new}:
            before, now = str(old.get(name, "")), str(new.get(name, ""))
            if before != now and name not in _NO_SETTINGS:
                settings.append((name, before, now))
        return settings


# These differ between any two runs, or do not influence how the cells ran.
_NO_SETTINGS = ("date", "began", "event", "rules", "parts")


def fails(cell: CellResult) -> bool:
    """Return whether the outcome of a cell is one of :data:`FAILURES`."""
    return cell.outcome in FAILURES


def by_key(run: Results) -> dict[Key, CellResult]:
    """Map check and id to the cell. If a cell has two results, the worse one counts."""
    cells: dict[Key, CellResult] = {}
    for cell in run.cells:
        key = (cell.check, cell.id)
        earlier = cells.get(key, cell)
        if _badness(cell) >= _badness(earlier):
            cells[key] = cell
    return cells


def _badness(cell: CellResult) -> int:
    return OUTCOMES.index(cell.outcome)


def once(run: Results) -> Results:
    """Return the run with one result per cell, as :func:`by_key` chooses it."""
    return replace(run, cells=tuple(by_key(run).values()))


def twice(run: Results) -> list[str]:
    """Return the nodes of cells that have several results in a run."""
    counts = Counter(cell.node for cell in run.cells)
    return [node for node, count in counts.items() if count > 1]


def lacks(run: Results, other: Results) -> str:
    """Return why a run may lack the result of a cell. Empty if it has all results.

    An option that narrows `other` likewise is no reason.
    """
    if run.cut:
        return "was cut"
    shard = str(run.header.get("shard", "1/1"))
    # A run that was joined from shards names each one: "1/4, 2/4".
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
    """Compare a run with an older one.

    ``before``: the last result of each cell, if these come from several older runs.
    ``whole_before``: whether one of those runs has all cells.

    The result lists each cell of both runs that changed, under the first of :data:`KINDS` that
    fits it. A cell of one run alone is new or vanished if the other run is complete. Otherwise it
    is listed as without a result.
    """
    cells_before = by_key(old) if before is None else before
    cells_now = by_key(new)
    common_keys = sorted(cells_before.keys() & cells_now.keys())
    pairs = [(cells_before[key], cells_now[key]) for key in common_keys]
    why_lacking = "" if whole_before else lacks(old, new)
    added = _Unmatched.of(cells_now, cells_before, why_lacking)
    gone = _Unmatched.of(cells_before, cells_now, lacks(new, old))
    return Changes(
        headers=(old.header, new.header),
        common=len(common_keys),
        cells=list(_compare(pairs)),
        new_ops=added.ops(),
        vanished_ops=gone.ops(),
        new_cells=added.cells_of_common_ops(),
        vanished_cells=gone.cells_of_common_ops(),
        # A failure counts as new even if the older run may only lack its result.
        new_failing=list(filter(fails, added.cells)),
        vanished_failing=list(filter(fails, gone.comparable)),
        without_result=[*added.without_result("A"), *gone.without_result("B")],
    )


@dataclass(frozen=True)
class _Unmatched:
    """The cells that only one of the runs has."""

    cells: list[CellResult]
    why: str  # why the other run may lack their results; empty if it is complete
    other_ops: frozenset[str]  # the ops of the other run

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
        """Return the cells that are new or vanished: none if the other run is not complete."""
        return [] if self.why else self.cells

    def without_result(self, other_run: str) -> list[Lacking]:
        """Return one entry with the cells whose result the other run may lack.

        Empty if the other run is complete.
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
    """Yield a change for each cell of both runs that changed."""
    for before, now in pairs:
        kind = _kind(before, now)
        if kind:
            yield Change(kind, before, now)


def _kind(before: CellResult, now: CellResult) -> str:
    """Return the kind of a cell's change. Empty if it did not change."""
    # The order is that of KINDS: a cell is listed once, under the most important kind.
    if fails(now) != fails(before):
        return "broken" if fails(now) else "fixed"
    if fails(now) and _failure(before, now) != _failure(now, before):
        return "failures"
    if before.outcome != now.outcome:
        return "outcomes"
    return _kind_of_detail(before, now)


def _kind_of_detail(before: CellResult, now: CellResult) -> str:
    """Return the kind of change of a cell whose outcome is the same. Empty if nothing changed."""
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
    """Return the facts of a failure that a comparison is about."""
    return (cell.outcome, cell.why, cell.refusal, cell.failing, _values(cell, other))


def _values(cell: CellResult, other: CellResult) -> str | None:
    """Return the digest of a cell's values if both runs have one. Older files have none."""
    return None if other.values is None else cell.values


def _without_answer(cell: CellResult) -> tuple[str, str]:
    """Return the refusal of a cell, and the reason why it has no answer. Empty if it has one."""
    has_none = cell.outcome in ("lacking", "skipped", "xfailed")
    return cell.refusal, cell.why if has_none else ""
