"""Say what a generated module states of a cell, in a form that two versions of it share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType

from gen.checks.tables import TIERS, Cell, Cells, Family, cells_of
from gen.dependencies.source_units import digest_of

__all__ = ["definition", "definitions_of"]


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
    found: dict[str, str] = {}
    for name, test in vars(module).items():
        cells = cells_of(test)
        for cell in () if cells is None else cells.at(TIERS[-1]):
            assert cells is not None
            found[f"{name}[{cell.id}]"] = definition(family, cells, cell, test)
    return found
