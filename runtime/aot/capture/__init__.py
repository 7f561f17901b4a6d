"""Capture a program and its backward pass as one joint graph, and describe its boundary.

``joint`` runs the program under three levels: trace, functionalize, grad. ``boundary`` describes
what the program does to each argument and where each result comes from. ``primals`` and
``outputs`` determine that. ``pullback`` captures a backward pass of its own, for second
derivatives. The package imports ``control_flow`` and ``python_state``, and no other room of
``aot``. Start with ``joint.py``.
"""
