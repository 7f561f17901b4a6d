"""Turn the recorded calls of a command into the rows of a project.

plan = choose(record("python train.py"))
words(plan, trials, "python train.py")["rows"][0].name     # torch.nn.functional.linear
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gen.packages.drafts import Given
from gen.packages.project import Row, comment, helpers_of, row_of
from gen.packages.trials import Trial
from gen.recording.command import Recorded

__all__ = ["Choice", "choose", "words"]

WRITES = "it writes to an argument: it is called on copies"
# torch's names of what writes to its argument: torch.relu_, torch.nn.init.zeros_
_IN_PLACE = r"^function .*_$"
_NO_ROWS = {
    r"\.(new_)?empty": "it returns memory without values",
    r"^\w+ torch\.(tensor|as_tensor|asarray|from_numpy|frombuffer|load)$": "its data is Python's",
    r"\.lift_fresh\.|\.profiler\.": "it is a part of torch.tensor or of the profiler",
}
"""Patterns of kinds and names without a row, and the reasons."""


@dataclass(frozen=True)
class Choice:
    """The calls that may become rows, and those that do not, each with the reason."""

    givens: tuple[Given, ...]
    left_out: tuple[tuple[Recorded, str], ...]
    counts: dict[str, int]


def choose(calls: Sequence[Recorded]) -> Choice:
    """Return which calls may become rows."""
    givens = []
    left_out = []
    for call in calls:
        reason = _reason(call)
        if reason:
            left_out.append((call, reason))
        else:
            givens.append(_given(call))
    counts = {call.name: call.count for call in calls}
    return Choice(tuple(givens), tuple(left_out), counts)


def _given(call: Recorded) -> Given:
    """Return the calls of one op or function, as a worker tries them."""
    remarks = [_times(call.count)]
    left = sum(call.left_out.values())
    if left:
        remarks.append(f"{_times(left)} left out: {', '.join(call.left_out)}")
    writes = call.writes or re.search(_IN_PLACE, f"{call.kind} {call.name}") is not None
    if writes:
        remarks.append(WRITES)
    return Given(call.name, call.kind, call.name, call.samples, remarks=remarks, writes=writes)


def _times(count: int) -> str:
    """Return a number of calls in words."""
    return f"{count:,} call{'s' * (count != 1)}"


def _reason(call: Recorded) -> str:
    """Return why there is no row of a call; empty if there may be one."""
    for pattern, reason in _NO_ROWS.items():
        if re.search(pattern, f"{call.kind} {call.name}"):
            return reason
    if not call.samples:
        return ", ".join(call.left_out)
    return ""


def words(choice: Choice, trials: Sequence[Trial], command: str) -> dict[str, Any]:
    """Return what the templates of a project need."""
    left_out = [(call.name, call.count, comment(reason)) for call, reason in choice.left_out]
    working = []
    for trial in trials:
        if trial.reason_for_no_row:
            count = choice.counts[trial.name]
            left_out.append((trial.name, count, comment(trial.reason_for_no_row)))
        else:
            working.append(trial)
    rows = list(map(_row, working))
    return {
        "package": "torch",
        "subject": f"the calls of torch that `{comment(command)}` makes",
        "rows": rows,
        "untested": [],
        "covered": [],
        "has_hidden": False,
        # what the command calls most comes first
        "left_out": sorted(left_out, key=lambda each: -each[1]),
        "failed_imports": (),
        "modules": sorted({"torch", *map(_module, working)}),
        "helpers": helpers_of(rows),
        "has_old_style": False,
    }


def _module(trial: Trial) -> str:
    """Return the module that has to be imported for a call."""
    if trial.name.startswith("torch.ops."):
        return "torch"
    return trial.name.rpartition(".")[0]


def _row(trial: Trial) -> Row:
    """Return the row of a call. It has the name of the row of torch's database, if there is one."""
    call_name = re.sub(r"\W", "_", trial.name.removeprefix("torch.").removesuffix(".default"))
    return dataclasses.replace(row_of(trial, call_name), name=trial.name)
