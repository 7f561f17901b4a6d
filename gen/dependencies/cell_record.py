"""Keep what each cell depends on, and say which cells are as they were at a commit.

The record of a target is ``.cache/matrix/dependencies-torch-cpu.json``. It has facts, such as
``["sketch/ops.py", "soft_clip", "1f0c…"]``: the function had this digest when a cell ran it. Of
each cell it has its outcome and the numbers of its facts. A cell is as it was if each of its facts
holds of the files as they are now, and of those of the commit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gen.dependencies.process_trace import FOLDER, MODULES, CellTrace
from gen.dependencies.revision import Revision, files_now
from gen.dependencies.source_units import WHOLE, digest_of, units_of
from gen.files import replace

__all__ = ["CellRecord", "Fact", "Files", "Record", "stale_facts", "unreadable_changes"]

_FORMAT = 1
Fact = tuple[str, str, str]
"""A path, a unit of it, and the digest of the unit."""
_NOTHING = ""  # the digest of what is not there

_TEXTS = (".css", ".html", ".ipynb", ".js", ".md", ".png", ".rst", ".svg", ".tex", ".txt", ".typed")
_DATA = (".cfg", ".csv", ".gitignore", ".ini", ".json", ".jsonl", ".lock", ".toml", ".yaml", ".yml")
_READ_AS_FACTS = frozenset((*_TEXTS, *_DATA, ".j2", ".py", ".pyi"))
"""Files that act by being run or opened in Python, so that the facts of a cell have them."""
_IMPORTED = (".py", ".so", ".pyd")
_BUILD = frozenset(("setup.py", "setup.cfg", "pyproject.toml"))


@dataclass(frozen=True)
class CellRecord:
    """What is known of a cell from its last run with a trace."""

    definition: str  # digest of what the tables say of it
    environment: str  # digest of the versions
    outcome: str
    facts: tuple[int, ...]  # numbers of facts of the record


@dataclass
class Record:
    """The cells of a target by pytest id, and the facts that they share."""

    facts: list[Fact] = field(default_factory=list)
    cells: dict[str, CellRecord] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Return the record of a file. Without a readable one: of no cell."""
        try:
            data = json.loads(path.read_text("utf-8"))
            if data["format"] != _FORMAT:
                return cls()
            facts: list[Fact] = []
            for place, unit, digest in data["facts"]:
                facts.append((str(place), str(unit), str(digest)))
            cells = {}
            for node, (definition, environment, outcome, numbers) in data["cells"].items():
                cells[node] = CellRecord(definition, environment, outcome, tuple(numbers))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()
        return cls(facts, cells)

    def write(self, path: Path) -> None:
        """Write the file, without facts that no cell has. Raises OSError."""
        # Without the facts that no cell has, the others get new numbers: their places.
        used = sorted({number for cell in self.cells.values() for number in cell.facts})
        places = {number: place for place, number in enumerate(used)}
        cells = {}
        for node, cell in self.cells.items():
            numbers = [places[number] for number in cell.facts]
            cells[node] = (cell.definition, cell.environment, cell.outcome, numbers)
        facts = [self.facts[number] for number in used]
        data = {"format": _FORMAT, "facts": facts, "cells": cells}
        replace(path, json.dumps(data, separators=(",", ":")))


class Files:
    """The digests of files and their units, as they are now.

    ``began`` is when the run began. A file that has changed since then has no digest, since nobody
    knows which of its versions has run.
    """

    def __init__(self, repository: Path, began: float | None = None) -> None:
        self._repository = repository
        self._began = began
        self._units: dict[str, dict[str, str] | None] = {}
        self._folders: _Folders | None = None

    def facts_of(self, trace: CellTrace) -> list[Fact] | None:
        """Return the facts of a cell. None if they are not known in full."""
        facts: list[Fact] = []
        for path, units in trace.units.items():
            place = self._name(path)
            # git knows the names in folders of the repository alone
            is_outside = os.path.isabs(place)
            for unit in units:
                if is_outside and unit in (FOLDER, MODULES):
                    continue
                digest = self.digest(place, unit)
                if digest is None:
                    return None
                facts.append((place, unit, digest))
        return facts

    def digest(self, place: str, unit: str) -> str | None:
        """Return the digest of a unit. Empty if it is not there, None if nobody knows."""
        if unit in (FOLDER, MODULES):
            if self._folders is None:
                self._folders = _Folders(files_now(self._repository))
            return self._folders.digest(place, unit)
        units = self._units_of(place)
        if units is None:
            return None
        # A file with a mistake has the unit `WHOLE` alone. A unit that the file has not is of code
        # that a program has made from text, with the name of this file.
        return units.get(unit, units.get(WHOLE, _NOTHING))

    def _name(self, path: str) -> str:
        """Return a path as the repository has it. Absolute for a file outside of it."""
        place = os.path.realpath(path)
        inside = os.path.relpath(place, self._repository)
        return place if inside.startswith(os.pardir) else Path(inside).as_posix()

    def _units_of(self, place: str) -> dict[str, str] | None:
        if place not in self._units:
            self._units[place] = self._read(self._repository / place)
        return self._units[place]

    def _read(self, path: Path) -> dict[str, str] | None:
        try:
            if self._began is not None and path.stat().st_mtime >= self._began:
                return None
            return _units(path.name, path.read_bytes())
        except OSError:
            return {}


