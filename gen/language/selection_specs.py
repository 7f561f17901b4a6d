"""Define how a matrix chooses among its cells: by the globs of entries, tiers and levels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from gen.errors import nearest
from gen.language.field_types import AxisName, DtypeName, Globs, Strict, Words
from gen.language.texts import (
    Day,
    Exception_,
    Glob,
    Identifier,
    NotNegative,
    Positive,
    Specifier,
    Telling,
    Text,
    fault,
)

TIERS = ("smoke", "default", "full")


class Where(Strict):
    """The cases of an entry: globs over every axis. A key that is left out matches everything."""

    op: Globs = ["*"]
    family: Globs = ["*"]
    check: Globs = ["*"]
    dtype: Globs = ["*"]
    axes: dict[AxisName, Globs] = {}
    reason: Text
    link: Text = ""
    until: Day | None = None
    name: Identifier | None = None


class Exclude(Where):
    """Cases that are not generated."""


class Known(Where):
    """Generated cases with a known fact about them. Its conditions are evaluated at run time."""

    target: Glob | None = None
    device: Glob | None = None
    torch: Specifier | None = None
    cpu: Glob | None = None


class Xfail(Known):
    """Cases that must fail with exactly this exception and message."""

    raises: Exception_
    match: Telling


class ToleranceEntry(Known):
    """Cases with their own tolerance."""

    rtol: NotNegative = 0.0
    atol: NotNegative = 0.0


def _reduce(value: object) -> object:
    """Return the long form of a reduction, which may be one word."""
    strengths: dict[str, dict[str, int]] = {"smoke": {"t": 1}, "pairwise": {"t": 2}, "full": {}}
    if isinstance(value, str):
        if value not in strengths:
            expected = f"one of {', '.join(strengths)}, {{t: N}}, {{sample: N, seed: S}}"
            raise fault(f'unknown reduction "{value}"', expected, nearest(value, strengths))
        return strengths[value]
    return value


class Reduce(Strict):
    """Which valid cells a tier takes: all, a cover of every t-tuple, or a seeded sample."""

    t: Annotated[int, Field(ge=1, le=4)] | None = None
    sample: Positive | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _one(self) -> Reduce:
        if self.t is not None and self.sample is not None:
            raise fault("both t and sample", "one of them")
        return self


class Limit(Strict):
    """At most `cells` cells of some checks, drawn by seed."""

    checks: Globs
    cells: Positive
    seed: int = 0


class Part(Strict):
    """Cells of some checks, ops, dtypes and axis values, with their own reduction."""

    reduce: Annotated[
        Reduce,
        BeforeValidator(
            _reduce, json_schema_input_type=Literal["smoke", "pairwise", "full"] | Reduce
        ),
    ] = Reduce()
    checks: Globs = ["*"]
    not_checks: Globs = []
    ops: Globs = ["*"]
    families: Globs = ["*"]
    dtypes: Words | None = None
    axes: Annotated[dict[AxisName, Globs], Field(description="only columns with these values")] = {}
    not_axes: Annotated[
        dict[AxisName, Globs], Field(description="no columns with these values")
    ] = {}
    limit: list[Limit] = []


class Tier(Part):
    """The cells of a run. A tier contains the smaller ones, and the parts that `also` names."""

    also: list[Part] = []


class LevelSpec(Strict):
    """What an author of a backend brings up in one step: ops in the order in which to write them,
    and the checks that show them."""

    name: Identifier
    claim: Text
    ops: Globs = []
    checks: Globs = []
    dtypes: Annotated[list[DtypeName], Field(min_length=1)] | None = None
    axes: Annotated[
        dict[AxisName, Globs],
        Field(description="of checks that vary an axis, only the cells with these values"),
    ] = {}
    absent: Annotated[Text, Field(description="why this matrix has no cells of the level")] = ""

    @model_validator(mode="after")
    def _has_cells(self) -> LevelSpec:
        """Refuse a level without ops or checks that does not say why."""
        has_both = bool(self.ops and self.checks)
        if has_both == bool(self.absent):
            raise fault("not a level", "`ops:` and `checks:`, or `absent:` with the reason")
        return self
