"""Group the cells of a run, so that each group takes a few seconds. Modules are imported one after
another, and none stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gen.checks.tables import Cell
from gen.cluster.job import Group
from gen.run.cell_durations import Durations
from gen.run.inventory import Module, imported, tables

__all__ = ["Selection", "groups"]

LARGEST = 1000  # cells of a group
_SHOWN = 3  # ids


@dataclass(frozen=True)
class Selection:
    """The cells of a tier that a run takes: those that match one glob of each kind that has
    globs.
    """

    tier: str
    op: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    # the ids of single cells; empty for all
    ids: frozenset[str] = frozenset()

    def narrowed(self) -> str:
        """Return what narrows the run, in words. Empty if it takes every cell of its tier."""
        kinds = {
            "--op": self.op,
            "--check": self.check,
            "--dtype": self.dtype,
            "ids": self._few_ids(),
        }
        return " ".join(f"{name} {' '.join(globs)}" for name, globs in kinds.items() if globs)

    def _few_ids(self) -> list[str]:
        """Return the ids, or their number and a digest, which differs from that of others as
        well.
        """
        ids = sorted(self.ids)
        if len(ids) <= _SHOWN:
            return ids
        digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12]
        return [f"{len(ids)} with digest {digest}"]

    def takes(self, node: str, check: str, cell: Cell) -> bool:
        """Return whether the selection has a cell."""
        # An id may name a cell, or all cells of a test function.
        if self.ids and self.ids.isdisjoint((node, node.partition("[")[0])):
            return False
        globs = (self.op, self.check, self.dtype)
        return all(map(_matches, globs, (cell.op, check, cell.dtype)))


def _matches(globs: Sequence[str], name: str) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def groups(
    modules: Sequence[Module],
    selection: Selection,
    durations: Durations,
    seconds: float,
    done: Callable[[str], bool],
) -> Iterator[Group]:
    """Yield the groups of all modules.

    `done(id)` says which cells need no run. Cells of one op are neighbours, since they share
    samples.
    """
    for module in modules:
        if not module.counts.get(selection.tier):
            continue
        chosen: list[tuple[str, Cell]] = []
        length = 0.0
        for function, cell in _line(tables(imported(module.path), selection.tier)):
            node = f"{module.name}::{function}[{cell.id}]"
            check = function.removeprefix("test_")
            if not selection.takes(node, check, cell) or done(node):
                continue
            chosen.append((function, cell))
            length += durations.cell(check, cell.op)
            if length >= seconds or len(chosen) == LARGEST:
                yield Group(module.name, tuple(chosen))
                chosen, length = [], 0.0
        if chosen:
            yield Group(module.name, tuple(chosen))


def _line(cells: Mapping[str, Sequence[Cell]]) -> list[tuple[str, Cell]]:
    """Return the cells of a module, op after op."""
    line: list[tuple[str, Cell]] = []
    for name, of_check in cells.items():
        line += [(name, cell) for cell in of_check]
    return sorted(line, key=lambda pair: pair[1].op)
