"""Provide control flow by the value of a tensor, under transforms and in graphs.

``conditions``, ``loops`` and ``scans`` have ``cond``, ``while_loop``, and ``map`` and ``scan``,
each with its derivative and its batch. ``associative_scans`` has ``associative_scan``. ``branches``
captures a branch or a body as a graph of its own. ``torch_operators`` brings torch's own operators
of higher order here. The package imports ``python_state``, and no other room of ``aot``. Start with
``conditions.py``.
"""
