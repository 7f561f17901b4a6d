"""Say what a case asserts: a pipeline, its references, and the axes that its check fixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gen.checks.tables import Cell
from gen.language.axes import USUAL, Axes
from gen.language.pipeline import Pipeline, parse

__all__ = ["Claim"]


@dataclass(frozen=True)
class Claim:
    """The arguments of one `Case.assert_same`.

    For example ``Claim("vmap . vjp", "loop")``: a batched gradient equals a loop over the batch.
    """

    pipeline: str
    against: str | Sequence[str]
    form: str = USUAL.form
    layout: str = USUAL.layout
    values: str = USUAL.values

    @cached_property
    def parsed(self) -> Pipeline:
        """Return the pipeline, read."""
        return parse(self.pipeline)

    @property
    def stages(self) -> Sequence[str]:
        """Return the stages, innermost first."""
        return self.parsed.stages[::-1]

    @property
    def references(self) -> tuple[str, ...]:
        """Return the words of the references."""
        if isinstance(self.against, str):
            return (self.against,)
        return tuple(self.against)

    def axes_of(self, cell: Cell) -> Axes:
        """Return the axes of a cell, with those that the claim fixes where the cell has none."""
        return cell.axes.fixed(form=self.form, layout=self.layout, values=self.values)

    def is_of_errors(self, axes: Axes) -> bool:
        """Return whether the op's documented errors are asked, and no values."""
        return self.references == ("raises",) and axes.form == "functional"
