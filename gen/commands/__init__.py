"""Run the sub-commands of `python -m gen`, one module each.

Each has ``add_arguments(parser)`` and ``run(args)``, and is imported when it is called: see
``cli.py``. The commands import everything else and are imported by nobody. Start with
``listing.py``, a short one.
"""
