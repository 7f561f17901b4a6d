"""``jit``: capture once, run everything. See ``docs/jit.md``."""

from .entry import jit
from .jitted import Jitted, JittedModule
from .report import Report, explain, source

__all__ = ["Jitted", "JittedModule", "Report", "explain", "jit", "source"]
