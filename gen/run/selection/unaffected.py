"""Say which cells a change since a commit cannot affect, by what is known of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, ModuleType

from gen.checks.tables import GENERATED, TIERS, Cell, Cells, Family, cells_of
from gen.dependencies.cell_record import Record
from gen.dependencies.revision import Revision
from gen.dependencies.source_units import digest_of
from gen.run.inventory import Module, checks_of, imported

__all__ = ["Comparison", "Unaffected", "definition", "family_of_table", "is_generated"]

_SETTLED = frozenset(("passed", "xfailed", "skipped", "lacking", "not covered"))
"""The outcomes after which a cell need not run again."""


@dataclass(frozen=True)
class Comparison:
    """What differs from a commit."""

    repository: str
    # what the user calls the commit
    name: str
    commit: str
    environment: str
    # the numbers of the facts that do not hold any more
    stale: tuple[int, ...] = ()
    # why every cell runs; empty if some may be left out
    everything: str = ""
    files: int = 0  # that differ

    @property
    def revision(self) -> Revision:
        return Revision(Path(self.repository), self.name, self.commit)


class Unaffected:
    """The cells that a change since a commit cannot affect.

    A cell is one if all of this holds:

    - its last run with a trace had the versions and settings of this run, and it did not fail;
    - each fact of that run holds of the files now and of those at the commit;
    - the tables say the same of it now, at its last run and at the commit.
    """

    def __init__(self, record: Record, comparison: Comparison) -> None:
        self._record = record
        self._comparison = comparison
        self._stale = frozenset(comparison.stale)
        self._definitions_then: dict[Path, dict[str, str]] = {}

    def has(self, node: str, path: Path, name: str, now: Callable[[], str]) -> bool:
        """Return whether a change cannot affect the cell with the pytest id `node`.

        `path` is its module, `name` its name there, and `now` gives its definition.
        """
        known = self._record.cells.get(node)
        if known is None or self._comparison.everything:
            return False
        if known.outcome not in _SETTLED or known.environment != self._comparison.environment:
            return False
        # the cheap questions first: the definition is computed anew for each cell
        if not self._stale.isdisjoint(known.facts):
            return False
        definition_now = now()
        return known.definition == definition_now == self._then(path, name, definition_now)

    def nodes(self, modules: Iterable[Module], tier: str) -> frozenset[str]:
        """Return the pytest ids of these cells among those of modules at a tier."""
        nodes: set[str] = set()
        for module in modules:
            table = imported(module.path)
            family = family_of_table(table)
            for function, cells in checks_of(table):
                test = getattr(table, function)
                for cell in cells.at(tier):
                    name = f"{function}[{cell.id}]"
                    now = partial(definition, family, cells, cell, test)
                    if self.has(f"{module.name}::{name}", module.path, name, now):
                        nodes.add(f"{module.name}::{name}")
        return frozenset(nodes)

    def _then(self, path: Path, name: str, now: str) -> str:
        """Return the entries of a cell at the commit. Empty if its tables had no such cell."""
        if not is_generated(path):
            return now  # the whole file is a fact of the cell
        if path not in self._definitions_then:
            self._definitions_then[path] = self._read_then(path)
        known = self._definitions_then[path]
        if not known:
            return now
        return known.get(name, "")

    def _read_then(self, path: Path) -> dict[str, str]:
        """Return the cells that a module had at the commit. Empty if it has not changed."""
        revision = self._comparison.revision
        place = Path(os.path.relpath(path.resolve(), revision.repository)).as_posix()
        if place not in self._changed:
            return {}
        # A module without cells is not empty here, since empty stands for "as it is now".
        text = revision.text(place)
        if text is None or not text.startswith(GENERATED.encode()):
            return {"": ""}
        return definitions_of(text, imported) or {"": ""}

    @cached_property
    def _changed(self) -> frozenset[str]:
        return self._comparison.revision.changed


# --- what the tables say of a cell ---------------------------------------------------------------


def is_generated(path: Path) -> bool:
    """Return whether a module has tables alone, so that its code is no fact of its cells."""
    with suppress(OSError), path.open("rb") as file:
        return file.readline().startswith(GENERATED.encode())
    return False


def family_of_table(module: object) -> Family:
    """Return the table of a generated module. Any other module has an empty one."""
    table = getattr(module, "FAMILY", None)
    return table if isinstance(table, Family) else Family("")


def definition(family: Family, cells: Cells, cell: Cell, test: Callable[..., object]) -> str:
    """Return a digest of all that the tables say of a cell: its row, axes, limit and known entries,
    and the code of its check.

    The line of ``matrix.yaml`` from which an entry comes is no part of it.
    """
    entries = {name: replace(entry, source=None) for name, entry in family.entries(cell).items()}
    code: CodeType = test.__code__
    parts = (
        family.name,
        cell.id,
        cell.axes,
        family.ops.get(cell.op),
        family.limit(cell.op, cells),
        sorted(entries.items()),
        code.co_code,
        code.co_consts,
        code.co_names,
    )
    return digest_of(repr(parts))


def definitions_of(text: bytes, execute: Callable[[Path], ModuleType]) -> dict[str, str]:
    """Return the definition of each cell that the text of a generated module has:
    ``test_vjp[torch.sin-float64]`` -> digest.

    ``execute`` imports a file. A text that is no module of this version has no cells.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.py"
        path.write_bytes(text)
        try:
            module = execute(path)
        except Exception:
            return {}
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family):
        return {}
    definitions: dict[str, str] = {}
    for name, test in vars(module).items():
        cells = cells_of(test)
        if cells is None:
            continue
        for cell in cells.at(TIERS[-1]):
            definitions[f"{name}[{cell.id}]"] = definition(family, cells, cell, test)
    return definitions
