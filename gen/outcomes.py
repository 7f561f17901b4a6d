"""Define exceptions for the outcomes of a comparison that does not pass."""

from __future__ import annotations

import re

__all__ = [
    "Crashed",
    "ErrorMismatch",
    "Lacking",
    "Mismatch",
    "SamplesError",
    "TimedOut",
    "Uncovered",
    "Unsuitable",
    "Vacuous",
    "refuse_fault",
    "stable_part",
]


class Mismatch(AssertionError):
    """Target and reference differ. The message says where and by how much."""

    def __init__(
        self, message: str, *, expected: str = "", actual: str = "", cause: str = ""
    ) -> None:
        super().__init__(message)
        # Both values as texts, for a reader who wants them side by side. They are empty if the
        # difference is not one of two values.
        self.expected = expected
        self.actual = actual
        # What is wrong with the op, where mismatches of several programs have one cause. If it is
        # empty, the message tells.
        self.cause = cause

    def reworded(self, message: str, cause: str = "") -> Mismatch:
        """Return a mismatch of the same values with another message."""
        return Mismatch(
            message, expected=self.expected, actual=self.actual, cause=cause or self.cause
        )


class ErrorMismatch(Mismatch):
    """The target raises an error of another kind or text than it has to. No value is wrong."""


_FAULT = "INTERNAL ASSERT FAILED"


def refuse_fault(error: BaseException) -> None:
    """Raise ErrorMismatch if an error says that torch is at fault. Then it refuses nothing: an
    assertion of torch's own has failed, and torch asks for a report.
    """
    text = str(error)
    if _FAULT in text:
        first = text.strip().splitlines()[0]
        raise ErrorMismatch(
            f"an assertion of torch's own fails: {first[:200]}",
            expected="a result, or an error that says what is wrong with the call",
            actual=f"{type(error).__name__}: {first}",
        ) from error


class Vacuous(AssertionError):
    """Nothing was compared, or only zeros with zeros. The message says why."""


class Lacking(Exception):
    """The target lacks a stage of the pipeline, or the meta device lacks a value that the op needs.
    The message says which."""


class Uncovered(Exception):
    """The device ran an op of the case elsewhere, so what passed says nothing about the device. The
    message names the op."""


class Unsuitable(Exception):
    """The check cannot use one sample, or one in_dims pattern of it. A case is vacuous if this
    holds for all samples."""


class SamplesError(ValueError):
    """What a matrix names as the samples of an op gives none. The message says what it gives."""


class Crashed(Exception):
    """The process of a cell died. The message names the signal or exit status. `stack` says where
    Python was, if that is known."""

    outcome = "crashed"

    def __init__(self, message: str, stack: str = "") -> None:
        super().__init__(message)
        self.stack = stack


class TimedOut(Crashed):
    """A cell took longer than its limit, and its process was ended."""

    outcome = "timed out"


def stable_part(error: BaseException) -> str:
    """Return the part of a message that is the same in every sample: without values, sizes and
    names.
    """
    lines = str(error).strip().splitlines() or [""]
    first = lines[0]
    if isinstance(error, Mismatch) and "largest error" in first:
        return "largest error"
    # numbers, lists, brackets and quotations are of one sample
    parts = re.split(r"\d[\w.]*|0x\w+|\[[^\]]*\]|\([^)]*\)|'[^']*'|\"[^\"]*\"", first)
    return max((part.strip(" :;,.") for part in parts), key=len, default="")[:80]
