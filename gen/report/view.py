"""Draw results as one HTML page, which works from disk without a network.

The page is a table that is readable without scripts. Below it another table shows which rules of
the target the cells have run, if the run noted them. A compact JSON block has the details of each
cell, for the panel that opens when a cell is selected.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jinja2

from gen.report.changes import FAILURES, KINDS
from gen.report.runs import LISTED, History, side_by_side, title
from gen.run.failure_groups import FailureGroup, group_failures
from gen.run.results import OUTCOMES, CellResult, Results
from gen.severity import Severity

# --- rules that the cells have run ----------------------------------------------------------------
#
# A run notes them with ``--rules``.


@dataclass(frozen=True)
class RulesTable:
    """The rules of the target of one run, which noted them (``--rules``).

    `parts` has (part, rules, rules that a cell ran) for each part of a record. `unrun` has (part,
    rules) that no cell ran, and `cells` (rule, cells that ran it), fewest first.
    """

    title: str
    parts: Sequence[tuple[str, int, int]]
    unrun: Sequence[tuple[str, Sequence[str]]]
    cells: Sequence[tuple[str, int]]


def rules_table(run: Results) -> RulesTable | None:
    """Return the rules of `run`. None if it has not noted them."""
    names = run.header.get("rules")
    if not isinstance(names, list):
        return None
    counts = Counter(chain.from_iterable(cell.rules for cell in run.cells))
    by_part: dict[str, list[str]] = {}
    for name in names:
        by_part.setdefault(_part(name), []).append(name)
    parts = []
    unrun = []
    for part, members in sorted(by_part.items()):
        missed = [name for name in members if not counts[name]]
        parts.append((part, len(members), len(members) - len(missed)))
        if missed:
            unrun.append((part, missed))
    cells = [(name, counts[name]) for name in names if counts[name]]
    return RulesTable(title(run), parts, unrun, sorted(cells, key=lambda pair: (pair[1], pair[0])))


def _part(name: str) -> str:
    """Return the part of a rule's name, such as vjp: its second word."""
    return name.split()[1] if " " in name else name


# --- the page -------------------------------------------------------------------------------------

__all__ = ["GLYPHS", "MEANINGS", "RulesTable", "View", "page", "rules_table"]

GLYPHS = dict(zip(OUTCOMES, ("", "s", "–", "c", "x", "v", "!", "✗", "E", "T", "C"), strict=True))
MEANINGS = {
    "passed": "equal to the reference",
    "skipped": "left out, for a stated reason",
    "lacking": "the target does not offer the transform, or the meta device the values",
    "not covered": "equal to the reference, but the device left an op to the CPU",
    "xfailed": "failed exactly as an entry says",
    "vacuous": "nothing was proved: counts as a failure",
    "xpassed": "an entry that did not happen: counts as a failure",
    "failed": "differs, or raised",
    "error": "could not be run",
    "timed out": "took longer than its limit, and its process was ended",
    "crashed": "its process died of a signal, or ended",
}
_MANY = 60  # ops above which families are closed at first: what is not shown need not be laid out


@dataclass(frozen=True)
class Square:
    """A cell of the grid: the worst outcome, the text in it, and the text for screen readers."""

    outcome: str
    text: str
    place: str = ""


@dataclass(frozen=True)
class Line:
    """A row of the grid, for an op or for a whole family."""

    name: str
    squares: tuple[Square | None, ...]


@dataclass(frozen=True)
class Group:
    """A family: its summary row and the rows of its ops."""

    head: Line
    lines: tuple[Line, ...]
    worst: str


@dataclass(frozen=True)
class Share:
    """The time of the cells of a family or of a check."""

    name: str
    cells: int
    seconds: float
    slowest: float


@dataclass(frozen=True)
class View:
    """The data of one run for the template."""

    key: str
    title: str
    settings: Mapping[str, Any]
    counts: Sequence[tuple[str, int]]
    complete: bool
    wall: float | None
    mean: float
    checks: tuple[str, ...]
    groups: tuple[Group, ...]
    failures: Sequence[tuple[Severity, Sequence[FailureGroup]]]
    reasons: Sequence[tuple[str, int, int, str, str]]
    skipped: Sequence[tuple[str, int]]
    lacking: Sequence[tuple[str, str, int]]
    slowest: Sequence[CellResult]
    shares: Sequence[tuple[str, Sequence[Share]]]
    shut: bool
    never: Sequence[str]
    data: str


