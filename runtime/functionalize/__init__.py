"""Run a program with writes and views as one without any write.

``x[0].add_(1)`` becomes a new ``x``. ``functional_level`` handles the calls of values that
``store_level`` makes and reads, ``stores`` says which memory a value shows, ``writes`` turns a
write into a functional op: through a view, to ``out=``, to a tensor from outside. ``overlap`` and
``memory_order`` know strides. ``transform`` is the front door, which users call as
``runtime.func.functionalize``. The package imports ``trace``, for the user's line, ``tape``,
``rules`` and ``seam``. Start with ``functional_level.py``.
"""
