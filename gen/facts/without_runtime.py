"""Load the modules of ``runtime.facts``, for a torch on which ``import runtime`` may fail.

They need torch alone, but ``from runtime.facts import lock`` runs the whole of ``runtime``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["derivatives", "lock"]

_FOLDER = Path(__file__).parents[2] / "runtime" / "facts"


def _module(name: str) -> ModuleType:
    """Return the module in that file, outside of its package."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", _FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from runtime.facts import derivatives, lock
else:
    derivatives, lock = _module("derivatives"), _module("lock")
