"""What one run changed, cell by cell, since another one: of the same target, of another version of
torch, or of another target.

    found = changes(before, now)
    found.of("broken")      # cells that fail, and did not
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gen.run.results import CellResult, Results

__all__ = ["FAILURES", "KINDS", "Change", "Changes", "Key", "by_key", "changes", "fails"]

FAILURES = ("vacuous", "xpassed", "failed", "error", "timed out", "crashed")
KINDS = {
    "broken": "fail, and did not",
    "fixed": "fail no more",
    "failures": "fail in another way",
    "outcomes": "have another outcome, and do not fail",
    "refusals": "are refused in another way, or no more, or since now",
    "values": "have other values, within the tolerance of the reference",
}
"""What can have happened to a cell, the most important first."""
Key = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """A cell of both runs. ``kind``: one of :data:`KINDS`."""

    kind: str
    before: CellResult
    now: CellResult


@dataclass(frozen=True)
class Changes:
    """``headers``: of both runs. ``common``: how many cells both have. ``new_ops`` and
    ``vanished_ops``: ops of one run alone, with the numbers of their cells. ``new_cells`` and
    ``vanished_cells``: cells of one run alone, of ops that both have."""

    headers: tuple[Mapping[str, Any], Mapping[str, Any]]
    common: int
    cells: Sequence[Change]
    new_ops: Mapping[str, int]
    vanished_ops: Mapping[str, int]
    new_cells: Sequence[CellResult]
    vanished_cells: Sequence[CellResult]

    def of(self, kind: str) -> list[Change]:
        return [change for change in self.cells if change.kind == kind]

    @property
    def by_kind(self) -> dict[str, list[Change]]:
        """The changes of each kind that happened."""
        return {kind: found for kind in KINDS if (found := self.of(kind))}

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """(name, before, now) of what the headers say otherwise, but for dates."""
        old, new = self.headers
        names = [name for name in {**old, **new} if name not in ("date", "began", "event", "rules")]
        pairs = [(name, str(old.get(name, "")), str(new.get(name, ""))) for name in names]
        return [(name, before, now) for name, before, now in pairs if before != now]


def fails(cell: CellResult) -> bool:
    return cell.outcome in FAILURES


def by_key(run: Results) -> dict[Key, CellResult]:
    return {(cell.check, cell.id): cell for cell in run.cells}


def changes(old: Results, new: Results, before: Mapping[Key, CellResult] | None = None) -> Changes:
    """What ``new`` changed since ``old``. ``before``: what each cell was the last time, if that is
    of several runs."""
    known = by_key(old) if before is None else before
    now = by_key(new)
    both = known.keys() & now.keys()
    pairs = ((_kind(known[key], now[key]), known[key], now[key]) for key in sorted(both))
    added = [now[key] for key in now.keys() - both]
    gone = [known[key] for key in known.keys() - both]
    ops, old_ops = _ops(now.values()), _ops(known.values())
    return Changes(
        headers=(old.header, new.header),
        common=len(both),
        cells=[Change(kind, was, is_now) for kind, was, is_now in pairs if kind],
        new_ops={op: ops[op] for op in sorted(ops.keys() - old_ops.keys())},
        vanished_ops={op: old_ops[op] for op in sorted(old_ops.keys() - ops.keys())},
        new_cells=_sorted(cell for cell in added if cell.op in old_ops),
        vanished_cells=_sorted(cell for cell in gone if cell.op in ops),
    )


def _kind(before: CellResult, now: CellResult) -> str:
    """What happened to a cell; empty if nothing did."""
    if fails(before) != fails(now):
        return "broken" if fails(now) else "fixed"
    if fails(now):
        same = (before.outcome, before.why) == (now.outcome, now.why)
        return "" if same else "failures"
    if before.outcome != now.outcome:
        return "outcomes"
    if before.refusal != now.refusal or _refused(before) != _refused(now):
        return "refusals"
    # an older file has no digests
    differs = before.values and now.values and before.values != now.values
    return "values" if differs else ""


def _refused(cell: CellResult) -> str:
    """Why a cell without an answer has none."""
    return cell.why if cell.outcome in ("lacking", "skipped", "xfailed") else ""


def _ops(cells: Iterable[CellResult]) -> Counter[str]:
    return Counter(cell.op for cell in cells)


def _sorted(cells: Iterable[CellResult]) -> list[CellResult]:
    return sorted(cells, key=lambda cell: cell.node)
