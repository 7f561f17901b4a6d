"""Decide whether the samples of a case have shown anything.

For example, `torch.floor` has the derivative 0 everywhere. A case that compares zeros with zeros
would pass with any rule, so it counts as vacuous unless an entry of kind `vanishes` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gen.checks import forms
from gen.checks.compare import Tally
from gen.checks.comparison.reference_words import OF_ITSELF, may_show_nothing
from gen.language.axes import OF_ARGUMENTS, Axes
from gen.outcomes import Lacking, Mismatch, Vacuous
from gen.samples import points

__all__ = ["Evidence", "asks_beside_values"]

_MOST_REASONS = 3  # of the samples that compared nothing, in one message


@dataclass
class Evidence:
    """Count what the samples of a case compare, and collect why some compare nothing."""

    axes: Axes
    # the names of the references of the check
    references: Sequence[str]
    # Whether an entry says that all results are zero.
    vanishes: bool
    # Whether tensors of the device have no numbers.
    is_meta: bool
    # counts over all samples
    tally: Tally = field(default_factory=Tally)
    # a dictionary for its order: each reason once, the first one first
    reasons: dict[str, None] = field(default_factory=dict)

    def note_reason(self, reason: object) -> None:
        """Keep why a sample, or one of its programs, compared nothing."""
        self.reasons[str(reason)] = None

    def count_refusal(self) -> None:
        """Count a refusal that was due as a comparison that has shown something."""
        self.tally.entries += 1
        self.tally.nonzero += 1

    @property
    def is_missing(self) -> bool:
        """Return whether nothing has been shown yet, though something is due."""
        return not self.tally.nonzero and not self.vanishes

    def require(self) -> None:
        """Raise Lacking, Vacuous or Mismatch unless the samples together have shown something.

        Lacking is for checks that by their nature apply to some ops only.
        """
        axes, tally = self.axes, self.tally
        why = "all results are zero on both sides"
        if not tally.entries:
            why = self._first_reasons()
        # Words of degenerate points are asked of every op, and most ops have none of them.
        if axes.values in points.WORDS and not tally.nonzero:
            raise Lacking(f"no {axes.values.replace('_', ' ')} to compare at: {why}")
        # A function of differences is rightly 0 where all numbers are equal.
        if axes.layout == "expanded" and self.is_missing:
            raise Lacking(f"nothing to compare where rows repeat: {why}")
        if not tally.entries and may_show_nothing(axes, self.references):
            raise Lacking(f"nothing to compare: {why}")
        if not (tally.entries and asks_beside_values(axes, self.references)):
            self._refuse_vacuity()

    def _refuse_vacuity(self) -> None:
        """Raise Vacuous if nothing was compared, or only zeros that no entry expects."""
        # Many ops have no kernel for meta tensors, so this is no fault of the matrix.
        if not self.tally.entries and self.is_meta:
            raise Lacking(f"nothing to compare on the meta device: {self._first_reasons()}")
        if not self.tally.entries:
            why = self._first_reasons() or "every sample is empty"
            raise Vacuous(f"nothing was compared: {why}")
        if self.vanishes and self.tally.nonzero and not self.is_meta:
            raise Mismatch(
                "an entry says that the results vanish, but some are not zero: "
                "remove the entry or narrow it"
            )
        if self.is_missing:
            raise Vacuous(
                "all results are zero on both sides; if that is right, "
                "a `vanishes` entry says so with its reason"
            )

    def _first_reasons(self) -> str:
        return "; ".join(list(self.reasons)[:_MOST_REASONS])


def asks_beside_values(axes: Axes, references: Sequence[str]) -> bool:
    """Return whether a case is about something other than the values of an op, such as its memory,
    a mode around it or the batch."""
    if OF_ITSELF.issuperset(references) or axes.form in forms.BESIDE:
        return True
    if axes.values in {*OF_ARGUMENTS, "overloads", "wrong_arguments"}:
        return True
    has_mode = axes.under is not None or axes.refusal is not None
    return has_mode or axes.batch != "ordinary"
