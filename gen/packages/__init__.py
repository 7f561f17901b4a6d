"""Find the functions of an installed package, try them, and write a project that tests them.

``scan`` imports the package and lists its functions. ``guesses`` makes arguments from signatures,
and ``trials`` makes each ``call`` with them. ``worker`` does both in a process of its own, which
``session`` starts, reads and ends. ``project`` writes what works as rows, and what does not as
comments. Start with ``scan.py``.
"""
