"""A model of tensors: numbers in cells of memory, and nothing that a library computes.

    x = leaf(numbers(2, 3))             # six cells
    x[0].mul_(2.0)                      # three of them are other numbers now
    derivatives(total(x), x.numbers())

A tensor is a memory and a geometry, so a view has the cells of its base, and a write is seen by all
who share them. A number knows the numbers that it was computed from, with the slope by each. So
derivatives follow from the chain rule alone, to any order. There is no compiler, no version, no
graph of tensors. It is slow, and is written for tensors of a dozen elements.

``chain_rule`` has the numbers, ``cell_geometry`` shapes and places, ``stored_cells`` reading and
writing, ``view_methods`` and ``model_tensor`` the methods of a tensor. The package imports nothing
of this project. Start with ``model_tensor.py``.
"""
