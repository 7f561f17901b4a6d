"""Write the data of one run for the scripts of the page: its cells, as short lists of numbers.

    {"texts": ["torch.sin", "float64", …], "checks": ["vjp", …], "columns": [["Values", []], …],
     "fields": ["word", "outcome", …], "rows": [["unary", "torch.sin", {"0": [[1, 0, …]]}], …]}

A text stands once, and a cell has its index. A field that is absent in a cell and in all fields
behind it is left out of the list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import yaml

from gen.report.changes import FAILURES, by_key
from gen.run.failure_groups import FailureGroup
from gen.run.results import OUTCOMES, CellResult, Results
from gen.severity import severity_of_row

__all__ = ["GLYPHS", "Earlier", "column_groups", "grid_data", "numbered"]

GLYPHS = dict(zip(OUTCOMES, ("", "s", "–", "c", "x", "v", "!", "✗", "E", "T", "C"), strict=True))
"""What a square shows of its outcome, before the number of cells that have it."""
OTHER = "Other"
_TABLE = Path(__file__).with_name("columns.yaml")
_FIELDS = (
    *("word", "outcome", "why", "ms", "samples", "file"),
    *("history", "sample", "severity", "finding", "expected", "actual", "program"),
)
_ABSENT = -1
_PROGRAMS = 3  # of one finding: those of its other cells are much alike

# --- groups of columns ----------------------------------------------------------------------------


@cache
def _table() -> dict[str, list[str]]:
    """Return the globs of each group, in the order of the page."""
    table: dict[str, list[str]] = yaml.safe_load(_TABLE.read_text("utf-8"))
    return table


def column_groups(checks: Iterable[str]) -> dict[str, list[str]]:
    """Return the checks of each group that has one, as ``columns.yaml`` says."""
    groups: dict[str, list[str]] = {name: [] for name in (*_table(), OTHER)}
    for check in sorted(checks):
        groups[_group_of(check)].append(check)
    return {name: members for name, members in groups.items() if members}


def _group_of(check: str) -> str:
    """Return the group with the longest glob that fits a check."""
    fitting = []
    for name, globs in _table().items():
        for glob in globs:
            if fnmatchcase(check, glob):
                # of two globs with as many letters, the one without a star names the check itself
                fitting.append((len(glob.replace("*", "")), "*" not in glob, name))
    return max(fitting, default=(0, False, OTHER))[-1]


# --- earlier runs ---------------------------------------------------------------------------------


class Earlier:
    """The outcomes that cells had in earlier runs, oldest first."""

    def __init__(self, runs: Sequence[Results]) -> None:
        self._headers = [run.header for run in runs]
        self._cells = list(map(by_key, runs))

    def names(self) -> list[str]:
        """Return when each run began, and the versions in which it differs from the one before."""
        before: Mapping[str, object] = {}
        names = []
        for header in self._headers:
            changed = _versions(header).items() - _versions(before).items()
            began = str(header.get("began", header.get("date", ""))).replace("T", " ")
            names.append(" · ".join([began, *(f"{name} {text}" for name, text in sorted(changed))]))
            before = header
        return names

    def outcomes(self, cell: CellResult) -> list[str]:
        """Return the outcome of a cell in each run. Empty for a run that has no result of it."""
        outcomes = []
        for cells in self._cells:
            earlier = cells.get((cell.check, cell.id))
            outcomes.append("" if earlier is None else earlier.outcome)
        return outcomes

    def letters(self, cell: CellResult) -> str:
        """Return the outcomes of a cell as a letter each: "a" for the best one, "-" for none."""
        letters = ""
        for outcome in self.outcomes(cell):
            letters += chr(ord("a") + OUTCOMES.index(outcome)) if outcome else "-"
        return letters


def _versions(header: Mapping[str, object]) -> dict[str, str]:
    names = ("torch", "numpy", "python", "package")
    return {name: str(header[name]) for name in names if header.get(name)}


# --- the data -------------------------------------------------------------------------------------


def _key_of(cell: CellResult) -> tuple[str, str, str]:
    """Return what tells a cell from the others of a run."""
    return cell.check, cell.id, cell.node


class _Texts:
    """Texts by their numbers. Each is stored once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text, and `_ABSENT` for an empty one."""
        if not text:
            return _ABSENT
        return self._numbers.setdefault(text, len(self._numbers))

    def all(self) -> list[str]:
        return list(self._numbers)


def grid_data(
    run: Results,
    findings: Mapping[tuple[str, str, str], int],
    earlier: Earlier,
    places: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the data of a run as JSON that may stand in a script element.

    `findings`: the number of the finding of each cell that has one. `places`: the lines of the
    matrix where ops and checks stand.
    """
    ops = {cell.op for cell in run.cells}
    groups = column_groups({cell.check for cell in run.cells})
    checks = [check for members in groups.values() for check in members]
    numbers = {check: number for number, check in enumerate(checks)}
    texts = _Texts()
    encoder = _Encoder(texts, findings, earlier)
    # The rows come before the texts, which grow with each cell that is encoded.
    rows = []
    for family, op, row in _rows(run.cells):
        cells_by_check = {numbers[check]: list(map(encoder.cell, cells)) for check, cells in row}
        rows.append([family, op, cells_by_check])
    data = {
        "checks": checks,
        "columns": [[name, [numbers[check] for check in some]] for name, some in groups.items()],
        "fields": _FIELDS,
        "outcomes": OUTCOMES,
        "glyphs": list(GLYPHS.values()),
        "failing": [outcome in FAILURES for outcome in OUTCOMES],
        "rows": rows,
        "texts": texts.all(),
        "earlier": earlier.names(),
        "lines": {
            "ops": _some(places.get("ops", {}), ops),
            "checks": _some(places.get("checks", {}), numbers),
        },
    }
    # Inside <script>, `<` could end the block, so JSON's escape is used.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _some(lines: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: lines[name] for name in sorted(names) if name in lines}


