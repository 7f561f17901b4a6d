"""``jit``: capture once, run everything. See ``docs/jit.md``."""

from .jitted import Jitted, JittedModule, jit
from .report import Report, explain, source

__all__ = ["Jitted", "JittedModule", "Report", "explain", "jit", "source"]
