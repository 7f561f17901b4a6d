"""Define the columns of a matrix: checks, and the axes that vary in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gen.errors import nearest, one_of
from gen.language import pipeline
from gen.language.axes import AXES, USUAL
from gen.language.field_types import AxisName, Globs, Strict, Tolerance, Words, as_list
from gen.language.texts import OneOf, PipelineText, Seconds, Text, fault

REFERENCES = (
    "loop", "upstream", "numeric", "eager", "float64", "reference", "exact", "definition",
    "standard", "pieces", "again", "threads", "strides", "fake", "raises",
)  # fmt: skip
FACTS = (
    "autograd", "forward_ad", "gradgrad", "out", "inplace", "reference", "errors", "deterministic",
    "opinfo", "own", "unary", "binary", "reduction", "spectral", "shape", "other",
    "labels", "indices", "masks", "probabilities", "several",
)  # fmt: skip

Reference = Annotated[str, OneOf(REFERENCES, "reference")]
SomeReferences = Annotated[list[Reference], Field(min_length=1)]
Against = Annotated[
    SomeReferences, BeforeValidator(as_list, json_schema_input_type=Reference | SomeReferences)
]


def _axes_schema() -> dict[str, object]:
    """Return the JSON Schema of axes with their values, which the type of the field only checks
    together.
    """
    several = {"type": "array", "minItems": 1, "uniqueItems": True}
    words = {axis: {"type": "string", "enum": list(values)} for axis, values in AXES.items()}
    properties = {}
    for axis, word in words.items():
        properties[axis] = {"anyOf": [word, {**several, "items": word}]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


class Check(Strict):
    """A column: a pipeline, and what it is compared with."""

    claim: Text
    pipeline: PipelineText = "forward"
    against: Against
    form: Annotated[str, OneOf(AXES["form"], "form")] = USUAL.form
    layout: Annotated[str, OneOf(AXES["layout"], "layout")] = USUAL.layout
    values: Annotated[str, OneOf(AXES["values"], "values")] = USUAL.values
    over: Annotated[dict[AxisName, Words], WithJsonSchema(_axes_schema())] = {}
    dtypes: Words | None = None
    ops: Globs = ["*"]
    not_ops: Globs = []
    families: Globs = ["*"]
    not_families: Globs = []
    requires: list[Annotated[str, OneOf(FACTS, "fact")]] = []
    tolerance: Tolerance | None = None
    timeout: Seconds | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Check:
        """Refuse words that an axis lacks, and a form that the pipeline does not take."""
        _check_axes(self.over, "over")
        forms = self.over.get("form", [self.form])
        # Only some stages take a program that writes to its own argument.
        is_writable = bool(pipeline.WRITABLE.intersection(self._innermost()))
        if "argument_inplace" in forms and not is_writable:
            raise fault(
                f'pipeline "{self.pipeline}" with form argument_inplace',
                f"one of {', '.join(sorted(pipeline.WRITABLE))} innermost",
            )
        return self

    def _innermost(self) -> tuple[str, ...]:
        """Return the stage that runs the op itself, or nothing for a pipeline without stages."""
        return pipeline.parse(self.pipeline).stages[-1:]


class Spread(Strict):
    """An axis that many checks have."""

    values: Words
    checks: Globs = ["*"]
    not_checks: Globs = []


def _check_axes(over: Mapping[str, list[str]], *within: str, below: tuple[str, ...] = ()) -> None:
    """Refuse values that an axis lacks.

    `within` and `below` are the steps to a value before and after its axis.
    """
    for axis, values in over.items():
        for index, value in enumerate(values):
            if value not in AXES[axis]:
                at: tuple[str | int, ...] = (*within, axis, *below, index)
                what = f'unknown value "{value}" of axis {axis}'
                raise fault(what, one_of(AXES[axis]), nearest(value, AXES[axis]), at=at)
        # it would make two cases of one id
        if len(set(values)) < len(values):
            raise fault(
                f"axis {axis} has a value twice", "each value once", at=(*within, axis, *below)
            )


def check_spreads(over: dict[str, Spread]) -> dict[str, Spread]:
    """Return a section `over:` as it is, after its values: pydantic takes it from its validators.

    Raises a fault for a value that its axis lacks, or that stands twice.
    """
    _check_axes({axis: spread.values for axis, spread in over.items()}, below=("values",))
    return over
