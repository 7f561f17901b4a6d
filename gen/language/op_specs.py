"""Define the rows of a matrix: ops, and the families in which they stand."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from gen.language.field_types import Globs, OfVersions, Strict, Tolerance, Words
from gen.language.sample_specs import ErrorSample, Sample, SamplesOf
from gen.language.texts import Callable_, Glob, OneOf, Seconds, Text, fault

KINDS = ("unary", "binary", "reduction", "spectral", "shape", "other", "own")


def _op_row(value: object) -> object:
    return {"op": value} if isinstance(value, str) else value


class OpRow(Strict):
    """One op. A name or glob alone stands for rows of torch's OpInfo database."""

    # Without checks or samples, those of the family.
    op: Glob
    call: Callable_ | None = None
    dtypes: Words | None = None
    samples: SamplesOf | None = None
    settings: Annotated[
        list[Sample], Field(description="further calls, for checks against exact values alone")
    ] = []
    reference: Callable_ | None = None
    errors: list[ErrorSample] = []
    differentiable: bool | None = None
    forward_ad: Annotated[bool | None, Field(description="whether the op has tangents")] = None
    gradgrad: Annotated[
        bool | None, Field(description="whether the op's gradient has a derivative")
    ] = None
    deterministic: Annotated[bool | None, Field(description="whether two calls give the same")] = (
        None
    )
    inplace: Callable_ | None = None
    out: Callable_ | None = None
    checks: Globs | None = None
    not_checks: Globs = []
    tolerance: Tolerance | None = None
    timeout: Seconds | None = None
    torch: OfVersions = None
    notes: Text = ""

    @model_validator(mode="after")
    def _consistent(self) -> OpRow:
        """Refuse derivatives of an op that has none."""
        for fact in ("forward_ad", "gradgrad"):
            if self.differentiable is False and getattr(self, fact):
                raise fault(
                    f"{fact}: true with differentiable: false", "one of them left out", at=(fact,)
                )
        return self


class Family(Strict):
    """Ops that share a generated module."""

    title: Text = ""
    ops: Annotated[
        list[Annotated[OpRow, BeforeValidator(_op_row, json_schema_input_type=Glob | OpRow)]],
        Field(min_length=1),
    ]
    not_ops: Globs = []
    kinds: list[Annotated[str, OneOf(KINDS, "kind")]] = []
    samples: SamplesOf | None = None
    dtypes: Words | None = None
    checks: Globs = ["all"]
    not_checks: Globs = []
    timeout: Seconds | None = None
