"""Register ops on other kinds of tensors, and those that the transforms themselves call.

``core`` has sums, factories and copies. ``nested``, ``sparse`` and ``foreach`` have nested tensors,
sparse ones and lists. ``reading`` has the ops that return a Python number. They import ``derive``,
``record`` and the other rooms of records. Start with ``core``.
"""
