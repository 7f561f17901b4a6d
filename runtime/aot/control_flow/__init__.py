"""Control flow by the value of a tensor: functions that are captured apart, and operators that take
them.

``conditions``, ``loops`` and ``scans`` have ``cond``, ``while_loop``, and ``map``, ``scan``,
``associative_scan``, each with its derivative and its batch. ``branches`` captures the function
apart. ``torch_operators`` brings torch's own operators of higher order here. The package imports
``python_state``, and no other room of ``aot``. Start with ``conditions.py``.
"""
