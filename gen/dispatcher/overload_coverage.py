"""Add up which overloads of torch's dispatcher the cells of a run have called.

    coverage = Coverage.of_calls(folder)
    coverage.overloads["aten::sin.out"].state   # "called", "within", "other", "excused" or "open"

`STATES` says what each of these words means.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gen.dispatcher.overload_reasons import Reason, family_of, reason_of
from gen.torch_private.aten_overloads import every_overload, has_kernel

__all__ = ["STATES", "Coverage", "Overload", "lost_since"]

STATES = {
    "called": "the target itself calls it",
    "within": "another op that the target calls does",
    "other": "a reference or a sample does",
    "excused": "nobody, for a reason",
    "open": "nobody",
}
# the state of an overload that is called at a depth, by the name that cells note it under
_DEPTHS = {"top": "called", "within": "within", "other": "other"}
_ROWS = 3  # of an overload, in the file
Facts = dict[str, object]
"""What the file says of an overload: `{"state": "called", "family": "out=", "by": […]}`."""


@dataclass
class Overload:
    """An overload, and who calls it."""

    name: str
    family: str
    # why no cell has to call it, if there is a reason
    reason: Reason | None
    state: str
    # rows and checks, in the order of their names
    callers: list[tuple[str, str]] = field(default_factory=list)

    def facts(self) -> Facts:
        """Return what the file says of it."""
        facts: Facts = {"state": self.state, "family": self.family}
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
        # for each overload and each state, the rows and checks
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
        overloads = self.overloads.values()
        return _share([overload for overload in overloads if overload.state != "excused"])

    def share_with_kernel(self) -> tuple[int, int]:
        """Return the same of all overloads that have a kernel, with a reason or not."""
        overloads = self.overloads.values()
        return _share([overload for overload in overloads if has_kernel(overload.name)])

    def facts(self) -> dict[str, Facts]:
        """Return the coverage as the file has it."""
        return {name: overload.facts() for name, overload in self.overloads.items()}


def _share(due: Sequence[Overload]) -> tuple[int, int]:
    """Return how many of these overloads are called, and how many there are."""
    states = Counter(overload.state for overload in due)
    return states["called"], states.total()


def lost_since(before: Mapping[str, Facts], coverage: Coverage) -> list[str]:
    """Return the overloads that a file says are called, and that this run has not called."""
    called = {name for name, facts in before.items() if facts["state"] == "called"}
    # an overload that torch does not have any more is not lost
    present = coverage.overloads.items()
    others = {name for name, overload in present if overload.state != "called"}
    return sorted(called & others)


def _overload(name: str, callers: Mapping[str, Iterable[tuple[str, str]]]) -> Overload:
    """Return an overload in the first state that it has callers in.

    A reason counts only if the target itself does not call the overload.
    """
    family, reason = family_of(name), reason_of(name)
    # The states stand in the order of what they say: of several, the first one counts.
    state = min(callers, key=list(STATES).index, default="open")
    if reason is not None and state != "called":
        return Overload(name, family, reason, "excused")
    return Overload(name, family, reason, state, sorted(callers.get(state, ())))


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what each line of the files in a folder says."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as file:
            for text in file:
                yield json.loads(text)
