"""Generate pytest modules from matrix.yaml, and offer what those modules import.

``language``, ``plan`` and ``write`` turn YAML into modules. ``checks`` is what a cell asserts, on
``samples``, between ``targets`` and ``reference``. ``run`` is the pytest plug-in: it chooses,
isolates and records cells. ``scripts``, ``soak``, ``audit``, ``cluster`` and ``report`` each have
one use of a run. ``commands`` has one module per sub-command. ``errors``, ``files``, ``outcomes``
and ``versions`` are for all of them. Start with ``cli.py``.
"""
