"""Assert what a cell claims, and define the tables of generated modules.

``tables`` and ``entries`` are the vocabulary of generated modules. ``case`` is one cell: its
samples (see :mod:`gen.samples`), each as the programs that ``instances`` lists, built by
``pipelines`` and ``program_stages``. ``evaluate`` runs a program over target and reference,
``compare`` and ``compare_*`` decide whether results agree. ``forms`` has the ways to call an op.
The package imports ``samples``, ``reference``, ``targets`` and ``language``. How a cell is run and
recorded is in :mod:`gen.run`. Start with ``case.py``.

Nothing that this module imports needs torch, so the pytest plug-in does not slow down a run of
unrelated tests.
"""

from gen.checks.tables import cases, family, known, op

__all__ = ["cases", "family", "known", "op"]
