"""List the modules of a run and how many cells each of them has, without importing the generated
ones.

A generated module says on its second line how many cells it has at each tier: ``# Cells: smoke 12,
default 80, full 310.`` Any other module with a table is imported to count them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

from gen.checks.tables import TIERS, Cell, Cells, cells_of

__all__ = ["Module", "checks_of", "count_line", "find", "imported", "matrix_fingerprint", "tables"]

PATTERNS = ("test_*.py",)
_COUNTS = re.compile(r"# Cells: (?P<counts>[\w ,]+)\.")


@dataclass(frozen=True)
class Module:
    """A test module."""

    path: Path
    name: str
    # Its cells at each tier, with those of smaller tiers. Empty if it has no table.
    counts: Mapping[str, int]
    # Of its content.
    digest: str

    @property
    def family(self) -> str:
        return self.path.stem.removeprefix("test_")


def count_line(counts: Mapping[str, int]) -> str:
    """Return the line of a generated module that says how many cells it has at each tier."""
    return "# Cells: " + ", ".join(f"{tier} {count}" for tier, count in counts.items()) + "."


def find(arguments: Sequence[str], root: Path, patterns: Sequence[str] = PATTERNS) -> list[Module]:
    """Return the modules that pytest's arguments name, as files, folders or ids, in the order of
    their names."""
    # a dictionary, so that a module which two arguments name runs once
    paths: dict[Path, None] = {}
    for argument in arguments:
        path = (root / argument.partition("::")[0]).resolve()
        if path.is_dir():
            for file in path.rglob("*.py"):
                if any(fnmatch(file.name, pattern) for pattern in patterns):
                    paths[file] = None
        elif path.is_file():
            paths[path] = None
    return sorted((_module(path, root.resolve()) for path in paths), key=lambda module: module.name)


def _module(path: Path, root: Path) -> Module:
    data = path.read_bytes()
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
    return Module(path, name, _counts(path, data), hashlib.sha256(data).hexdigest())


def _counts(path: Path, data: bytes) -> dict[str, int]:
    """Return the cells of a module at each tier, from its second line or from its tables."""
    _, _, after_first = data.partition(b"\n")
    second, _, _ = after_first.partition(b"\n")
    counts_line = _COUNTS.fullmatch(second.decode("utf-8", "replace"))
    if counts_line is not None:
        pairs = map(str.split, counts_line["counts"].split(", "))
        return {tier: int(count) for tier, count in pairs}
    # only a module with a table is imported, as any other one may run anything
    if b"@cases(" not in data:
        return {}
    counts = dict.fromkeys(TIERS, 0)
    for _, cells in checks_of(imported(path)):
        for tier in TIERS:
            counts[tier] += len(list(cells.at(tier)))
    return counts


def matrix_fingerprint(modules: Sequence[Module]) -> str:
    """Return a digest of the modules' names and contents: equal on two machines exactly when they
    have the same matrix."""
    text = "\n".join(f"{module.name} {module.digest}" for module in modules)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def imported(path: Path) -> ModuleType:
    """Return the module of a file, imported under a name that nothing else has. Raises what the
    import raises."""
    name = f"matrix_module_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it runs. Afterwards nobody imports it by this name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def checks_of(module: object) -> Iterator[tuple[str, Cells]]:
    """Yield ``(name of the function, its table)`` for each check of an imported module."""
    for name, value in vars(module).items():
        if name.startswith("test_") and (cells := cells_of(value)) is not None:
            yield name, cells


def tables(module: object, tier: str) -> dict[str, list[Cell]]:
    """Return the cells of each check of an imported module at a tier."""
    return {name: list(cells.at(tier)) for name, cells in checks_of(module)}
