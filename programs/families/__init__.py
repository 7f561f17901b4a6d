"""Rows of families of tensors and programs that torch's database of ops does not have.

    jagged.softmax_1(x, w, made="of_list", sizes=[3, 0, 2])      # by torch, with gradients
    jagged.softmax_1.by_definition(x, w, made=..., sizes=...)    # by a loop over dense tensors

A row is a :class:`~programs.families.tools.Row`: the program, and the same by its definition. Its
samples are those of its module. Their argument ``made`` is the word of the axis of this name. The
modules import torch and ``tools``. Start with ``tools.py``.
"""
