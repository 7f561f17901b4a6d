"""What generated modules import: the tables they are written in.

Nothing here imports torch, so the pytest plug-in does not slow down a run of unrelated tests.
"""

from gen.checks.tables import cases, family, known, op

__all__ = ["cases", "family", "known", "op"]
