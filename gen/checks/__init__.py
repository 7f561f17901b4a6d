"""Assert what a cell claims, and define the tables of generated modules.

``tables`` and ``entries`` are the vocabulary of generated modules. ``case`` is one cell: its
samples (see :mod:`gen.samples`), each as the programs that ``instances`` lists, built by
``pipelines`` and ``program_stages``. ``comparison`` runs a program over target and reference,
``compare`` and ``compare_*`` decide whether results agree. ``forms`` has the ways to call an op.
The package imports ``samples``, ``reference``, ``targets`` and ``language``. How a cell is run and
recorded is in :mod:`gen.run`. Start with ``case``.

Nothing that this module imports needs torch, so the pytest plug-in does not slow down a run of
unrelated tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gen.checks.tables import Cell, Family, Known, TableError, cases, family, known, op

if TYPE_CHECKING:  # which imports torch
    from gen.checks.case import Case

__all__ = ["Case", "Cell", "Family", "Known", "TableError", "cases", "family", "known", "op"]


def __getattr__(name: str) -> object:
    """Import `Case` when somebody asks for it: it is the argument of a check, and needs torch."""
    if name != "Case":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gen.checks.case import Case

    return Case
