"""Run cells: choose, isolate, judge and record them.

``plugin`` is the pytest plug-in, and ``matrix_run`` the settings of a run. ``cell_items`` finds the
cell of a test, and ``run_cell`` is what running one means for everybody. ``execution`` and
``isolation`` give it a process that may die. ``selection`` takes a part of the cells. ``verdict``
matches failures with the expected ones, and ``failure_report`` says what failed. ``recorder`` and
``results`` write and read the results file, and ``earlier_runs`` keeps those of the runs before.
``earlier_results`` goes on with a run or compares with one, and ``progress`` says how far a run is.
``run_options`` has the options of pytest. ``failure_groups`` groups failures by cause.
``project_defaults`` reads the defaults that a project states in its matrix.yaml. The package
imports ``checks``, ``dependencies``, ``scripts`` and ``targets``. Start with ``plugin.py``.
"""
