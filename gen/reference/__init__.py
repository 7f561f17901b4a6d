"""Compute right results: slow, obvious references, independent of every target.

They implement the methods of :class:`gen.targets.protocol.Target`, so the same code builds a
pipeline over a target and over a reference. :class:`gen.reference.loop.Loop` maps by a Python loop
and differentiates by ``plain_engine``, torch's reverse engine;
:class:`gen.reference.numeric.Numeric` takes the outermost derivative by central differences;
:class:`gen.reference.exact.Exact` has exact derivatives of scalar functions, from the definitions
in ``scalars``. The package imports no target. Start with ``loop.py``.
"""

from gen.reference.loop import Loop
from gen.reference.numeric import Numeric

__all__ = ["Loop", "Numeric"]
