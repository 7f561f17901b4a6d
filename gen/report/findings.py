"""Say what the page shows of a finding: one cause, with all cells that fail by it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby, takewhile
from typing import Any
from urllib.parse import quote

from gen.report.changes import FAILURES
from gen.report.exports import command
from gen.report.grid import Earlier
from gen.run.failure_groups import FailureGroup
from gen.run.results import CellResult
from gen.severity import Severity

__all__ = ["Finding", "findings_by_severity"]

_CELLS = 30  # of a finding that are named; the grid has all


@dataclass(frozen=True)
class Finding:
    """A finding as the page shows it."""

    # Its place among all findings of the run.
    number: int
    # The end of its address on the page, which is the same in every run.
    key: str
    severity: Severity
    outcome: str
    op: str
    # the message of the failure
    why: str
    # the line of user code that raised it
    frame: str
    # Node and address of the first cells.
    cells: Sequence[tuple[str, str]]
    # How many cells follow.
    more: int
    # The cell with the shortest program. The page shows its sides, program and history.
    example: CellResult
    # how long the cell has failed, in words
    since: str
    # Run and outcome of the example in earlier runs, oldest first.
    history: Sequence[tuple[str, str]]
    # the command that runs the cell again
    command: str
    # a stand-alone program that shows the failure
    script: str
    lines: str

    @property
    def count(self) -> int:
        return len(self.cells) + self.more


def findings_by_severity(
    view: str,
    groups: Sequence[FailureGroup],
    header: Mapping[str, Any],
    earlier: Earlier,
    places: Mapping[str, Mapping[str, str]],
) -> list[tuple[Severity, list[Finding]]]:
    """Return the findings of each severity, the most severe first.

    `view`: the key of the run on the page. `groups` are in the order of
    :func:`gen.run.failure_groups.group_failures`.
    """
    findings = [
        _finding(view, number, group, header, earlier, places)
        for number, group in enumerate(groups)
    ]
    # they are sorted by severity already, as groupby needs them
    by_severity = groupby(findings, key=lambda finding: finding.severity)
    return [(severity, list(some)) for severity, some in by_severity]


def _finding(
    view: str,
    number: int,
    group: FailureGroup,
    header: Mapping[str, Any],
    earlier: Earlier,
    places: Mapping[str, Mapping[str, str]],
) -> Finding:
    """Return what the page says of a group of cells that fail for one cause."""
    cells = sorted(group.cells, key=lambda cell: cell.node)
    # the cell with the shortest program, or any if none has one
    example = min(cells, key=lambda cell: (not cell.program, len(cell.program)))
    history = list(zip(earlier.names(), earlier.outcomes(example), strict=True))
    return Finding(
        number=number,
        key=_key(group),
        severity=group.severity,
        outcome=group.outcome,
        op=group.op,
        why=example.why,
        frame=group.frame,
        cells=[(cell.node, _address(view, cell)) for cell in cells[:_CELLS]],
        more=max(0, len(cells) - _CELLS),
        example=example,
        since=_since([(name, outcome) for name, outcome in history if outcome]),
        history=history,
        command=command(example, header),
        script=_script(example, header),
        lines=_lines(example, places),
    )


def _key(group: FailureGroup) -> str:
    """Return a name of the cause that does not change from run to run."""
    # A cause is an error without its numbers, so it stays the same when those change.
    first = group.cells[0]
    parts = (group.severity.word, group.outcome, group.op, first.cause or first.why, group.frame)
    return blake2b("\0".join(parts).encode(), digest_size=5).hexdigest()


def _address(view: str, cell: CellResult) -> str:
    """Return the fragment of a cell's square, as the scripts of the page read it."""
    return "#" + "/".join(quote(part, safe="") for part in (view, cell.op, cell.check))


def _since(history: Sequence[tuple[str, str]]) -> str:
    """Say how long a cell has failed, by its earlier outcomes. Empty if there are none."""
    if not history:
        return ""
    latest_first = reversed(history)
    failing = list(takewhile(lambda run: run[1] in FAILURES, latest_first))
    if not failing:
        return "new in this run"
    if len(failing) == len(history):
        return f"in all {len(history) + 1} runs"
    return f"since {failing[-1][0].partition(' · ')[0]}"


def _script(cell: CellResult, header: Mapping[str, Any]) -> str:
    """Return the command that writes the program of a cell."""
    words = ["python -m gen script", shlex.quote(cell.node.rpartition("/")[2])]
    words += ["--target", shlex.quote(header["target"])]
    if cell.failing is not None:
        words += ["--sample", str(cell.failing)]
    return " ".join(words)


def _lines(cell: CellResult, places: Mapping[str, Mapping[str, str]]) -> str:
    """Return where the op and the check of a cell stand in the matrix, as far as it is known."""
    found = {
        "op": places.get("ops", {}).get(cell.op),
        "check": places.get("checks", {}).get(cell.check),
    }
    return " · ".join(f"{what}: {line}" for what, line in found.items() if line)
