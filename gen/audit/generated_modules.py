"""Load and run generated modules without pytest: each check with its table and its family."""

from __future__ import annotations

import datetime
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path

from gen.checks.case import Case
from gen.checks.entries import Settings
from gen.checks.tables import Cell, Cells, Family, cells_of
from gen.language.pipeline import PipelineError, parse
from gen.run.cell_items import family_of
from gen.run.verdict import Verdict, attempt
from gen.targets.protocol import Target

__all__ = ["Check", "load_modules", "run_cell"]


@dataclass(frozen=True)
class Check:
    """One check of one generated module."""

    name: str
    file: str
    run: Callable[[Case], object]
    cells: Cells
    family: Family

    @cached_property
    def stages(self) -> frozenset[str]:
        """Return the stages of all pipelines in the check's body."""
        body = self.run.__code__
        all_stages: set[str] = set()
        # Pipelines are strings of the code. Other strings are no pipelines, and do not parse as
        # one.
        for text in body.co_consts:
            if isinstance(text, str) and text != inspect.getdoc(self.run):
                try:
                    all_stages.update(parse(text).stages)
                except PipelineError:
                    continue
        return frozenset(all_stages)


def load_modules(folder: Path) -> list[Check]:
    """Return every check of every `test_*.py` in `folder`, in the order of files and lines."""
    files = sorted(folder.glob("test_*.py"))
    if not files:
        raise FileNotFoundError(f"{folder}: no generated modules; run `python -m gen generate`")
    return [check for file in files for check in _checks(file)]


def _checks(file: Path) -> list[Check]:
    """Return the checks of one module, which is imported under a name of its own."""
    name = f"_matrix_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    family = family_of(module)
    checks = []
    for name, function in vars(module).items():
        cells = None
        if name.startswith("test_"):
            cells = cells_of(function)
        if cells is not None:
            check = name.removeprefix("test_")
            checks.append(Check(check, file.as_posix(), function, cells, family))
    return checks


def run_cell(target: Target, check: Check, cell: Cell, device: str) -> Verdict:
    """Return the verdict that a run of the matrix would give for the cell."""
    settings = _settings(target.name, device)
    entries_of_cell = check.family.entries(cell).items()
    entries = {name: entry for name, entry in entries_of_cell if entry.active(settings)}
    case = Case(cell, check.name, check.family, target, device, entries)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attempt(check.run, case, entries, settings.today)


@cache
def _settings(target: str, device: str) -> Settings:
    return Settings(target, device, version("torch"), datetime.date.today())


def eligible(
    checks: Iterable[Check], tier: str, in_stages: bool = True
) -> dict[str, tuple[Check, Cell]]:
    """Return the cells of a tier that can run a rule, by key. ``in_stages``: only those whose
    pipeline has a stage."""
    cells = {}
    for check in checks:
        if check.stages or not in_stages:
            for cell in check.cells.at(tier):
                cells[f"{check.file}::{check.name}[{cell.id}]"] = (check, cell)
    return cells
