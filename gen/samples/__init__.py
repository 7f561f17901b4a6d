"""Make and choose the inputs on which a cell runs.

``choice`` decides how many samples a cell gets, how large, and which. ``samples`` has the class,
and the store of all samples of a row. They come from ``opinfo``, torch's database, from
``descriptions`` in matrix.yaml, or from ``points``, where formulas divide by zero or overflow.
``seeds`` makes draws repeatable. The package imports ``reference``, ``targets.protocol`` and
``language.pipeline``. Start with ``choice.py``.
"""
