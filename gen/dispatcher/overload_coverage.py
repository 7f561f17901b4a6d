"""Add up which overloads of torch's dispatcher the cells of a run have called.

coverage = Coverage.of_calls(folder)
coverage.overloads["aten::sin.out"].state     "called", "within", "other", "excused" or "open"
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gen.dispatcher.overload_reasons import Reason, family_of, reason_of
from gen.torch_private.overloads import every_overload, has_kernel

__all__ = ["STATES", "Coverage", "Overload", "lost_since"]

STATES = {
    "called": "the target itself calls it",
    "within": "another op that the target calls does",
    "other": "a reference or a sample does",
    "excused": "nobody, for a reason",
    "open": "nobody",
}
_DEPTHS = {"top": "called", "within": "within", "other": "other"}
_ROWS = 3  # of an overload, in the file


@dataclass
class Overload:
    """An overload, and who calls it: rows and checks, in the order of their names."""

    name: str
    family: str
    reason: Reason | None
    state: str
    callers: list[tuple[str, str]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return what the file says of it."""
        facts: dict[str, Any] = {"state": self.state, "family": self.family}
        if self.state == "excused" and self.reason is not None:
            facts["reason"] = f"{self.reason.kind}: {self.reason.text}"
        if self.callers:
            facts["by"] = [f"{row} {check}" for row, check in self.callers[:_ROWS]]
        return facts


@dataclass
class Coverage:
    """All overloads of ATen, each with its state."""

    overloads: dict[str, Overload]

    @classmethod
    def of_calls(cls, folder: Path) -> Coverage:
        """Read what the processes of a run have written (:mod:`gen.run.dispatcher_calls`)."""
        callers: dict[str, dict[str, set[tuple[str, str]]]] = {}
        for line in _lines(folder):
            caller = (line["op"], line["check"])
            for depth, names in line["calls"].items():
                for name in names:
                    callers.setdefault(name, {}).setdefault(_DEPTHS[depth], set()).add(caller)
        return cls({name: _overload(name, callers.get(name, {})) for name in every_overload()})

    def counts(self) -> dict[str, Counter[str]]:
        """Return for each family how many overloads are in each state."""
        counts: dict[str, Counter[str]] = {}
        for overload in self.overloads.values():
            counts.setdefault(overload.family, Counter())[overload.state] += 1
        return counts

    def share(self) -> tuple[int, int]:
        """Return how many overloads the target calls itself, of those with no reason."""
        due = [one for one in self.overloads.values() if one.state != "excused"]
        return sum(one.state == "called" for one in due), len(due)

    def share_with_kernel(self) -> tuple[int, int]:
        """Return the same of all overloads that have a kernel, with a reason or not."""
        due = [one for one in self.overloads.values() if has_kernel(one.name)]
        return sum(one.state == "called" for one in due), len(due)

    def facts(self) -> dict[str, Any]:
        """Return the coverage as the file has it."""
        return {name: one.facts() for name, one in self.overloads.items()}


def lost_since(before: Mapping[str, Any], coverage: Coverage) -> list[str]:
    """Return the overloads that a file says are called, and that this run has not called."""
    return [
        name
        for name, facts in before.items()
        if facts["state"] == "called"
        and name in coverage.overloads
        and coverage.overloads[name].state != "called"
    ]


def _overload(name: str, callers: Mapping[str, Iterable[tuple[str, str]]]) -> Overload:
    reason = reason_of(name)
    for state in ("called", "within", "other"):
        if state in callers:
            if state != "called" and reason is not None:
                break
            return Overload(name, family_of(name), reason, state, sorted(callers[state]))
    return Overload(name, family_of(name), reason, "excused" if reason is not None else "open")


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as file:
            for text in file:
                yield json.loads(text)
