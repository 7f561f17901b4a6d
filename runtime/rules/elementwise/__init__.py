"""Register the ops that compute each element on its own.

They import ``derive``, ``record`` and the small numerical helpers ``series`` and ``overflow_safe``.
Start with ``pointwise``.
"""
