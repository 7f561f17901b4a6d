"""Report a failed cell: what failed, which samples fail alike, and how to run it again.

    torch.sin-float64 under vjp, target runtime on cpu, sample 3 (2, 3)
    values differ at (0, 1): 0.5403 expected, 0.5404 found
    fails alike: samples 4, 7
    reproduce: pytest '…::test_vjp[torch.sin-float64]' --target=runtime

pytest shows this text in place of a traceback.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import pytest

from gen.run.cell_items import cell_of
from gen.run.execution import Ran, told
from gen.run.failure_groups import without_numbers
from gen.run.matrix_run import RUN

if TYPE_CHECKING:
    from gen.checks.case import SampleFailure
    from gen.run.verdict import Verdict

__all__ = ["CellFailed", "fail_cell"]

_SHOWN = 4  # distinct errors of a cell
_LISTED = 3  # entries of other cells


class CellFailed(Exception):
    """An error whose text is the report. Its traceback is not shown."""


def fail_cell(item: pytest.Function, ran: Ran) -> NoReturn:
    """Fail the cell, with one report for each distinct error."""
    __tracebackhide__ = True
    verdict = ran.verdict
    failures_by_error: dict[str, list[SampleFailure]] = {}
    for failure in verdict.failures:
        failures_by_error.setdefault(without_numbers(told(failure.error)), []).append(failure)
    if not failures_by_error:
        raise CellFailed(f"{_title(item)}: {verdict.why}\nreproduce: {_command(item, None)}")
    # Samples that fail alike are one report, so that a second kind of failure is seen. Of the first
    # error, the process of the cell has found out more.
    groups = list(failures_by_error.values())
    parts = [
        _report(item, group, verdict, None if place else ran)
        for place, group in enumerate(groups[:_SHOWN])
    ]
    if len(groups) > _SHOWN:
        parts.append(f"and {len(groups) - _SHOWN} more errors of other kinds")
    raise CellFailed("\n\n".join(parts)) from groups[0][0].error


def _report(
    item: pytest.Function,
    alike: Sequence[SampleFailure],
    verdict: Verdict,
    first: Ran | None = None,
) -> str:
    """Return the report of samples that fail alike.

    `first`: what the cell came to, of whose first error more is known.
    """
    failure, others = alike[0], [str(other.sample) for other in alike[1:]]
    title = _title(item)
    if failure.sample is not None:
        title += f", sample {failure.sample}"
        if failure.description:
            title += f" {failure.description}"
    lines = [title]
    # The error is then another one than an entry of the cell expects.
    if verdict.why.startswith("expected "):
        lines.append(verdict.why)
    lines.append(told(failure.error))
    if others:
        lines.append(f"fails alike: sample{'s' * (len(others) > 1)} {', '.join(others)}")
    if first is not None and first.elsewhere:
        lines.append(_known_elsewhere(first.elsewhere))
    lines.append(f"reproduce: {_command(item, failure.sample)}")
    if first is not None and first.program:
        lines += ["as a program:", first.program]
    return "\n".join(lines)


def _known_elsewhere(entries: Sequence[str]) -> str:
    """Say how many entries of other cells match a message, and name some."""
    names = ", ".join(entries[:_LISTED])
    if len(entries) > _LISTED:
        names += ", …"
    match = "entries match" if len(entries) > 1 else "entry matches"
    return f"known elsewhere: {len(entries)} {match} this message ({names})"


def _title(item: pytest.Function) -> str:
    """Return the cell, its check, its target and its device as text."""
    run = item.config.stash[RUN]
    cell = cell_of(item)
    assert cell is not None
    return (
        f"{cell.id} under {item.originalname.removeprefix('test_')}, "
        f"target {run.settings.target} on {run.settings.device}"
    )


def _command(item: pytest.Function, sample: int | None) -> str:
    """Return the command that reruns this cell or sample."""
    run = item.config.stash[RUN]
    words = ["pytest", shlex.quote(item.nodeid), "--target", shlex.quote(run.settings.target)]
    if run.settings.device != "cpu":
        words += ["--device", shlex.quote(run.settings.device)]
    # A cell that is named runs at every tier.
    words += ["--tier", "full"]
    if sample is not None:
        words += ["--sample", str(sample)]
    return " ".join(words)
