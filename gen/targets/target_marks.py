"""Mark when the target runs, for whoever counts what it calls.

    with target_runs():
        results = function(*inputs)

A mark costs nothing unless :func:`mark_with` has asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

__all__ = ["mark_with", "target_runs"]

Mark = Callable[[], AbstractContextManager[object]]


class _Marks:
    """Hold the mark of this process."""

    mark: Mark = nullcontext


def mark_with(mark: Mark) -> None:
    """Let `mark` make the context around each run of the target in this process."""
    _Marks.mark = staticmethod(mark)


def target_runs() -> AbstractContextManager[object]:
    """Return the context in which a check calls the target."""
    return _Marks.mark()
