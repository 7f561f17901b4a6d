"""Store cuts of joint graphs on disk: a later process with the same program does not search for
them again.

``key`` says what a cut depends on, ``store`` reads and writes files, ``cuts`` brings both together.
The package imports ``capture`` and ``partition``. Start with ``cuts.py``.
"""
