"""Define the arguments of calls, which samples and errors of a row have.

    samples:
      - args: [{shape: [4, 8], domain: positive}, !tuple [2, 3]]
        kwargs: {dim: 0}

A mapping describes a tensor. A tag stands for a value that YAML has no form for.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from gen.language.field_types import DtypeName, OfVersions, Strict
from gen.language.texts import Callable_, Exception_, Finite, Regex, Word, fault
from gen.language.values import tag_of

LARGEST_SIZE = 2**63 - 1  # torch has sizes as int64
# of a described tensor: samples of more than 20,000 show no more than smaller ones
MOST_ELEMENTS = 2**24
MOST_DIMENSIONS = 64  # torch has no tensors with more


def _samples(value: object) -> object:
    """Return the long form of a source of samples."""
    if isinstance(value, str):
        return {} if value == "opinfo" else {"callable": value}
    if not isinstance(value, list):
        raise fault(
            "not a source of samples",
            "opinfo, package.module:callable, or a list of {args, kwargs}",
        )
    return {"rows": value}


def _kind_of_argument(value: object) -> str:
    """Return the tag of the form of an argument.

    Tags occur in pydantic's paths, and are removed from messages. No key of a matrix is written in
    angle brackets, so `validate` can tell the two apart.
    """
    if tag_of(value) == "!tuple":
        return "<tuple>"
    if tag_of(value) is not None:
        return "<value>"
    if isinstance(value, dict):
        return "<tensor>"
    if isinstance(value, list):
        return "<list>"
    return "<plain>"


_OF_SQUARE_MATRICES = frozenset(("spd", "symmetric", "unitary", "rotation"))
_OF_ROWS = frozenset(("permutation", "unit_vectors", "probabilities", "sorted"))


class Tensor(Strict):
    """A tensor by description: its shape, the range of its values, and its memory layout."""

    shape: Annotated[
        list[Annotated[int, Field(ge=0, le=LARGEST_SIZE)]], Field(max_length=MOST_DIMENSIONS)
    ]
    dtype: DtypeName | None = None
    low: Finite | None = None
    high: Finite | None = None
    domain: Literal[
        "any",
        "positive",
        "unit",
        "nonzero",
        "whole",
        "spd",
        "symmetric",
        "unitary",
        "rotation",
        "unit_vectors",
        "probabilities",
        "sorted",
        "permutation",
        "index",
        "bool",
        "distinct",
    ] = "any"
    size: Annotated[
        Annotated[int, Field(ge=1, le=LARGEST_SIZE)] | None,
        Field(description="indices are drawn from 0 … size − 1"),
    ] = None
    layout: Literal["contiguous", "transposed", "noncontiguous", "strided", "expanded"] = (
        "contiguous"
    )
    requires_grad: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Tensor:
        """Refuse a description whose parts do not go together."""
        if math.prod(self.shape) > MOST_ELEMENTS:
            what = f"shape {self.shape} has {math.prod(self.shape):,} elements"
            raise fault(what, f"at most {MOST_ELEMENTS:,}", at=("shape",))
        if self.domain == "index" and self.size is None:
            raise fault(
                "domain index without a size", "`size: N`, so that indices are drawn from 0 … N − 1"
            )
        self._require_shape_of_domain()
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise fault(f"low {self.low} is not below high {self.high}", "low < high")
        return self

    def _require_shape_of_domain(self) -> None:
        """Refuse a shape that the domain does not have."""
        if self.domain in _OF_SQUARE_MATRICES and not self._is_square:
            raise fault(
                f"domain {self.domain} with shape {self.shape}",
                "a shape whose last two sizes are equal",
            )
        if self.domain in _OF_ROWS and not self.shape:
            what = f"domain {self.domain} with shape []"
            raise fault(what, "a shape with at least one dimension")

    @property
    def _is_square(self) -> bool:
        """Return whether it is a matrix, or a batch of them, with as many rows as columns."""
        return len(self.shape) >= 2 and self.shape[-1] == self.shape[-2]


class TaggedTuple(Strict):
    """A tuple of arguments, `!tuple [...]`."""

    items: Annotated[list[Argument], Field(alias="!tuple")]


Plain = bool | int | float | str | None
# An editor sees what follows a tag as if that were not there: a list, or plain. So the schema has
# nothing of its own for tags: `{"not": {}}` fits no value.
Tuple = Annotated[TaggedTuple, WithJsonSchema({"not": {}})]
Value = Annotated[dict[str, Any], WithJsonSchema({"not": {}})]
"""A value behind one of the other tags, which the reader of YAML has checked."""
Item = Annotated[Annotated[Tensor, Tag("<tensor>")] | Annotated[list[Any], Tag("<list>")]
    | Annotated[Tuple, Tag("<tuple>")] | Annotated[Value, Tag("<value>")]
    | Annotated[Plain, Tag("<plain>")], Discriminator(_kind_of_argument)]  # fmt: skip
Argument = Annotated[Annotated[Tensor, Tag("<tensor>")] | Annotated[list[Item], Tag("<list>")]
    | Annotated[Tuple, Tag("<tuple>")] | Annotated[Value, Tag("<value>")]
    | Annotated[Plain, Tag("<plain>")], Discriminator(_kind_of_argument)]  # fmt: skip


class Sample(Strict):
    """The arguments of one call."""

    args: list[Argument] = []
    kwargs: dict[Word, Argument] = {}
    torch: OfVersions = None


class ErrorSample(Sample):
    """A call that must fail, with its exception."""

    raises: Exception_
    match: Regex = ""


class Samples(Strict):
    """The source of samples: `opinfo`, a callable, or a list of calls."""

    callable: Callable_ | None = None
    rows: Annotated[list[Sample] | None, Field(min_length=1)] = None

    @property
    def from_opinfo(self) -> bool:
        """Return whether torch's own database of samples is the source."""
        return self.callable is None and self.rows is None


SamplesOf = Annotated[
    Samples,
    BeforeValidator(
        _samples, json_schema_input_type=Callable_ | Annotated[list[Sample], Field(min_length=1)]
    ),
]
