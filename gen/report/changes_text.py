"""What one run changed, as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gen.report.changes import KINDS, Change, Changes
from gen.report.runs import History
from gen.run.results import CellResult

__all__ = ["as_text"]


def as_text(past: History, *, listed: int = 40) -> str:
    """The changes of each kind, at most ``listed`` of one."""
    return "\n".join(_lines(past, listed)) + "\n"


def _lines(past: History, listed: int) -> Iterator[str]:
    found = past.changes
    for name, header, step in zip("AB", found.headers, past.steps[-2:], strict=True):
        yield f"{name}: {_described(header)}; {step.cells} cells, {step.failing} failing"
    for setting, before, now in found.settings:
        yield f"   {setting}: {before or 'not written'} -> {now or 'not written'}"
    yield f"{found.common} cells of both, {len(found.cells)} changed"
    for kind, changes in found.by_kind.items():
        yield f"\n{len(changes)} {KINDS[kind]}:"
        shown = _by_op(changes) if kind == "values" else map(_change, changes)
        yield from _at_most(list(shown), listed)
    yield from _alone(found, listed)
    yield from _of_several(past, listed)


def _described(header: Mapping[str, Any]) -> str:
    return (
        f"target {header['target']} on {header['device']}, tier {header['tier']}, torch "
        f"{header.get('torch', 'unknown')}, {header.get('began', header.get('date', 'no date'))}"
    )


def _change(change: Change) -> str:
    before, now = change.before, change.now
    if change.kind == "refusals":
        return f"{now.node}: {_refusal(before)} -> {_refusal(now)}"
    why = f": {now.why or before.why}" if now.why or before.why else ""
    return f"{now.node}: {before.outcome} -> {now.outcome}{why}"


def _refusal(cell: CellResult) -> str:
    return repr(cell.refusal or cell.why) if cell.refusal or cell.why else "an answer"


def _by_op(changes: Sequence[Change]) -> list[str]:
    counts = Counter(change.now.op for change in changes)
    return [f"{op}: {count} cells" for op, count in counts.most_common()]


def _alone(found: Changes, listed: int) -> Iterator[str]:
    """What one of the runs alone has."""
    for what, ops in (("new", found.new_ops), ("vanished", found.vanished_ops)):
        if ops:
            yield f"\n{len(ops)} {what} ops:"
            yield from _at_most([f"{op}: {count} cells" for op, count in ops.items()], listed)
    for what, cells in (("new", found.new_cells), ("vanished", found.vanished_cells)):
        if cells:
            yield f"\n{len(cells)} {what} cells of ops that both have:"
            yield from _at_most([cell.node for cell in cells], listed)


def _of_several(past: History, listed: int) -> Iterator[str]:
    if past.slower:
        yield f"\n{len(past.slower)} slower by 2x:"
        lines = [f"{c.node}: {usual:.2f} -> {c.seconds:.2f} s" for c, usual in past.slower]
        yield from _at_most(lines, listed)
    if past.flaky:
        yield f"\n{len(past.flaky)} flaky:"
        yield from _at_most([f"{c.node}: {', '.join(line)}" for c, line in past.flaky], listed)


def _at_most(lines: Sequence[str], listed: int) -> Iterator[str]:
    for line in lines[:listed]:
        yield f"  {line}"
    if len(lines) > listed:
        yield f"  … and {len(lines) - listed} more; --all lists them"