def stale_facts(facts: Iterable[Fact], revision: Revision) -> frozenset[int]:
    """Return the numbers of the facts that do not hold both now and at a commit.

    Of a file outside of the repository the commit says nothing, so it is compared as it is now.
    """
    now = Files(revision.repository)
    then = _FilesThen(revision)
    stale = set()
    for number, (place, unit, digest) in enumerate(facts):
        if not digest == now.digest(place, unit) == then.digest(place, unit, now):
            stale.add(number)
    return frozenset(stale)


class _FilesThen:
    """The digests of files and their units at a commit."""

    def __init__(self, revision: Revision) -> None:
        self._revision = revision
        self._units: dict[str, dict[str, str]] = {}
        self._folders: _Folders | None = None

    def digest(self, place: str, unit: str, now: Files) -> str | None:
        """Return the digest of a unit at the commit. git is asked of changed files alone."""
        if unit in (FOLDER, MODULES):
            if self._folders is None:
                self._folders = _Folders(self._revision.files)
            return self._folders.digest(place, unit)
        if place not in self._revision.changed:
            return now.digest(place, unit)
        if place not in self._units:
            text = self._revision.text(place)
            self._units[place] = {} if text is None else _units(place, text)
        units = self._units[place]
        return units.get(unit, units.get(WHOLE, _NOTHING))


def unreadable_changes(revision: Revision) -> list[str]:
    """Return the changed files of which no fact can say whom they affect, in order.

    A source of compiled code is one, since nobody sees which library is built from it. So is what
    says how a package is built, and any file whose kind is not known.
    """
    return sorted(path for path in revision.changed if not _is_read_as_fact(path))


def _is_read_as_fact(path: str) -> bool:
    name = path.rpartition("/")[2]
    if name in _BUILD:
        return False
    suffix = Path(name).suffix or name
    return suffix in _READ_AS_FACTS or name in ("LICENSE", "CODEOWNERS")


def _units(name: str, text: bytes) -> dict[str, str]:
    """Return the units of a file. One that is no Python has one unit."""
    return units_of(text) if name.endswith(".py") else {WHOLE: digest_of(text)}


class _Folders:
    """The names in each folder, of files and of folders."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._files: dict[str, set[str]] = {}
        self._folders: dict[str, set[str]] = {}
        for path in paths:
            above, _, name = path.rpartition("/")
            self._files.setdefault(above or ".", set()).add(name)
            while above:
                above, _, name = above.rpartition("/")
                self._folders.setdefault(above or ".", set()).add(name)

    def digest(self, place: str, unit: str) -> str:
        """Return a digest of the names in a folder: all, or those that an import may take."""
        files = self._files.get(place, set())
        if unit == MODULES:
            files = {name for name in files if name.endswith(_IMPORTED)}
        return digest_of("\0".join(sorted(files | self._folders.get(place, set()))))


def added(record: Record, new: Mapping[str, tuple[CellRecord, list[Fact]]]) -> Record:
    """Return a record with the cells of a run in place of what it had of them.

    `new` has the record of each cell and its facts, which get their numbers here. Cells that did
    not run stay as they are, since their facts say whether they still hold.
    """
    numbers = {fact: number for number, fact in enumerate(record.facts)}
    cells = dict(record.cells)
    for node, (cell, facts) in new.items():
        of_cell = tuple(numbers.setdefault(fact, len(numbers)) for fact in facts)
        cells[node] = CellRecord(cell.definition, cell.environment, cell.outcome, of_cell)
    return Record(list(numbers), cells)
