"""Note which of the target's rules a cell runs, for the report: a rule that no cell runs is one
that the matrix does not test.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gen.targets.faults import Auditable, Watch
    from gen.targets.protocol import Target

__all__ = ["RulesRun"]


class RulesRun:
    """Note the rules that run in this process, from when the target is loaded until the process
    ends.
    """

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._stack = ExitStack()

    def watch(self, name: str, target: Target) -> None:
        """Begin to note the rules of `target`. Raises UsageError if it offers none."""
        self._watch = self._stack.enter_context(_auditable(name, target).watched(kinds=False))

    def taken(self) -> tuple[str, ...]:
        """Return the rules that ran since the last call, by name."""
        if self._watch is None:
            return ()
        return tuple(sorted(self._watch.taken()))

    @staticmethod
    def of(name: str, target: Target) -> list[str]:
        """Return all rules of `target`, by name. Raises UsageError if it offers none."""
        return [rule.name for rule in _auditable(name, target).rules()]


def _auditable(name: str, target: Target) -> Auditable:
    """Return the target as one that shows its rules. Raises UsageError if it does not."""
    from gen.targets.faults import Auditable

    if not isinstance(target, Auditable):
        raise pytest.UsageError(
            f"--rules: target {name} offers no rules; see Auditable in gen/targets/faults.py"
        )
    return target
