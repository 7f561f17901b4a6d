"""Register the ops that combine the elements along a dimension, or put them in order.

They import ``derive``, ``record`` and ``elementwise.overflow_safe``. Start with ``reductions``;
``norms`` has norms and distances, ``cumulative`` the sums that keep every step, ``softmax`` the
normalized exponentials.
"""
