"""Write what several runs changed, as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gen.report.changes import DETAILS, KINDS, Change, Changes
from gen.report.runs import History
from gen.run.results import CellResult

__all__ = ["LISTED", "changes_as_text"]

LISTED = 40  # lines of a section
_CALLED = {"failing": "failing sample", "entries": "known entries"}


def changes_as_text(past: History, listed: int = LISTED) -> str:
    """Return the changes of each kind as lines of text.

    ``past``: the runs, of which the last two are compared. ``listed``: how many lines a section
    has at most. Its headline counts all of them.
    """
    return "\n".join(_lines(past, listed)) + "\n"


def _lines(past: History, listed: int) -> Iterator[str]:
    """Yield the lines: both runs, their settings, and the changes by kind."""
    changes_of_last_run = past.changes
    for name, header, step in zip("AB", changes_of_last_run.headers, past.steps[-2:], strict=True):
        yield f"{name}: {_describe(header)}; {step.cells} cells, {step.failing} failing"
    for note in past.notes:
        yield f"   {note}"
    for setting, before, now in changes_of_last_run.settings:
        yield f"   {setting}: {before or 'not written'} -> {now or 'not written'}"
    yield f"{changes_of_last_run.common} cells of both, {len(changes_of_last_run.cells)} changed"
    for kind, changes in changes_of_last_run.by_kind.items():
        yield f"\n{len(changes)} {KINDS[kind]}:"
        shown = _by_op(changes) if kind == "values" else map(_change, changes)
        yield from _at_most(list(shown), listed)
    yield from _lines_of_one_run(changes_of_last_run, listed)
    yield from _of_several(past, listed)


def _describe(header: Mapping[str, object]) -> str:
    return (
        f"target {header['target']} on {header['device']}, tier {header['tier']}, torch "
        f"{header.get('torch', 'unknown')}, {header.get('began', header.get('date', 'no date'))}"
    )


def _change(change: Change) -> str:
    """Return a changed cell as a line."""
    before, now = change.before, change.now
    if change.kind == "refusals":
        return f"{now.node}: {_refusal(before)} -> {_refusal(now)}"
    if change.kind in ("samples", "entries"):
        return f"{now.node}: {_details(before, now, [change.kind])}"
    line = _with_reason(f"{now.node}: {before.outcome} -> {now.outcome}", now.why or before.why)
    if change.kind != "failures":  # of the kinds left, the one in which both runs fail
        return line
    details = _details(before, now, DETAILS)
    return f"{line} ({details})" if details else line


def _with_reason(text: str, why: str) -> str:
    """Return a text with the reason after it, if there is one."""
    if not why:
        return text
    return f"{text}: {why}"


def _details(before: CellResult, now: CellResult, names: Sequence[str]) -> str:
    """Say what else is not as before."""
    texts = []
    for name in names:
        was, is_now = getattr(before, name), getattr(now, name)
        if was != is_now:
            texts.append(f"{_CALLED.get(name, name)} {_value(was)} -> {_value(is_now)}")
    if before.refusal != now.refusal and len(names) > 1:
        texts.append(f"refusal {_refusal(before)} -> {_refusal(now)}")
    return ", ".join(texts)


def _value(value: object) -> str:
    """Return a detail as text: a tuple as a list with commas, and nothing as "none"."""
    if isinstance(value, tuple):
        value = ", ".join(value)
    return "none" if value in (None, "") else str(value)


def _refusal(cell: CellResult) -> str:
    refusal = cell.refusal or cell.why
    return repr(refusal) if refusal else "an answer"


def _by_op(changes: Sequence[Change]) -> list[str]:
    """Return how many cells of each op have other values, the most first."""
    counts: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for change in changes:
        counts[change.now.op] += 1
        if not change.now.values:
            lost[change.now.op] += 1
    lines = []
    for op, count in counts.most_common():
        without = f", {lost[op]} without values now" if lost[op] else ""
        lines.append(f"{_op((op, count))}{without}")
    return lines


def _lines_of_one_run(changes: Changes, listed: int) -> Iterator[str]:
    """Yield what one of the runs alone has."""
    yield from _section("new cells fail", map(_outcome, changes.new_failing), listed)
    vanished = map(_outcome, changes.vanished_failing)
    yield from _section("cells that failed vanished", vanished, listed)
    yield from _section("new ops", map(_op, changes.new_ops.items()), listed)
    yield from _section("vanished ops", map(_op, changes.vanished_ops.items()), listed)
    for what, cells in (("new", changes.new_cells), ("vanished", changes.vanished_cells)):
        title = f"{what} cells of ops that both have"
        yield from _section(title, map(_outcome_alone, cells), listed)
    for run, why, cells in changes.without_result:
        title = f"cells without a result in {run}, which {why}"
        yield from _section(title, map(_outcome_alone, cells), listed)


def _section(title: str, lines: Iterable[str], listed: int) -> Iterator[str]:
    """Yield a headline with the number of lines, then the first of them. No lines, no headline."""
    every = list(lines)
    if every:
        yield f"\n{len(every)} {title}:"
        yield from _at_most(every, listed)


def _op(counted: tuple[str, int]) -> str:
    op, count = counted
    return f"{op}: {count} cells"


def _outcome_alone(cell: CellResult) -> str:
    return f"{cell.node}: {cell.outcome}"


def _outcome(cell: CellResult) -> str:
    """Return the outcome of a cell, with the reason if it has one."""
    return _with_reason(_outcome_alone(cell), cell.why)


def _of_several(past: History, listed: int) -> Iterator[str]:
    """Yield what only a row of runs shows: cells that got slower, and cells that are flaky."""
    slower = [f"{cell.node}: {usual:.2f} -> {cell.seconds:.2f} s" for cell, usual in past.slower]
    yield from _section("slower by 2x", slower, listed)
    flaky = [f"{cell.node}: {', '.join(outcomes)}" for cell, outcomes in past.flaky]
    yield from _section("flaky", flaky, listed)


def _at_most(lines: Sequence[str], listed: int) -> Iterator[str]:
    for line in lines[:listed]:
        yield f"  {line}"
    if len(lines) > listed:
        yield f"  … and {len(lines) - listed} more; --all lists them"
