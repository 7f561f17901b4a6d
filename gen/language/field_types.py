"""Define the types that several models of the language have in common: names, globs, versions.

A field that takes a list takes a single word as well, which is widened to a list of one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gen.dtypes import DTYPES
from gen.language.axes import AXES
from gen.language.texts import Glob, NotNegative, OneOf, Specifier, Text, Word


def as_list(value: object) -> object:
    """Widen a word to a list of one word. Leave any other value to the validation."""
    return [value] if isinstance(value, str) else value


DtypeName = Annotated[str, OneOf(DTYPES, "dtype")]
Globs = Annotated[
    list[Glob],
    Field(min_length=1),
    BeforeValidator(
        as_list, json_schema_input_type=Glob | Annotated[list[Glob], Field(min_length=1)]
    ),
]
Words = Annotated[
    list[Word],
    Field(min_length=1),
    BeforeValidator(
        as_list, json_schema_input_type=Word | Annotated[list[Word], Field(min_length=1)]
    ),
]
AxisName = Annotated[str, OneOf(AXES, "axis")]
OfVersions = Annotated[
    Specifier | None,
    Field(description='the versions of torch that this is for, such as ">=2.14"; default: all'),
]


class Strict(BaseModel):
    """A model in which unknown keys are mistakes and nothing is coerced: `"4"` is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tolerance(Strict):
    """The allowed error of results, if the dtype's own tolerance does not fit."""

    rtol: NotNegative = 0.0
    atol: NotNegative = 0.0
    torch: OfVersions = None
    reason: Text = ""
