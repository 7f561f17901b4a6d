"""Run cells on many machines: `gen run --cluster`.

A ``coordinator`` hands out groups of cells (``cell_groups``), receives what came of them and writes
one results file (``output``). It knows of a pool only that groups go in and answers come out;
``dask_pool`` is such a pool. A Dask worker gives a group to a process that runs cells
(``serving``), and each cell runs in a fork of that process, as under pytest. The package imports
``run``. Start with ``coordinator.py``.
"""
