"""Find the cell of a pytest item, and the table of its module.

item = next(item for item in session.items if cell_of(item) is not None)
cell_of(item).id, family_of(item.module).name       # ("torch.sin-float64", "elementwise")
"""

from __future__ import annotations

from typing import Any

import pytest

from gen.checks.tables import Cell, Family, cells_of

__all__ = ["cell_of", "family_of", "is_without_cells", "module_of"]


def cell_of(item: pytest.Item) -> Cell | None:
    """Return the cell that an item runs. None for a test that is none of the matrix."""
    spec = getattr(item, "callspec", None)
    case = None if spec is None else spec.params.get("case")
    return case if isinstance(case, Cell) else None


def family_of(module: Any) -> Family:
    """Return the table of a generated module. A module without a table is a family with its file's
    name."""
    table = getattr(module, "FAMILY", None)
    # any module may have a name FAMILY
    if isinstance(table, Family):
        return table
    return Family(module.__name__.rpartition(".")[2].removeprefix("test_"))


def module_of(item: pytest.Item) -> Any:
    """Return the Python module that has the test of an item."""
    module = item.getparent(pytest.Module)
    assert module is not None
    return module.obj


def is_without_cells(item: pytest.Item) -> bool:
    """Return whether pytest made this item for a check without a cell at the tier.

    pytest makes one item, to be skipped, of a parametrized test without parameters.
    """
    spec = getattr(item, "callspec", None)
    return (
        spec is not None
        and cells_of(getattr(item, "function", None)) is not None
        and not isinstance(spec.params.get("case"), Cell)
    )
