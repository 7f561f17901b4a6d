"""What generated modules import: the tables they are written in.

Kept light on purpose: nothing here imports torch, so loading the pytest plug-in costs a run of unrelated tests nothing.
"""

from gen.checks.tables import cases, family, known, op

__all__ = ["cases", "family", "known", "op"]
