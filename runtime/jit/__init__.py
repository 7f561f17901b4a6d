"""``jit``: capture a program once, with its Python state, and replay it. See ``docs/jit.md``.

``jitted`` holds the programs of one function, ``steps`` the programs that change Python's state:
gradients of leaves, optimizers, scalers. ``result_checks`` refuses what these may not leave behind.
``outside_calls`` has functions that are left out, ``check`` compares calls with eager runs,
``report`` has ``jit.explain``. The package imports ``aot`` and what lies below. Start with
``entry.py``, then ``jitted.py``. ``runtime.jit`` is the function itself; this package is behind
``from runtime.jit import …``.
"""

import importlib
from typing import TYPE_CHECKING

from .entry import jit

if TYPE_CHECKING:
    from .jitted import Jitted, JittedModule
    from .report import Report, explain, source

__all__ = ["Jitted", "JittedModule", "Report", "explain", "jit", "source"]

_MODULES = {
    "Jitted": "jitted",
    "JittedModule": "jitted",
    "Report": "report",
    "explain": "report",
    "source": "report",
}


def __getattr__(name: str) -> object:
    """Import a public name when somebody asks for it, so that ``import runtime`` is quick."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
