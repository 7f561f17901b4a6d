"""Register the ops behind ``torch.nn``: convolution, normalization, attention, losses and similar
ops.

They import ``derive``, ``samples`` and ``record``. Start with ``convolution``.
"""