def _rows(
    cells: Sequence[CellResult],
) -> list[tuple[str, str, list[tuple[str, list[CellResult]]]]]:
    """Return ``(family, op, [(check, cells), …])`` for each row of the grid, in order."""
    grouped: dict[tuple[str, str], dict[str, list[CellResult]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.id):
        row = grouped.setdefault((cell.family, cell.op), {})
        row.setdefault(cell.check, []).append(cell)
    return [(family, op, list(grouped[family, op].items())) for family, op in sorted(grouped)]


class _Encoder:
    """Turn cells into lists of numbers, in the order of `_FIELDS`."""

    def __init__(
        self, texts: _Texts, findings: Mapping[tuple[str, str, str], int], earlier: Earlier
    ) -> None:
        self._texts = texts
        self._findings = findings
        self._earlier = earlier
        self._programs: dict[int, int] = {}  # how many of a finding the page has

    def cell(self, cell: CellResult) -> list[int]:
        """Return the numbers of a cell, without the absent ones at the end."""
        number = self._texts.number
        severity = severity_of_row(cell.outcome, cell.severity)
        finding = self._findings.get(_key_of(cell), _ABSENT)
        values = [
            number("-".join((cell.dtype, *cell.axes.values()))),
            OUTCOMES.index(cell.outcome),
            number(cell.why),
            round(1000 * cell.seconds),
            cell.samples,
            number(cell.node.partition("::")[0]),
            number(self._earlier.letters(cell)),
            _ABSENT if cell.failing is None else cell.failing,
            number("" if severity is None else severity.word),
            finding,
            number(cell.expected),
            number(cell.actual),
            self._program(cell, finding),
        ]
        # there is always an outcome, so this ends
        while values[-1] == _ABSENT:
            values.pop()
        return values

    def _program(self, cell: CellResult, finding: int) -> int:
        """Return the number of a cell's program, if it is among the first of its finding."""
        if not cell.program:
            return _ABSENT
        self._programs[finding] = self._programs.get(finding, 0) + 1
        if self._programs[finding] > _PROGRAMS:
            return _ABSENT
        return self._texts.number(cell.program)


def numbered(findings: Sequence[FailureGroup]) -> dict[tuple[str, str, str], int]:
    """Return the number of the finding of each cell that failed."""
    numbers: dict[tuple[str, str, str], int] = {}
    for number, finding in enumerate(findings):
        numbers.update(dict.fromkeys(map(_key_of, finding.cells), number))
    return numbers
