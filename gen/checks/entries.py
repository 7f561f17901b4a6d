"""Declare with `known(…)` one expected deviation, with its reason and conditions.

known("xfail", torch="<2.14", raises="RuntimeError", match="not implemented", reason="a bug")
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gen.versions import is_for_version

__all__ = ["KINDS", "Known", "Settings", "TableError", "known"]

KINDS = ("xfail", "skip", "vanishes", "tolerance")


class TableError(ValueError):
    """Raised if a table of a generated or hand-written module has a mistake."""


@cache
def _cpu() -> str:
    """Return the instructions for which torch chooses its kernels, such as AVX2."""
    import torch  # here, because to read a table needs no torch

    return str(torch.backends.cpu.get_cpu_capability())


@dataclass(frozen=True, slots=True)
class Settings:
    """The facts of a run against which the conditions of entries are evaluated."""

    target: str  # name, such as "runtime"
    device: str  # as torch.device reads it: "cpu", "cuda:1"
    torch: str  # version
    today: datetime.date
    cpu: str = field(default_factory=_cpu)


@dataclass(frozen=True, slots=True)
class Known:
    """An entry of the ledger: what a cell is expected to do, and under which conditions."""

    kind: str  # one of KINDS
    reason: str
    # Conditions. None always matches. Patterns are those of fnmatch.
    target: str | None = None  # pattern
    device: str | None = None  # pattern, without an index
    torch: str | None = None  # versions, such as "<2.14"
    cpu: str | None = None  # pattern, such as "AVX512"
    # The exception that an xfail expects.
    raises: str | None = None  # name of the class or of a base class, plain or with its module
    match: str | None = None  # regular expression, searched in the message
    link: str | None = None
    until: str | None = None  # the last day on which the entry holds, such as "2027-01-31"
    source: str | None = None  # the line of matrix.yaml that it was generated from
    # The bounds of a tolerance.
    rtol: float | None = None
    atol: float | None = None

    def active(self, settings: Settings) -> bool:
        """Return whether the target, device, torch version and CPU of a run match the entry."""
        pairs = (
            (settings.target, self.target),
            (settings.device.split(":")[0], self.device),
            (settings.cpu, self.cpu),
        )
        for value, pattern in pairs:
            if pattern is not None and not fnmatchcase(value, pattern):
                return False
        return self.torch is None or is_for_version(self.torch, settings.torch)

    def expired(self, today: datetime.date) -> bool:
        """Return whether its last day is over."""
        return self.until is not None and today > datetime.date.fromisoformat(self.until)

    def expects(self, error: BaseException) -> bool:
        """Return whether `error` is the exception that this xfail expects.

        `raises` is compared with each class of it, base classes included.
        """
        classes = type(error).__mro__
        plain_names = {cls.__name__ for cls in classes}
        full_names = {f"{cls.__module__}.{cls.__qualname__}" for cls in classes}
        if self.raises not in plain_names | full_names:
            return False
        return self.match is None or re.search(self.match, str(error)) is not None

    def expectation(self) -> str:
        """Return the exception that this xfail expects, as text: `ValueError('too large')`."""
        if self.match is None:
            return str(self.raises)
        return f"{self.raises}({self.match!r})"

    def where(self) -> str:
        """Return the reason and the source line of the entry, for a person who looks for it."""
        if not self.source:
            return f"«{self.reason}»"
        return f"«{self.reason}» ({self.source})"


def known(
    kind: str,
    *,
    target: str | None = None,
    device: str | None = None,
    torch: str | None = None,
    cpu: str | None = None,
    raises: str | None = None,
    match: str | None = None,
    reason: str,
    link: str | None = None,
    until: str | None = None,
    source: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Known:
    """Return one entry of a module's `known` table. The arguments are the fields of `Known`.

    Raises TableError if they do not go together. The error lists every mistake at once.
    """
    entry = Known(
        kind, reason, target, device, torch, cpu, raises, match, link, until, source, rtol, atol
    )
    mistakes = [*_contradictions(entry), *_unreadable_fields(entry)]
    if mistakes:
        raise TableError(f"known({kind!r}, reason={reason!r}): " + "; ".join(mistakes))
    return entry


def _contradictions(entry: Known) -> Iterator[str]:
    """Find what is lacking, and fields that do not go with the kind of the entry."""
    if entry.kind not in KINDS:
        yield f"kind must be one of {', '.join(KINDS)}"
    if not entry.reason.strip():
        yield "a reason is needed"
    if entry.kind == "xfail":
        if not entry.raises:
            yield "an xfail names the exception it expects (raises=)"
    elif entry.raises or entry.match is not None:
        yield "only an xfail takes raises= and match="
    yield from _contradictions_of_bounds(entry)


def _contradictions_of_bounds(entry: Known) -> Iterator[str]:
    """Find bounds that do not go with the kind of the entry, or that no difference is within."""
    bounds = [bound for bound in (entry.rtol, entry.atol) if bound is not None]
    is_tolerance = entry.kind == "tolerance"
    if is_tolerance != bool(bounds):
        yield "a tolerance, and nothing else, takes rtol= or atol="
    # "not all at least 0" and not "any below 0", so that NaN is a mistake too
    if not all(bound >= 0 for bound in bounds):
        yield "rtol= and atol= are at least 0"


def _unreadable_fields(entry: Known) -> Iterator[str]:
    """Find texts that are not in the language of their field."""
    if entry.match is not None:
        try:
            re.compile(entry.match)
        except re.error as error:
            yield f"match={entry.match!r} is not a regular expression ({error})"
    if entry.torch is not None:
        try:
            SpecifierSet(entry.torch)
        except InvalidSpecifier:
            yield f"torch={entry.torch!r} is not a version specifier, as <2.14"
    if entry.until is not None:
        try:
            datetime.date.fromisoformat(entry.until)
        except ValueError:
            yield f"until={entry.until!r} is not a date, as 2027-01-31"
