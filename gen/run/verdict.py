"""Judge a case: the outcome from its failures and its entries.

An xfail is strict. The case must fail, and every failing sample must raise the exception and
message of one of the case's entries. So an entry cannot hide a second mistake, and cannot remain
after the first is fixed.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gen.checks.case import Case, SampleFailure
from gen.checks.entries import Known
from gen.outcomes import Crashed, Lacking, Mismatch, Uncovered, Vacuous

__all__ = ["Verdict", "attempt", "brief", "settle"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one case."""

    # a word of the outcomes
    outcome: str
    # one line, which reports show
    why: str = ""
    # the failures to show
    failures: tuple[SampleFailure, ...] = ()
    # the names of the entries that happened
    happened: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", "xpassed", "vacuous", "crashed", "timed out")


def attempt(
    check: Callable[[Case], object], case: Case, entries: Mapping[str, Known], today: datetime.date
) -> Verdict:
    """Run one check on one case and return its verdict.

    `entries` are those active under the run's settings, by name.
    """
    early = _verdict_before_run(entries, today)
    if early is not None:
        return early
    failures: list[SampleFailure] = []
    case.on_failures = failures.extend
    try:
        check(case)
    except Lacking as lacking:
        return Verdict("lacking", str(lacking))
    except Uncovered as uncovered:
        return Verdict("not covered", str(uncovered))
    except Exception as error:
        failures.append(SampleFailure(None, "", error))
    return settle(entries, failures, partial=case.only is not None, values=case.device != "meta")


def _verdict_before_run(entries: Mapping[str, Known], today: datetime.date) -> Verdict | None:
    """Return the verdict of a case that does not run: an entry has expired, or skips it."""
    # Expired entries first: a skip that is over must not hide that it is.
    for name, entry in entries.items():
        if entry.expired(today):
            return Verdict(
                "failed",
                (
                    f"entry {name!r} held until {entry.until}, which has passed; "
                    f"renew or remove it: {entry.where()}"
                ),
            )
    for name, entry in entries.items():
        if entry.kind == "skip":
            return Verdict("skipped", entry.reason, happened=(name,))
    return None


def settle(
    entries: Mapping[str, Known],
    failures: Sequence[SampleFailure],
    *,
    partial: bool = False,
    values: bool = True,
) -> Verdict:
    """Return the verdict, after matching every failure with an xfail.

    An entry need not happen if only some samples ran (`partial`). Nor need it if tensors have no
    `values`, unless the entry names a device.
    """
    xfails = {name: entry for name, entry in entries.items() if entry.kind == "xfail"}
    happened: dict[str, None] = {}
    # Each failure needs an entry of its own exception and message.
    unexpected: list[SampleFailure] = []
    for failure in failures:
        name = _expecting(xfails, failure.error)
        if name is None:
            unexpected.append(failure)
        else:
            happened[name] = None
    if unexpected:
        outcome, why = _outcome_of(unexpected), _describe_unexpected(xfails, unexpected[0])
        return Verdict(outcome, why, tuple(unexpected), tuple(happened))
    if happened:
        reasons = "; ".join(xfails[name].reason for name in happened)
        return Verdict("xfailed", reasons, happened=tuple(happened))
    if partial:
        return Verdict("passed")
    return _verdict_of_pass(xfails, values)


def _verdict_of_pass(xfails: Mapping[str, Known], values: bool) -> Verdict:
    """Return the verdict of a case without failures, of which every sample ran."""
    # on meta there are no values that could differ, so an entry for every device may not happen
    due = [name for name, entry in xfails.items() if values or entry.device is not None]
    if not due:
        return Verdict("passed")
    stale = ", ".join(f"{name!r} {xfails[name].where()}" for name in due)
    return Verdict("xpassed", f"passed, so remove the entry or narrow it: {stale}")


def _expecting(xfails: Mapping[str, Known], error: Exception) -> str | None:
    """Return the name of the first entry that expects `error`."""
    for name, entry in xfails.items():
        if entry.expects(error):
            return name
    return None


def _outcome_of(failures: Sequence[SampleFailure]) -> str:
    """Return the word for failures that no entry expects. A crash outweighs the others."""
    for failure in failures:
        if isinstance(failure.error, Crashed):
            return failure.error.outcome
    if all(isinstance(failure.error, Vacuous) for failure in failures):
        return "vacuous"
    return "failed"


def _describe_unexpected(xfails: Mapping[str, Known], failure: SampleFailure) -> str:
    """Say what was raised, and what the entries expected instead."""
    why = brief(failure.error)
    if not xfails:
        return why
    expected = " or ".join(f"{entry.expectation()} [{name}]" for name, entry in xfails.items())
    return f"expected {expected}, got {why}"


def brief(error: BaseException) -> str:
    """Return the exception in one line."""
    lines = str(error).strip().splitlines() or [""]
    first = lines[0]
    # messages of these exceptions are sentences of the checks themselves
    if not isinstance(error, Mismatch | Vacuous | Crashed):
        first = f"{type(error).__name__}: {first}"
    return first if len(first) <= 300 else first[:299] + "…"
