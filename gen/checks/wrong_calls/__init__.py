"""Make calls that may be wrong, and assert that a target refuses what the plain op refuses.

``calls.py`` makes them: mixed dtypes, other ranks, a wrong ``out=``.
``other_arguments.py`` replaces arguments that are no tensors. ``ways_to_call.py`` runs a call by
the other ways into an op, and ``agreement.py`` compares who takes which. ``neighbours.py`` asks
whether a call that is taken keeps to the memory of its arguments. The package imports checks that
compare, and samples. Start with ``calls.py``.
"""

from gen.checks.wrong_calls.agreement import assert_same_numbers, assert_same_refusals
from gen.checks.wrong_calls.neighbours import assert_memory_kept

__all__ = ["assert_memory_kept", "assert_same_numbers", "assert_same_refusals"]
