"""Define the language of matrix.yaml, as pydantic models. They give `matrix.schema.json`.

Short forms are widened before validation: a word to a list of one word, an op's name to a mapping.
So each model has one shape, and a mistake has one place. `gen.plan.expand` resolves names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from gen.dtypes import DTYPES
from gen.errors import nearest, one_of
from gen.language import pipeline
from gen.language.axes import AXES, USUAL
from gen.language.texts import (
    Callable_,
    Day,
    Exception_,
    Finite,
    Glob,
    Identifier,
    NotNegative,
    OneOf,
    PipelineText,
    Positive,
    Regex,
    Seconds,
    Specifier,
    Telling,
    Text,
    Word,
    fault,
)
from gen.language.values import tag_of

SECTIONS_OF_CASES = ("include", "dtypes", "checks", "over", "families", "exclude")
TIERS = ("smoke", "default", "full")
REFERENCES = (
    "loop", "upstream", "numeric", "eager", "float64", "reference", "exact", "definition",
    "standard", "pieces", "again", "threads", "strides", "fake", "raises",
)  # fmt: skip
FACTS = (
    "autograd", "forward_ad", "gradgrad", "out", "inplace", "reference", "errors", "deterministic",
    "opinfo", "own", "unary", "binary", "reduction", "spectral", "shape", "other",
    "labels", "indices", "masks", "probabilities", "several",
)  # fmt: skip
KINDS = ("unary", "binary", "reduction", "spectral", "shape", "other", "own")
LARGEST_SIZE = 2**63 - 1  # torch has sizes as int64
# of a described tensor: samples of more than 20,000 show no more than smaller ones
MOST_ELEMENTS = 2**24
MOST_DIMENSIONS = 64  # torch has no tensors with more


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _op_row(value: object) -> object:
    return {"op": value} if isinstance(value, str) else value


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


def _reduce(value: object) -> object:
    """Return the long form of a reduction, which may be one word."""
    strengths: dict[str, dict[str, int]] = {"smoke": {"t": 1}, "pairwise": {"t": 2}, "full": {}}
    if isinstance(value, str):
        if value not in strengths:
            expected = f"one of {', '.join(strengths)}, {{t: N}}, {{sample: N, seed: S}}"
            raise fault(f'unknown reduction "{value}"', expected, nearest(value, strengths))
        return strengths[value]
    return value


def _kind_of_argument(value: object) -> str:
    """Return the tag of the form of an argument.

    Tags occur in pydantic's paths, and are removed from messages.
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


DtypeName = Annotated[str, OneOf(DTYPES, "dtype")]
Globs = Annotated[
    list[Glob],
    Field(min_length=1),
    BeforeValidator(
        _as_list, json_schema_input_type=Glob | Annotated[list[Glob], Field(min_length=1)]
    ),
]
Words = Annotated[
    list[Word],
    Field(min_length=1),
    BeforeValidator(
        _as_list, json_schema_input_type=Word | Annotated[list[Word], Field(min_length=1)]
    ),
]
Reference = Annotated[str, OneOf(REFERENCES, "reference")]
SomeReferences = Annotated[list[Reference], Field(min_length=1)]
Against = Annotated[
    SomeReferences, BeforeValidator(_as_list, json_schema_input_type=Reference | SomeReferences)
]


OfVersions = Annotated[
    Specifier | None,
    Field(description='the versions of torch that this is for, such as ">=2.14"; default: all'),
]


class Strict(BaseModel):
    """A model in which unknown keys are mistakes and nothing is coerced: `"4"` is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
        return len(self.shape) >= 2 and self.shape[-1] == self.shape[-2]


class TaggedTuple(Strict):
    """A tuple of arguments, `!tuple [...]`."""

    items: Annotated[list[Argument], Field(alias="!tuple")]


Plain = bool | int | float | str | None
# an editor sees what follows a tag as if that were not there: a list, or plain
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
        return self.callable is None and self.rows is None


SamplesOf = Annotated[
    Samples,
    BeforeValidator(
        _samples, json_schema_input_type=Callable_ | Annotated[list[Sample], Field(min_length=1)]
    ),
]


class Tolerance(Strict):
    """The allowed error of results, if the dtype's own tolerance does not fit."""

    rtol: NotNegative = 0.0
    atol: NotNegative = 0.0
    torch: OfVersions = None
    reason: Text = ""


class OpRow(Strict):
    """One op. A name or glob alone stands for rows of torch's OpInfo database."""

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


