"""Draw results as one HTML page, which works from disk without a network.

The findings come first, the most severe of them at the top: what was expected, what came, and the
program that fails. They and the lists are readable without scripts. The grid of ops and checks is
drawn by the scripts in ``templates/report`` from a compact JSON block, row by row as it comes into
view. Another table shows which rules of the target the cells have run, if the run noted them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from typing import Any

import jinja2
from markupsafe import Markup

from gen.package_names import GENERATOR
from gen.report.changes import KINDS
from gen.report.findings import Finding, findings_by_severity
from gen.report.grid import GLYPHS, Earlier, grid_data, numbered
from gen.report.runs import LISTED, History, side_by_side, title
from gen.run.failure_groups import counts_by_severity, group_failures
from gen.run.results import OUTCOMES, CellResult, Results
from gen.severity import Severity

__all__ = ["MEANINGS", "RulesTable", "View", "page", "rules_table"]

# --- rules that the cells have run ----------------------------------------------------------------
#
# A run notes them with ``--rules``.


@dataclass(frozen=True)
class RulesTable:
    """The rules of the target of one run, which noted them (``--rules``)."""

    title: str
    # (part, rules, rules that a cell ran) for each part of a record
    parts: Sequence[tuple[str, int, int]]
    # (part, rules) that no cell ran
    unrun: Sequence[tuple[str, Sequence[str]]]
    # (rule, cells that ran it), fewest first
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

    # the prefix of ids on the page, such as ``run0``
    key: str
    title: str
    settings: Mapping[str, Any]
    versions: str
    # the number of cells by outcome, the worst outcome first
    counts: Sequence[tuple[str, int]]
    complete: bool
    # seconds of the whole run, if it came to its end
    wall: float | None
    # milliseconds per cell
    mean: float
    ops: int
    checks: int
    severities: Sequence[tuple[Severity, int]]
    findings: Sequence[tuple[Severity, Sequence[Finding]]]
    # (reason, cells, ops, checks, entries) of the expected failures, most frequent first
    reasons: Sequence[tuple[str, int, int, str, str]]
    skipped: Sequence[tuple[str, int]]
    # (check, reason, cells) of what the target lacks
    lacking: Sequence[tuple[str, str, int]]
    slowest: Sequence[CellResult]
    # the time by family, and by check
    shares: Sequence[tuple[str, Sequence[Share]]]
    # the entries of which no cell happened as they say
    never: Sequence[str]
    # the grid of ops and checks, as JSON for the script of the page
    data: str


def page(
    runs: Sequence[Results],
    coverage: Mapping[str, Mapping[str, Any]],
    others: Sequence[Results] = (),
    *,
    past: History | None = None,
    places: Mapping[str, Mapping[str, str]] | None = None,
    earlier: Sequence[Sequence[Results]] = (),
) -> str:
    """Return the whole page as text. It shows only the loops of the results in `others`.

    `places` has the lines of the matrix where ops and checks stand, `past` what changed since
    earlier runs. `earlier` has for each of `runs` the runs before it, oldest first, from which the
    page draws the history of a cell.
    """
    histories = [Earlier(some) for some in earlier] or [Earlier(())] * len(runs)
    views = []
    for number, (result, history) in enumerate(zip(runs, histories, strict=True)):
        views.append(_view(f"run{number}", result, places or {}, history))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(GENERATOR, "templates"),
        # messages of exceptions stand on the page, and may hold anything
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["style"] = _style
    environment.globals["asset"] = _asset
    return environment.get_template("report/page.html.j2").render(
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


def _style(outcome: str) -> str:
    """Return the class of an outcome in the style sheet."""
    return outcome.replace(" ", "-")


def _asset(name: str) -> Markup:
    """Return a style sheet or a script of the page, as it is."""
    return Markup((files(GENERATOR) / "templates/report" / name).read_text("utf-8"))


def _view(
    key: str, run: Results, places: Mapping[str, Mapping[str, str]], earlier: Earlier
) -> View:
    """Return the data of one run for the template."""
    cells = run.cells
    counts = run.counts()
    header = run.header
    groups = group_failures(cells)
    return View(
        key=key,
        title=title(run),
        settings={name: value for name, value in header.items() if name not in ("event", "rules")},
        versions=_versions(header),
        # the worst outcome first
        counts=[(outcome, counts[outcome]) for outcome in reversed(OUTCOMES) if counts[outcome]],
        complete=bool(run.end.get("complete")),
        wall=run.end.get("wall_seconds"),
        mean=_mean_milliseconds(cells),
        ops=len({(cell.family, cell.op) for cell in cells}),
        checks=len({cell.check for cell in cells}),
        severities=list(counts_by_severity(cells).items()),
        findings=findings_by_severity(key, groups, header, earlier, places),
        reasons=_reasons(cells),
        skipped=_skipped(cells),
        lacking=_lacking(cells),
        slowest=sorted(cells, key=lambda cell: -cell.seconds)[:25],
        shares=[("family", _shares(cells, "family")), ("check", _shares(cells, "check"))],
        never=list(run.end.get("never_happened", ())),
        data=grid_data(run, numbered(groups), earlier, places),
    )


def _versions(header: Mapping[str, object]) -> str:
    """Return the versions that a run was of, in a line."""
    names = ("torch", "numpy", "python", "package", "machine")
    return " · ".join(f"{name} {header[name]}" for name in names if header.get(name))


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
    """Return the first words in order, and how many more there are."""
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
                name = _short_name(op)
                times_before, cells_before = counted.get(name, (0, 0))
                counted[name] = times_before + times, cells_before + 1
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