def page(
    runs: Sequence[Results],
    coverage: Mapping[str, Mapping[str, Any]],
    others: Sequence[Results] = (),
    *,
    past: History | None = None,
    places: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Return the whole page as text. It shows only the loops of the results in `others`.

    `places` has the lines of the matrix where ops and checks stand, `past` what changed since
    earlier runs.
    """
    views = [_view(f"run{number}", result, places or {}) for number, result in enumerate(runs)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gen", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # the class of an outcome in the style sheet
    environment.filters["style"] = lambda outcome: outcome.replace(" ", "-")
    return environment.get_template("report.html.j2").render(
        views=views,
        coverage=coverage,
        loops=_loops([*runs, *others]),
        rules=[table for table in map(rules_table, runs) if table is not None],
        differences=side_by_side(runs) if len(runs) > 1 else None,
        past=past,
        kinds=KINDS,
        glyphs=GLYPHS,
        meanings=MEANINGS,
        listed=LISTED,
    )


def _view(key: str, result: Results, places: Mapping[str, Mapping[str, str]] | None = None) -> View:
    """Return the data of one run for the template."""
    cells = result.cells
    checks = tuple(sorted({cell.check for cell in cells}))
    data = _Data(checks, places or {}, {cell.op for cell in cells})
    groups = _groups(cells, checks, data)
    counts = result.counts()
    header = result.header
    return View(
        key=key,
        title=title(result),
        settings={name: value for name, value in header.items() if name not in ("event", "rules")},
        counts=[(outcome, counts[outcome]) for outcome in reversed(OUTCOMES) if counts[outcome]],
        complete=bool(result.end.get("complete")),
        wall=result.end.get("wall_seconds"),
        mean=_mean_milliseconds(cells),
        checks=checks,
        groups=groups,
        failures=_failures(cells),
        reasons=_reasons(cells),
        skipped=_skipped(cells),
        lacking=_lacking(cells),
        slowest=sorted(cells, key=lambda cell: -cell.seconds)[:25],
        shares=[("family", _shares(cells, "family")), ("check", _shares(cells, "check"))],
        shut=sum(len(group.lines) for group in groups) > _MANY,
        never=list(result.end.get("never_happened", ())),
        data=data.text(),
    )


def _mean_milliseconds(cells: Sequence[CellResult]) -> float:
    if not cells:
        return 0.0
    return 1000 * sum(cell.seconds for cell in cells) / len(cells)


def _skipped(cells: Sequence[CellResult]) -> list[tuple[str, int]]:
    """Count the cells that were skipped, by reason, the most frequent first."""
    return Counter(cell.why for cell in cells if cell.outcome == "skipped").most_common()


def _lacking(cells: Sequence[CellResult]) -> list[tuple[str, str, int]]:
    """Count the cells that the target lacks, by check and reason."""
    counts = Counter((cell.check, cell.why) for cell in cells if cell.outcome == "lacking")
    return [(check, why, count) for (check, why), count in sorted(counts.items())]


def _shares(cells: Sequence[CellResult], key: str) -> list[Share]:
    """Return the time by family or check, most first."""
    grouped: defaultdict[str, list[float]] = defaultdict(list)
    for cell in cells:
        grouped[getattr(cell, key)].append(cell.seconds)
    shares = [
        Share(name, len(seconds), sum(seconds), max(seconds)) for name, seconds in grouped.items()
    ]
    return sorted(shares, key=lambda share: -share.seconds)


_Row = dict[str, list[CellResult]]
"""The cells of one op or family, by check."""


def _groups(cells: Sequence[CellResult], checks: Sequence[str], data: _Data) -> tuple[Group, ...]:
    """Return the rows of the grid by family. Their cells are added to `data`."""
    grouped: dict[str, dict[str, _Row]] = {}
    for cell in cells:
        row = grouped.setdefault(cell.family, {}).setdefault(cell.op, {})
        row.setdefault(cell.check, []).append(cell)
    return tuple(_group(family, grouped[family], checks, data) for family in sorted(grouped))


def _group(family: str, rows: Mapping[str, _Row], checks: Sequence[str], data: _Data) -> Group:
    """Return a family with the rows of its ops."""
    lines = []
    for op in sorted(rows):
        squares = []
        for check in checks:
            cells = rows[op].get(check, ())
            squares.append(_square(cells, data.add(op, cells)))
        lines.append(Line(op, tuple(squares)))
    members: _Row = {check: [] for check in checks}
    for row in rows.values():
        for check, cells in row.items():
            members[check] += cells
    head = Line(family, tuple(map(_summary, members.values())))
    return Group(head, tuple(lines), _worst(chain.from_iterable(members.values())))


def _worst(cells: Iterable[CellResult]) -> str:
    return max((cell.outcome for cell in cells), key=OUTCOMES.index, default="passed")


def _square(cells: Sequence[CellResult], place: str) -> Square | None:
    """Return the worst outcome of cells, and how many have it. None without cells."""
    if not cells:
        return None
    outcome = _worst(cells)
    count = sum(cell.outcome == outcome for cell in cells)
    return Square(outcome, f"{GLYPHS[outcome]}{count}", place)


def _summary(cells: Sequence[CellResult]) -> Square | None:
    """Return a family's square.

    It shows any failure, or else the most frequent outcome, so one exception does not colour a
    hundred passes.
    """
    if not cells or _worst(cells) in FAILURES:
        return _square(cells, "")
    outcome, count = Counter(cell.outcome for cell in cells).most_common(1)[0]
    return Square(outcome, f"{GLYPHS[outcome]}{count}")


class _Data:
    """Collect the JSON block. It has each text once, and cells as short lists of indices into the
    texts.
    """

    def __init__(
        self, checks: Sequence[str], lines: Mapping[str, Mapping[str, str]], ops: set[str]
    ) -> None:
        self._texts: dict[str, int] = {}
        self._places: dict[str, list[list[int]]] = {}
        self._checks = checks
        of_ops, of_checks = lines.get("ops", {}), lines.get("checks", {})
        self._lines = {
            "ops": {op: of_ops[op] for op in sorted(ops) if op in of_ops},
            "checks": {check: of_checks[check] for check in checks if check in of_checks},
        }

    def add(self, op: str, cells: Sequence[CellResult]) -> str:
        """Add the cells of a square. Return the place under which the page looks them up."""
        if not cells:
            return ""
        place = f"{self._text(op)}.{self._checks.index(cells[0].check)}"
        in_order = sorted(cells, key=lambda cell: cell.id)
        self._places[place] = list(map(self._numbers, in_order))
        return place

    def _numbers(self, cell: CellResult) -> list[int]:
        """Return a cell as the script of the page reads it."""
        numbers = [
            self._text("-".join((cell.dtype, *cell.axes.values()))),
            OUTCOMES.index(cell.outcome),
            self._text(cell.why),
            round(1000 * cell.seconds),
            cell.samples,
            self._text(cell.node.partition("::")[0]),
        ]
        if cell.failing is not None:
            numbers.append(cell.failing)
        return numbers

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def text(self) -> str:
        """Return the block as text."""
        data = {
            "texts": list(self._texts),
            "outcomes": OUTCOMES,
            "places": self._places,
            "lines": self._lines,
        }
        # Inside <script>, `<` could end the block, so JSON's escape is used.
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _failures(cells: Sequence[CellResult]) -> list[tuple[Severity, list[FailureGroup]]]:
    """Return the findings of each severity, the most severe first."""
    grouped: dict[Severity, list[FailureGroup]] = {}
    for finding in group_failures(cells):
        grouped.setdefault(finding.severity, []).append(finding)
    return list(grouped.items())


def _reasons(cells: Sequence[CellResult]) -> list[tuple[str, int, int, str, str]]:
    """Return (reason, cells, ops, checks, entries) of the expected failures, most frequent
    first.
    """
    grouped: defaultdict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.outcome == "xfailed":
            grouped[cell.why].append(cell)
    reasons = []
    for why, some in sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0])):
        ops = {cell.op for cell in some}
        checks = {cell.check for cell in some}
        entries = set(chain.from_iterable(cell.entries for cell in some))
        reasons.append((why, len(some), len(ops), _list(checks), _list(entries)))
    return reasons


def _list(words: set[str], shown: int = 6) -> str:
    rest = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(sorted(words)[:shown]) + rest


@dataclass(frozen=True)
class Loops:
    """The ops that each target's vmap ran one element at a time.

    A line is an op, with (times, cells) or None for each run.
    """

    names: Sequence[str]
    ops: Sequence[int]
    lines: Sequence[tuple[str, Sequence[tuple[int, int] | None]]]


def _loops(runs: Sequence[Results]) -> Loops:
    """Return how often each run ran each op in a loop."""
    counts_of_runs: list[dict[str, tuple[int, int]]] = []
    for run in runs:
        counted: dict[str, tuple[int, int]] = {}
        for cell in run.cells:
            for op, times in cell.loops.items():
                before = counted.get(_short_name(op), (0, 0))
                counted[_short_name(op)] = before[0] + times, before[1] + 1
        counts_of_runs.append(counted)
    ops = sorted(set().union(*counts_of_runs))
    return Loops(
        names=list(map(title, runs)),
        ops=list(map(len, counts_of_runs)),
        lines=[(op, [counted.get(op) for counted in counts_of_runs]) for op in ops],
    )


def _short_name(op: str) -> str:
    """Return the common form ``aten.unique_dim`` of ``aten::unique_dim`` and
    ``aten.unique_dim.default``.
    """
    return op.replace("::", ".").removesuffix(".default")
