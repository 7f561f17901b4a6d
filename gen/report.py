"""`gen report`: results files -> one HTML page, which works from disk without a network.

The page is a table that is readable without scripts. A compact JSON block has the details of each cell, for the panel that
opens when a cell is selected.
"""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2

from gen.checks.results import OUTCOMES, CellResult, Results, ResultsError, read
from gen.files import replace as replace_file

__all__ = ["add_arguments", "page", "run"]

GLYPHS = dict(zip(OUTCOMES, ("", "s", "–", "x", "v", "!", "✗", "E", "T", "C"), strict=True))
MEANINGS = {
    "passed": "equal to the reference",
    "skipped": "left out, for a stated reason",
    "lacking": "the target does not offer the transform, or the meta device the values",
    "xfailed": "failed exactly as an entry says",
    "vacuous": "nothing was proved: counts as a failure",
    "xpassed": "an entry that did not happen: counts as a failure",
    "failed": "differs, or raised",
    "error": "could not be run",
    "timed out": "took longer than its limit, and its process was ended",
    "crashed": "its process died of a signal, or ended",
}
_FAILURES = ("vacuous", "xpassed", "failed", "error", "timed out", "crashed")
_COVERAGE = Path(".cache/gen/coverage.json")
_LISTED = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, nargs="+", metavar="FILE", help="shards of one run are joined, two runs are compared")
    parser.add_argument("--out", type=Path, default=Path("report/index.html"), help="the page (default report/index.html)")
    parser.add_argument("--open", choices=("yes", "no"), default="no", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    try:
        runs = _join([read(path) for path in args.results or [_newest()]])
        coverage = _coverage(_COVERAGE)
        others = _of_other_targets(runs)
    except ResultsError as error:
        print(f"gen report: {error}", file=sys.stderr)
        return 2
    text = page(runs, coverage, others)
    replace_file(args.out, text)
    print(f"{args.out}: {sum(len(run.cells) for run in runs)} cells of {len(runs)} run(s), {len(text.encode()) / 1e6:.1f} MB")
    if args.open == "yes":
        webbrowser.open(args.out.resolve().as_uri())
    return 0


def _recorded() -> list[Path]:
    """The results files of runs that were not narrowed, oldest first."""
    found = [path for path in Path(".cache/matrix").glob("results-*.jsonl") if not path.stem.endswith("-part")]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _newest() -> Path:
    found = _recorded()
    if not found:
        raise ResultsError("no results in .cache/matrix; run `pytest generated_tests` first, or name a file with --results")
    return found[-1]


def _of_other_targets(runs: Sequence[Results]) -> list[Results]:
    """Results of targets that the page does not show. Their loops are compared with those of `runs`."""
    shown = {run.header["target"] for run in runs}
    return [result for result in _join([read(path) for path in _recorded()]) if result.header["target"] not in shown]


def _join(results: Sequence[Results]) -> list[Results]:
    """Join shards of one run (same target, device and tier). Every other file is a run."""
    joined: dict[tuple[Any, ...], Results] = {}
    for number, result in enumerate(results):
        header = result.header
        sharded = header.get("shard", "1/1") != "1/1"
        key = ("shards", header["target"], header["device"], header["tier"]) if sharded else ("file", number)
        before = joined.get(key)
        if before is None:
            joined[key] = result
            continue
        end = {
            "complete": bool(before.end.get("complete") and result.end.get("complete")),
            "wall_seconds": before.end.get("wall_seconds", 0) + result.end.get("wall_seconds", 0),
            "never_happened": [],
        }
        header = {**before.header, "shard": f"{before.header['shard']}, {header['shard']}"}
        joined[key] = Results(header, before.cells + result.cells, end)
    return list(joined.values())


def _coverage(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError:
        return {}
    except ValueError as error:
        raise ResultsError(f"{path}: not JSON ({error}); `python -m gen generate` writes it") from error
    return {tier: proof for tier, proof in data.items() if isinstance(proof, dict)} if isinstance(data, dict) else {}


@dataclass(frozen=True)
class Square:
    """One cell of the grid: the worst outcome, the text in it, and the text for screen readers."""

    outcome: str
    text: str
    place: str = ""


@dataclass(frozen=True)
class Line:
    """One row of the grid, for an op or for a whole family."""

    name: str
    squares: tuple[Square | None, ...]


@dataclass(frozen=True)
class Group:
    """A family: its summary row and the rows of its ops."""

    head: Line
    lines: tuple[Line, ...]
    worst: str


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
    failures: Sequence[tuple[str, str, int, Sequence[str]]]
    reasons: Sequence[tuple[str, int, int, str, str]]
    skipped: Sequence[tuple[str, int]]
    lacking: Sequence[tuple[str, str, int]]
    slowest: Sequence[CellResult]
    never: Sequence[str]
    data: str


def page(runs: Sequence[Results], coverage: Mapping[str, Mapping[str, Any]], others: Sequence[Results] = ()) -> str:
    """The whole page as text. It shows only the loops of the results in `others`."""
    views = [_view(f"run{number}", result) for number, result in enumerate(runs)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gen", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["style"] = lambda outcome: outcome.replace(" ", "-")  # the class of an outcome in the style sheet
    return environment.get_template("report.html.j2").render(
        views=views,
        coverage=coverage,
        loops=_loops([*runs, *others]),
        differences=_compare(runs[0], runs[1]) if len(runs) == 2 else None,
        glyphs=GLYPHS,
        meanings=MEANINGS,
        listed=_LISTED,
    )


def _view(key: str, result: Results) -> View:
    cells = result.cells
    checks = tuple(sorted({cell.check for cell in cells}))
    data = _Data(checks)
    groups = _groups(cells, checks, data)
    counts = result.counts()
    header = result.header
    return View(
        key=key,
        title=f"{header['target']} on {header['device']}, tier {header['tier']}",
        settings={name: value for name, value in header.items() if name != "event"},
        counts=[(outcome, counts[outcome]) for outcome in reversed(OUTCOMES) if counts[outcome]],
        complete=bool(result.end.get("complete")),
        wall=result.end.get("wall_seconds"),
        mean=1000 * sum(cell.seconds for cell in cells) / len(cells) if cells else 0.0,
        checks=checks,
        groups=groups,
        failures=_failures(cells),
        reasons=_reasons(cells),
        skipped=Counter(cell.why for cell in cells if cell.outcome == "skipped").most_common(),
        lacking=[(*pair, count) for pair, count in sorted(Counter((c.check, c.why) for c in cells if c.outcome == "lacking").items())],
        slowest=sorted(cells, key=lambda cell: -cell.seconds)[:25],
        never=list(result.end.get("never_happened", ())),
        data=data.text(),
    )


def _groups(cells: Sequence[CellResult], checks: Sequence[str], data: _Data) -> tuple[Group, ...]:
    """The rows of the grid by family; their cells are added to `data`."""
    grouped: dict[str, dict[str, dict[str, list[CellResult]]]] = {}
    for cell in cells:
        grouped.setdefault(cell.family, {}).setdefault(cell.op, {}).setdefault(cell.check, []).append(cell)
    groups = []
    for family in sorted(grouped):
        lines = []
        for op in sorted(grouped[family]):
            row = grouped[family][op]
            lines.append(Line(op, tuple(_square(row.get(check, ()), data.add(op, row.get(check, ()))) for check in checks)))
        members = {check: [cell for row in grouped[family].values() for cell in row.get(check, ())] for check in checks}
        head = Line(family, tuple(_summary(members[check]) for check in checks))
        groups.append(Group(head, tuple(lines), _worst(cell for found in members.values() for cell in found)))
    return tuple(groups)


def _worst(cells: Iterable[CellResult]) -> str:
    return max((cell.outcome for cell in cells), key=OUTCOMES.index, default="passed")


def _square(cells: Sequence[CellResult], place: str) -> Square | None:
    if not cells:
        return None
    outcome = _worst(cells)
    count = sum(cell.outcome == outcome for cell in cells)
    return Square(outcome, f"{GLYPHS[outcome]}{count}", place)


def _summary(cells: Sequence[CellResult]) -> Square | None:
    """A family's square. It shows any failure, or else the most frequent outcome, so one exception does not colour a hundred passes."""
    if not cells or _worst(cells) in _FAILURES:
        return _square(cells, "")
    outcome, count = Counter(cell.outcome for cell in cells).most_common(1)[0]
    return Square(outcome, f"{GLYPHS[outcome]}{count}")


class _Data:
    """The JSON block. It has each text once, and cells as short lists of indices into the texts."""

    def __init__(self, checks: Sequence[str]) -> None:
        self._texts: dict[str, int] = {}
        self._places: dict[str, list[list[int]]] = {}
        self._checks = checks

    def add(self, op: str, cells: Sequence[CellResult]) -> str:
        if not cells:
            return ""
        place = f"{self._text(op)}.{self._checks.index(cells[0].check)}"
        self._places[place] = [
            [
                self._text("-".join((cell.dtype, *cell.axes.values()))),
                OUTCOMES.index(cell.outcome),
                self._text(cell.why),
                round(1000 * cell.seconds),
                cell.samples,
                self._text(cell.node.partition("::")[0]),
            ]
            for cell in sorted(cells, key=lambda cell: cell.id)
        ]
        return place

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def text(self) -> str:
        data = {"texts": list(self._texts), "outcomes": OUTCOMES, "places": self._places}
        # Inside <script>, `<` could end the block, so JSON's escape is used.
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _failures(cells: Sequence[CellResult]) -> list[tuple[str, str, int, list[str]]]:
    """(outcome, why, count, node ids), worst first. One cause that affects many cells is one line."""
    grouped: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in cells:
        if cell.outcome in _FAILURES:
            grouped[cell.outcome, cell.why].append(cell.node)
    order = sorted(grouped.items(), key=lambda item: (-OUTCOMES.index(item[0][0]), -len(item[1]), item[0][1]))
    return [(outcome, why, len(nodes), sorted(nodes)) for (outcome, why), nodes in order]


def _reasons(cells: Sequence[CellResult]) -> list[tuple[str, int, int, str, str]]:
    """(reason, cells, ops, checks, entries) of the expected failures, most frequent first."""
    grouped: defaultdict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.outcome == "xfailed":
            grouped[cell.why].append(cell)
    return [
        (why, len(found), len({cell.op for cell in found}), _some({c.check for c in found}), _some({e for c in found for e in c.entries}))
        for why, found in sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _some(words: set[str], shown: int = 6) -> str:
    rest = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(sorted(words)[:shown]) + rest


@dataclass(frozen=True)
class Loops:
    """The ops that each target's vmap ran one element at a time. A line is an op, with (times, cells) or None for each run."""

    names: Sequence[str]
    ops: Sequence[int]
    lines: Sequence[tuple[str, Sequence[tuple[int, int] | None]]]


def _loops(runs: Sequence[Results]) -> Loops:
    found: list[dict[str, tuple[int, int]]] = []
    for run in runs:
        counted: dict[str, tuple[int, int]] = {}
        for cell in run.cells:
            for op, times in cell.loops.items():
                before = counted.get(_short_name(op), (0, 0))
                counted[_short_name(op)] = before[0] + times, before[1] + 1
        found.append(counted)
    ops = sorted(set().union(*found))
    return Loops(
        names=[f"{run.header['target']} on {run.header['device']}, tier {run.header['tier']}" for run in runs],
        ops=[len(counted) for counted in found],
        lines=[(op, [counted.get(op) for counted in found]) for op in ops],
    )


def _short_name(op: str) -> str:
    """The common form ``aten.unique_dim`` of ``aten::unique_dim`` and ``aten.unique_dim.default``."""
    return op.replace("::", ".").removesuffix(".default")


@dataclass(frozen=True)
class Differences:
    """Two runs side by side."""

    names: tuple[str, str]
    table: Sequence[tuple[str, str, int]]
    cells: Sequence[tuple[CellResult, CellResult]]
    only: tuple[int, int]
    seconds: tuple[float, float]
    common: int


def _compare(first: Results, second: Results) -> Differences:
    left = {(cell.check, cell.id): cell for cell in first.cells}
    right = {(cell.check, cell.id): cell for cell in second.cells}
    both = sorted(left.keys() & right.keys())
    pairs = [(left[key], right[key]) for key in both if left[key].outcome != right[key].outcome]
    table = Counter((a.outcome, b.outcome) for a, b in pairs)
    names = (first.header["target"], second.header["target"])
    if names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    return Differences(
        names=names,
        table=[(a, b, count) for (a, b), count in table.most_common()],
        cells=[(_short(a), _short(b)) for a, b in pairs[:_LISTED]],
        only=(len(left) - len(both), len(right) - len(both)),
        seconds=(sum(left[key].seconds for key in both), sum(right[key].seconds for key in both)),
        common=len(both),
    )


def _short(cell: CellResult) -> CellResult:
    return replace(cell, why=cell.why if len(cell.why) <= 160 else cell.why[:159] + "…")
