"""Programs that rows of the matrix name: ops, modules and whole programs that the matrix tests like
ops of torch.

    - op: programs.boundaries.shown_twice

A module is a family of rows, such as ``writes``, ``exports`` or ``engines``. A row is a function of
tensors. What is right is beside it: a row that states its truth returns it with its results
(:func:`programs.tools.beside`), and ``reference`` has slow definitions of the others.
``third_party`` has ops and modules as another package would bring them, with references of their
own.

The rows import torch, and from the generator only what every target offers
(:mod:`gen.targets.parts`). Start with ``tools.py``.
"""
