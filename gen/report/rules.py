"""Which of a target's rules the cells of a run have run, for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gen.report.runs import title
from gen.run.results import Results

__all__ = ["RulesTable", "rules_table"]


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
    """The rules of `run`; None if it has not noted them."""
    names = run.header.get("rules")
    if not isinstance(names, list):
        return None
    counts = Counter(rule for cell in run.cells for rule in cell.rules)
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(_part(name), []).append(name)
    unrun = {
        part: [name for name in members if not counts[name]]
        for part, members in sorted(parts.items())
    }
    return RulesTable(
        title(run),
        [
            (part, len(parts[part]), len(parts[part]) - len(missed))
            for part, missed in unrun.items()
        ],
        [(part, missed) for part, missed in unrun.items() if missed],
        sorted(
            ((name, counts[name]) for name in names if counts[name]),
            key=lambda pair: (pair[1], pair[0]),
        ),
    )


def _part(name: str) -> str:
    """The part of a rule's name, such as vjp: its second word."""
    return name.split()[1] if " " in name else name
