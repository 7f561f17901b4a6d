"""Ops and modules as a third party would bring them, with references of their own.

``ops`` and ``library`` have functions and ops of ``torch.library``, ``functions`` custom autograd
Functions, ``modules`` whole layers. ``reference`` and ``module_references`` have slow loops of the
same. They import torch, and ``ops`` imports :mod:`runtime.extend` for a record. Start with
``ops.py``.
"""
