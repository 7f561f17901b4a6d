"""`known(…)`: one expected deviation, with its reason and conditions."""

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
    """A generated or hand-written module has a table with a mistake."""


@cache
def _cpu() -> str:
    import torch  # here, because to read a table needs no torch

    return str(torch.backends.cpu.get_cpu_capability())


@dataclass(frozen=True, slots=True)
class Settings:
    """The facts of a run against which the conditions of entries are evaluated. `cpu`: the
    instructions of the machine for which torch chooses its kernels, such as AVX2."""

    target: str
    device: str
    torch: str
    today: datetime.date
    cpu: str = field(default_factory=_cpu)


@dataclass(frozen=True, slots=True)
class Known:
    """An entry of the ledger. `source` is the line of matrix.yaml that it was generated from."""

    kind: str
    reason: str
    target: str | None = None
    device: str | None = None
    torch: str | None = None
    cpu: str | None = None
    raises: str | None = None
    match: str | None = None
    link: str | None = None
    until: str | None = None
    source: str | None = None
    rtol: float | None = None
    atol: float | None = None

    def active(self, settings: Settings) -> bool:
        """Return whether target, device, torch version and CPU match the entry. A condition that it
        leaves out always matches."""
        return (
            (self.target is None or fnmatchcase(settings.target, self.target))
            and (self.device is None or fnmatchcase(settings.device.split(":")[0], self.device))
            and (self.cpu is None or fnmatchcase(settings.cpu, self.cpu))
            and (self.torch is None or is_for_version(self.torch, settings.torch))
        )

    def expired(self, today: datetime.date) -> bool:
        return self.until is not None and today > datetime.date.fromisoformat(self.until)

    def expects(self, error: BaseException) -> bool:
        """Return whether `error` is the exception of this xfail: class or base class by plain or
        qualified name, message by search."""
        names = {
            name
            for cls in type(error).__mro__
            for name in (cls.__name__, f"{cls.__module__}.{cls.__qualname__}")
        }
        return self.raises in names and (
            self.match is None or re.search(self.match, str(error)) is not None
        )

    def expectation(self) -> str:
        return f"{self.raises}({self.match!r})" if self.match is not None else str(self.raises)

    def where(self) -> str:
        """Return the reason and the source line of the entry, for a person who looks for it."""
        return f"«{self.reason}»" + (f" ({self.source})" if self.source else "")


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
    """Return one entry of a module's `known` table. Its error lists every mistake at once."""
    entry = Known(
        kind, reason, target, device, torch, cpu, raises, match, link, until, source, rtol, atol
    )
    if mistakes := list(_mistakes(entry)):
        raise TableError(f"known({kind!r}, reason={reason!r}): " + "; ".join(mistakes))
    return entry


def _mistakes(entry: Known) -> Iterator[str]:
    yield from _contradictions(entry)
    yield from _unreadable_fields(entry)


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
    bounds = [bound for bound in (entry.rtol, entry.atol) if bound is not None]
    is_tolerance = entry.kind == "tolerance"
    if is_tolerance != bool(bounds):
        yield "a tolerance, and nothing else, takes rtol= or atol="
    # so that NaN is a mistake too
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
