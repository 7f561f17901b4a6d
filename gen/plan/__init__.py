"""Expand a matrix: which cells it has, and in which tier.

``matrix_ops`` finds the ops of a matrix in ``catalog``, the facts of torch's OpInfo database.
``cell_sets`` has the data: columns, entries, tiers and the cells of each op as bits. ``expand``
multiplies ops, checks, dtypes and axes. ``tier_cells`` chooses the cells of each tier, and
``reduce`` keeps fewer cells that still cover every t-tuple. ``matrix_plan`` does all of this for a
command. The package imports ``language`` and ``samples``. Start with ``expand.py``.
"""
