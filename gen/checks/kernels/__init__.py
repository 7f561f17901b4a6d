"""Call kernels of torch's dispatcher by their own names with wrong arguments, in processes that may
die of it.

    kernels.assert_no_faults(target, sample, tally)

``right_calls.jsonl`` has right calls of the overloads of ATen, a line for each overload.
``wrong_arguments.py`` makes wrong calls of them by the kinds of arguments in the schema,
``kernel_calls.py`` says what a call does that none may do, and ``dying_calls.py`` survives it. The
package imports samples and private names of torch. Start with ``asked_kernels.py``.
"""

from gen.checks.kernels.asked_kernels import RIGHT_CALLS, assert_no_faults, recorded

__all__ = ["RIGHT_CALLS", "assert_no_faults", "recorded"]
