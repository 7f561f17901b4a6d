"""Run one cell of the matrix: `Case.assert_same` is its only action.

``case`` runs the samples, and ``claim`` is what it asserts. ``preconditions`` says what ends a case
before any sample is drawn, ``chosen_samples`` on which samples it runs, ``evidence`` whether they
have shown anything. ``documented_errors`` has the calls that are to raise. ``comparisons`` is for
tools that show what a case compares. The package imports checks that compare, and samples. Start
with ``case.py``.
"""

from __future__ import annotations

from gen.checks.case.case import Case, SampleFailure
from gen.checks.case.claim import Claim

__all__ = ["Case", "Claim", "SampleFailure"]
