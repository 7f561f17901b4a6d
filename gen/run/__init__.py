"""Run cells: choose, isolate, judge and record them.

``plugin`` is the pytest plug-in, ``run_cell`` what running one cell means for everybody.
``execution`` and ``isolation`` give it a process that may die. ``verdict`` matches failures with
the expected ones. ``shard`` and ``shard_plugin`` take a part of a run, ``recorder`` and ``results``
write and read the results file, and ``earlier_runs`` keeps those of the runs before.
``since_plugin`` leaves out the cells that a change cannot affect, which ``unaffected`` tells.
``earlier_results`` goes on with a run or compares with one, and ``progress`` says how far a run is.
``run_options`` has the options of pytest. ``severity`` orders failures, and ``failure_groups``
groups them by cause. ``project_defaults`` reads the defaults that a project states in its
matrix.yaml. The package imports ``checks``,
``dependencies``, ``scripts`` and ``targets``. Start with ``plugin.py``.
"""
