"""Errors that name what to do next."""

from __future__ import annotations


class MissingRule(NotImplementedError):
    """An op lacks the rule that a transform asked for; the message names the op, the rule and where to add it."""

    def __init__(self, op: str, rule: str, hint: str = "") -> None:
        super().__init__(f"{op} has no {rule} rule; add one to its record in runtime/rules/ (docs/runtime.md shows how){hint}")
        self.op = op
        self.rule = rule


class EscapedValue(RuntimeError):
    """A value was used after the transform that made it had returned."""


class BatchingError(RuntimeError):
    """A function does something under vmap that has no meaning for a whole batch."""


class InplaceError(RuntimeError):
    """A mutation that cannot be tracked correctly; raised instead of computing wrong gradients."""