def _axes_schema() -> dict[str, object]:
    """Return the JSON Schema of axes with their values, which the type of the field only checks
    together.
    """
    several = {"type": "array", "minItems": 1, "uniqueItems": True}
    words = {axis: {"type": "string", "enum": list(values)} for axis, values in AXES.items()}
    properties = {
        axis: {"anyOf": [word, {**several, "items": word}]} for axis, word in words.items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


class Check(Strict):
    """A column: a pipeline, and what it is compared with."""

    claim: Text
    pipeline: PipelineText = "forward"
    against: Against
    form: Annotated[str, OneOf(AXES["form"], "form")] = USUAL.form
    layout: Annotated[str, OneOf(AXES["layout"], "layout")] = USUAL.layout
    values: Annotated[str, OneOf(AXES["values"], "values")] = USUAL.values
    over: Annotated[
        dict[Annotated[str, OneOf(AXES, "axis")], Words], WithJsonSchema(_axes_schema())
    ] = {}
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
        if len(set(values)) < len(values):
            raise fault(
                f"axis {axis} has a value twice", "each value once", at=(*within, axis, *below)
            )


def _spread_axes(over: dict[str, Spread]) -> dict[str, Spread]:
    _check_axes({axis: spread.values for axis, spread in over.items()}, below=("values",))
    return over


AxisName = Annotated[str, OneOf(AXES, "axis")]


class Where(Strict):
    """The cases of an entry: globs over every axis. A key that is left out matches everything."""

    op: Globs = ["*"]
    family: Globs = ["*"]
    check: Globs = ["*"]
    dtype: Globs = ["*"]
    axes: dict[Annotated[str, OneOf(AXES, "axis")], Globs] = {}
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


class Targets(Strict):
    """Implementations that the matrix exercises."""

    default: Annotated[Word | None, Field(description="what runs without --target")] = None
    names: Annotated[list[Word], Field(min_length=1)] = ["runtime", "torch"]
    imports: Annotated[
        dict[Word, Callable_],
        Field(
            alias="import",
            description="targets of this project: the class or function that makes each",
        ),
    ] = {}

    @model_validator(mode="after")
    def _listed(self) -> Targets:
        """Refuse a default, or a target of this project, that is not among the names."""
        named: list[tuple[tuple[str, ...], str]]
        named = [(("import", name), name) for name in self.imports]
        if self.default is not None:
            named.append((("default",), self.default))
        for place, name in named:
            if name not in self.names:
                what = f'"{name}" is not in targets.names'
                raise fault(what, one_of(self.names), nearest(name, self.names), at=place)
        return self


class Device(Strict):
    """A device: what registers it with torch, and how to find out whether it is present."""

    backend: Annotated[
        Callable_ | None,
        Field(alias="import", description="the module that registers the device when imported"),
    ] = None
    available: Callable_ | None = None
    reason: Text = ""
    tolerances: Annotated[
        dict[DtypeName, NotNegative],
        Field(description="the least relative tolerance of results in a dtype"),
    ] = {}


class NamedDevice(Device):
    """A device in a list."""

    name: Word


def _devices(value: object) -> object:
    """Return the long form of a list of devices, of which each is a name or has one."""
    if not isinstance(value, list):
        return value
    named: dict[str, object] = {}
    for place, device in enumerate(value):
        described = {"name": device} if isinstance(device, str) else device
        if not isinstance(described, dict) or not isinstance(described.get("name"), str):
            raise fault("not a device", "its name, or {name: …, import: …}", at=(place,))
        if described["name"] in named:
            raise fault(f'"{described["name"]}" stands twice', "each device once", at=(place,))
        named[described["name"]] = {key: part for key, part in described.items() if key != "name"}
    return named


class Matrix(Strict):
    """matrix.yaml, its includes merged."""

    version: Literal[1]
    include: Annotated[
        list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])
    ] = []
    torch: Annotated[
        str | None,
        Field(description="the version of torch whose ops are generated; default: the installed"),
    ] = None
    targets: Targets = Targets()
    dtypes: dict[Word, Words] = {}
    devices: Annotated[
        dict[Word, Device],
        BeforeValidator(
            _devices, json_schema_input_type=dict[Word, Device] | list[Word | NamedDevice]
        ),
    ] = {}
    checks: dict[Identifier, Check] = {}
    over: Annotated[
        dict[AxisName, Spread],
        AfterValidator(_spread_axes),
        Field(description="axes that many checks have"),
    ] = {}
    families: dict[Identifier, Family]
    former_names: Annotated[
        dict[str, str],
        Field(description="rows that moved: the beginning of their names, and what it was before"),
    ] = {}
    exclude: list[Exclude] = []
    skip: list[Known] = []
    xfail: list[Xfail] = []
    vanishes: list[Known] = []
    tolerance: list[ToleranceEntry] = []
    tiers: dict[Annotated[str, OneOf(TIERS, "tier")], Tier] = {}
    levels: list[LevelSpec] = []


SCHEMA = "matrix.schema.json"
INCLUDED_SCHEMA = "included.schema.json"


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return file name -> JSON Schema, for editors: of matrix.yaml, and of a file that it includes,
    which need not have every section.
    """
    schema = _close(Matrix.model_json_schema())
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    whole = {
        **draft,
        "title": "matrix.yaml",
        **{key: value for key, value in schema.items() if key != "title"},
    }
    included = {
        "title": "a file that matrix.yaml includes",
        "additionalProperties": False,
        "type": "object",
    }
    properties = {name: _refer_to_matrix(value) for name, value in schema["properties"].items()}
    return {SCHEMA: whole, INCLUDED_SCHEMA: {**draft, **included, "properties": properties}}


def _close(schema: object) -> Any:
    """Return `schema`, in which a mapping whose keys have a pattern takes no other keys."""
    if isinstance(schema, list):
        return list(map(_close, schema))
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "patternProperties" in schema else {}
    return {key: _close(value) for key, value in schema.items()} | closed


def _refer_to_matrix(schema: object) -> Any:
    """Return `schema` with its references to the other file."""
    if isinstance(schema, list):
        return list(map(_refer_to_matrix, schema))
    if not isinstance(schema, dict):
        return schema
    referring = {}
    for key, value in schema.items():
        referring[key] = f"{SCHEMA}{value}" if key == "$ref" else _refer_to_matrix(value)
    return referring
