"""Draw faults of transforms, and try each on the cells of its op."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import yaml

from gen.audit.generated_modules import Check, run_cell
from gen.audit.kinds import KINDS
from gen.audit.planted import ANSWERS, WHERE, Planted
from gen.audit.reach import take_turns
from gen.checks.tables import Cell
from gen.targets.protocol import Target

__all__ = ["Campaign", "Fault", "Finding", "Survivors"]


@dataclass(frozen=True)
class Fault:
    """A kind of corruption of one transform's results, while one op is tested."""

    op: str
    # the transform whose results are corrupted
    where: str
    kind: str

    def __str__(self) -> str:
        return f"{self.op} {self.where} {self.kind}"


class AnyFault(Protocol):
    """A :class:`Fault` or a :class:`gen.audit.rule_faults.RuleFault`."""

    @property
    def where(self) -> str: ...

    @property
    def kind(self) -> str: ...


F = TypeVar("F", bound=AnyFault, covariant=True)


@dataclass(frozen=True)
class Finding(Generic[F]):
    """The result for one fault."""

    fault: F
    # whether the fault changed anything; otherwise it proves nothing, and another is drawn
    applied: bool
    # the cell that failed by the fault; None if the fault survived
    caught: str | None = None
    # the failure of that cell, or why the fault was not applied
    why: str = ""
    # the number of cells that were tried
    cells: int = 0

    def line(self) -> str:
        """Return the finding as a line of the report."""
        if not self.applied:
            return f"{self.fault}: redrawn, {self.why}"
        if self.caught:
            return f"{self.fault}: caught by {self.caught}"
        return f"{self.fault}: SURVIVED {self.cells} cells"


@dataclass(frozen=True)
class Campaign:
    """Try faults in a target, drawn over the ops of some checks."""

    # the target into which faults are planted
    target: Target
    # the checks whose cells may catch a fault; only cells of its op are tried
    checks: list[Check]
    device: str
    # the tier of the matrix whose cells are tried
    tier: str
    # the seed by which faults are drawn
    seed: int
    # whether a cell passes without a fault, by file, check and id
    _honest: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def findings(self, count: int) -> Iterator[Finding[Fault]]:
        """Yield findings until `count` faults changed a value, or no fault is left.

        The findings include the faults that changed none.
        """
        applied = 0
        for fault in self._draw():
            if applied == count:
                return
            finding = self.try_fault(fault)
            applied += finding.applied
            yield finding

    def _draw(self) -> Iterator[Fault]:
        """Yield faults in turns over all places and kinds, so that a short run has some of each.
        The order of ops is drawn.
        """
        dice = random.Random(self.seed)
        pools: list[list[Fault]] = []
        for where in WHERE:
            for kind in KINDS:
                ops = sorted(op for op in self._cells if self._cells_that_reach(op, where, kind))
                dice.shuffle(ops)
                pools.append([Fault(op, where, kind) for op in ops])
        # the pools too, or a short run would have the first place alone
        dice.shuffle(pools)
        yield from take_turns(pools)

    @cached_property
    def _cells(self) -> dict[str, list[tuple[Check, Cell]]]:
        cells_of_op: dict[str, list[tuple[Check, Cell]]] = {}
        for check in self.checks:
            for cell in check.cells.at(self.tier):
                cells_of_op.setdefault(cell.op, []).append((check, cell))
        return cells_of_op

    def _cells_that_reach(self, op: str, where: str, kind: str) -> list[tuple[Check, Cell]]:
        """Return the cells of an op that run the transform and have a dtype in which the kind
        shows.
        """
        return [
            (check, cell)
            for check, cell in self._cells[op]
            if _runs(where, check, cell) and _may_change(kind, cell)
        ]

    def try_fault(self, fault: Fault) -> Finding[Fault]:
        """Run the cells of the op that reach the fault, short pipelines first, until one catches
        it.
        """
        cells = self._cells_that_reach(fault.op, fault.where, fault.kind)
        cells.sort(key=lambda pair: (len(pair[0].stages), pair[0].name, pair[1].id))
        changed = False
        for tried, (check, cell) in enumerate(cells, 1):
            planted = Planted(self.target, fault.where, fault.kind)
            verdict = run_cell(planted, check, cell, self.device)
            if planted.broken is not None:
                return Finding(
                    fault,
                    False,
                    why=f"the corruption itself raised {type(planted.broken).__name__}",
                    cells=tried,
                )
            # a cell that did not run, or fails without the fault as well, says nothing of it
            did_not_run = verdict.outcome in ("skipped", "lacking", "not covered")
            if did_not_run or (verdict.failed and not self._passes(check, cell)):
                continue
            changed |= planted.differed
            if verdict.failed:
                # An exception before any comparison shows a fault too, such as a result
                # of another shape.
                return Finding(fault, True, f"{check.name}[{cell.id}]", verdict.why, tried)
        if not cells:
            return Finding(fault, False, why="no cell reaches it")
        why = "" if changed else "it changed no value"
        return Finding(fault, changed, why=why, cells=len(cells))

    def _passes(self, check: Check, cell: Cell) -> bool:
        """Return whether the cell passes on the target without faults. Only then is its failure a
        catch.
        """
        key = (check.file, check.name, cell.id)
        if key not in self._honest:
            self._honest[key] = run_cell(self.target, check, cell, self.device).outcome == "passed"
        return self._honest[key]


def _runs(where: str, check: Check, cell: Cell) -> bool:
    """Return whether the cell runs the transform in which the fault sits."""
    if WHERE[where] not in check.stages:
        return False
    of = cell.axes.of
    if where in ANSWERS:
        return of == where
    # a cell that asks for an answer does not call `per_sample` itself, see `Planted`
    return where != "per_sample" or of is None


def _may_change(kind: str, cell: Cell) -> bool:
    """Return whether the fault can change a value of this dtype by more than the dtype's
    tolerance.
    """
    if kind == "conjugate":
        return cell.dtype.startswith("complex")
    # a factor near 1 is within the tolerance of narrower dtypes
    if kind == "factor":
        return cell.dtype in ("float64", "complex128")
    return cell.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True)
class Survivors:
    """Reasons, written by a person, why the matrix cannot catch a fault: `{fault: "glob op where
    kind", reason: …}`.
    """

    rows: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: Path) -> Survivors:
        """Read a file of reasons. Without the file there are none. Raises ValueError for an entry
        without a reason.
        """
        if not path.exists():
            return cls(())
        data = yaml.safe_load(path.read_text("utf-8")) or []
        rows = []
        for number, row in enumerate(data, 1):
            has_keys = isinstance(row, Mapping) and set(row) == {"fault", "reason"}
            if not has_keys or not str(row["reason"] or "").strip():
                raise ValueError(
                    f"{path}: entry {number} is not {{fault: …, reason: …}} with both filled in"
                )
            rows.append((str(row["fault"]), str(row["reason"])))
        return cls(tuple(rows))

    def reason(self, finding: Finding[AnyFault]) -> str | None:
        """Return why the matrix cannot catch the fault. None if no reason is written."""
        return next(
            (reason for pattern, reason in self.rows if fnmatchcase(str(finding.fault), pattern)),
            None,
        )
