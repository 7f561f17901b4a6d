"""``jit``: capture a program once, with its Python state, and replay it. See ``docs/jit.md``.

``jitted`` holds the programs of one function, ``steps`` the programs that change Python's state:
gradients of leaves, optimizers, scalers. ``report`` has ``jit.explain``. The package imports
``aot`` and what lies below. Start with ``entry.py``, then ``jitted.py``. ``runtime.jit`` is the
function itself; this package is behind ``from runtime.jit import …``.
"""

from .entry import jit
from .jitted import Jitted, JittedModule
from .report import Report, explain, source

__all__ = ["Jitted", "JittedModule", "Report", "explain", "jit", "source"]
