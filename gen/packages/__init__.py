"""Find the functions of an installed package, try them, and write a project that tests them.

``package_scan`` imports the package and lists its functions. ``guesses`` makes arguments from
signatures, and ``trials`` runs ``sampled_calls`` with them. ``subprocesses`` does both in a process
of its own. ``project`` writes what works as rows, and what does not as comments. Start with
``package_scan.py``.
"""
