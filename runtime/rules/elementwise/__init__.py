"""Records of ops that compute each element apart.

They import ``derive``, ``record`` and the small numerical helpers ``series`` and ``overflow_safe``.
Start with ``pointwise``.
"""
