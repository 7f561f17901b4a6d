"""Expand a matrix: which cells it has, and in which tier.

``matrix_ops`` finds the ops of a matrix in ``catalog``, the facts of torch's OpInfo database.
``expand`` multiplies ops, checks, dtypes and axes, ``reduce`` keeps fewer cells that still cover
every t-tuple. ``matrix_plan`` does all of this for a command. The package imports ``language`` and
``samples``. Start with ``expand.py``.
"""
