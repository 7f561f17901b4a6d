"""List what a case compares, for tools that show it: the stand-alone program of a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gen.checks.case.case import Case
from gen.checks.case.chosen_samples import chosen_samples
from gen.checks.case.claim import Claim
from gen.checks.case.documented_errors import documented_errors
from gen.checks.compare import Tally
from gen.checks.comparison.comparison import Comparison
from gen.language.axes import Axes
from gen.outcomes import Unsuitable
from gen.samples.samples import Sample

__all__ = ["all_comparisons", "wrong_errors"]


def all_comparisons(case: Case, claim: Claim) -> Iterator[tuple[Comparison, str, Exception | None]]:
    """Yield ``(comparison, reference, error)`` for each comparison that the case makes, in its
    order. The error is None if the two agree.

    Samples that are not suitable, or on which the op itself raises, are left out.
    """
    axes = claim.axes_of(case.cell)
    # forms of calls are no programs to show: the message names the overload and the difference
    if claim.references == ("raises",) or axes.values in ("overloads", "wrong_arguments"):
        return
    for turn, sample in _samples_to_show(case, claim, axes):
        # A failure of the op itself is a finding of `wrong_errors`.
        if sample.error is not None:
            continue
        try:
            comparisons = list(case.comparisons(sample, turn, claim.stages, axes, {}))
        except Unsuitable:
            continue
        for comparison in comparisons:
            yield from _judged(comparison, claim)


def _judged(
    comparison: Comparison, claim: Claim
) -> Iterator[tuple[Comparison, str, Exception | None]]:
    """Yield the comparison with the error that each suitable reference shows."""
    for word in claim.references:
        try:
            comparison.against(word, Tally())
        except Unsuitable:
            continue
        except Exception as error:
            yield comparison, word, error
        else:
            yield comparison, word, None


def wrong_errors(case: Case, claim: Claim) -> Iterator[tuple[Sample, type[Exception] | None, str]]:
    """Yield the calls whose error is not the one that is due, as ``(sample, exception, pattern)``.

    Without an exception, the op itself raises on plain tensors where a result is due. With one, it
    raises something else or nothing.
    """
    axes = claim.axes_of(case.cell)
    if claim.is_of_errors(axes):
        yield from _wrong_documented_errors(case)
    if claim.references == ("raises",):
        return
    for _, sample in _samples_to_show(case, claim, axes):
        if sample.error is not None:
            yield sample, None, ""


def _wrong_documented_errors(case: Case) -> Iterator[tuple[Sample, type[Exception], str]]:
    """Yield the documented errors that the op does not raise as documented."""
    documented = documented_errors(case.op, case.row, case.dtype)
    case.require_sample(len(documented))
    for turn, (sample, kind, match) in enumerate(documented):
        if not case.runs(turn):
            continue
        if not (isinstance(sample.error, kind) and re.search(match, str(sample.error))):
            yield sample, kind, match


def _samples_to_show(case: Case, claim: Claim, axes: Axes) -> list[tuple[int, Sample]]:
    """Return the samples that a tool shows, with their numbers. If it asks for one, that may be of
    the reserve."""
    chosen, reserve = chosen_samples(case.subject, claim, axes)
    case.require_sample(len(chosen) + len(reserve))
    numbered = list(enumerate([*chosen, *reserve]))
    if case.only is None:
        return numbered[: len(chosen)]
    return [numbered[case.only]]
