"""Order the ways in which a cell fails, by how much harm they do to a user of the target.

A wrong value is the worst: nobody is told. An entry of the matrix that is out of date is the least:
nothing is wrong with the target. A table by class of error decides, never the text of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from gen.outcomes import (
    Crashed,
    ErrorMismatch,
    Mismatch,
    SamplesError,
    TimedOut,
    Unsuitable,
    Vacuous,
)

__all__ = [
    "Failed",
    "FailedSample",
    "Severity",
    "most_severe",
    "severity_of_error",
    "severity_of_row",
]


class FailedSample(Protocol):
    """The error of one sample of a cell. `asks_error`: the cell asks for an error."""

    @property
    def error(self) -> BaseException: ...

    @property
    def asks_error(self) -> bool: ...


class Severity(IntEnum):
    """How severe the failure of a cell is. The names in lower case are the words of results files
    and of ``--fail-on``.
    """

    STALE = 0
    UNASKED = 1
    REFUSED = 2
    SLOW = 3
    ERROR = 4
    CRASH = 5
    WRONG = 6

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]

    @classmethod
    def of_word(cls, word: str) -> Severity:
        """Return the severity of a word. Raises ValueError for a word that is none."""
        for severity in cls:
            if severity.word == word:
                return severity
        raise ValueError(f"{word!r} is not a severity")


_MEANINGS = {
    Severity.WRONG: "wrong value, without an error",
    Severity.CRASH: "crash of the process",
    Severity.ERROR: "wrong kind of error or text",
    Severity.SLOW: "slow, or timed out",
    Severity.REFUSED: "refused",
    Severity.UNASKED: "cannot be asked",
    Severity.STALE: "an entry of the matrix is out of date",
}
# The first class of an error's bases that stands here decides.
_BY_CLASS: dict[type[BaseException], Severity] = {
    ErrorMismatch: Severity.ERROR,
    Mismatch: Severity.WRONG,
    TimedOut: Severity.SLOW,
    Crashed: Severity.CRASH,
    Vacuous: Severity.UNASKED,
    Unsuitable: Severity.UNASKED,
    SamplesError: Severity.UNASKED,
    ImportError: Severity.UNASKED,
    RecursionError: Severity.ERROR,
    # torch and the runtime refuse by RuntimeError, of which NotImplementedError is one
    RuntimeError: Severity.REFUSED,
    BaseException: Severity.ERROR,
}
# What an outcome tells by itself: for rows of older files, and where no error has a class.
_BY_OUTCOME = {
    "vacuous": Severity.UNASKED,
    "xpassed": Severity.STALE,
    "failed": Severity.WRONG,  # it may be the worst
    "error": Severity.UNASKED,
    "timed out": Severity.SLOW,
    "crashed": Severity.CRASH,
}


@dataclass(frozen=True)
class Failed:
    """The failure of a cell, as its row in the results has it."""

    severity: Severity
    # The error without its numbers.
    cause: str = ""
    # The line of user code that raised it, if there is one.
    frame: str = ""
    # The expected and the actual value, in short.
    expected: str = ""
    actual: str = ""

    def facts(self) -> dict[str, object]:
        return {
            "severity": self.severity.word,
            "cause": self.cause,
            "frame": self.frame,
            "expected": self.expected,
            "actual": self.actual,
        }


def most_severe(failures: Sequence[FailedSample]) -> tuple[Severity, FailedSample | None]:
    """Return the most severe of some failures, with its severity. Without failures only an entry of
    the matrix can be at fault.
    """
    if not failures:
        return Severity.STALE, None
    worst = max(failures, key=_severity_of_failure)  # the first of several
    return _severity_of_failure(worst), worst


def severity_of_error(error: BaseException) -> Severity:
    """Return how severe an error of a target is, by its class."""
    return next(_BY_CLASS[cls] for cls in type(error).__mro__ if cls in _BY_CLASS)


def _severity_of_failure(failure: FailedSample) -> Severity:
    """Return how severe a failure is. A call that has to raise an error cannot be refused."""
    severity = severity_of_error(failure.error)
    if failure.asks_error and severity is Severity.REFUSED:
        return Severity.ERROR
    return severity


def severity_of_row(outcome: str, word: str) -> Severity | None:
    """Return how severe the failure of a row is. None if the cell did not fail.

    `word`: what the row says itself; empty if it says nothing.
    """
    if outcome not in _BY_OUTCOME:
        return None
    return Severity.of_word(word) if word else _BY_OUTCOME[outcome]
