"""Records of the ops behind ``torch.nn``: convolution, normalization, attention, losses and their
like.

They import ``derive``, ``samples`` and ``record``. Start with ``convolution``.
"""
