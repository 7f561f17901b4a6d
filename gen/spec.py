"""The language of matrix.yaml, as pydantic models. `matrix.schema.json` is written from them.

Short forms are widened before validation: a word to a list of one word, an op's name to a mapping. So each model has one shape,
and a mistake has one place. `gen.expand` resolves names.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gen import pipeline
from gen.errors import nearest, one_of
from gen.words import PLAIN, RUN

SECTIONS_OF_CASES = ("include", "dtypes", "checks", "over", "families", "exclude")
TIERS = ("smoke", "default", "full")
FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex32", "complex64", "complex128")
DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", *FLOATS, *COMPLEX,
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
)  # fmt: skip
DEGENERATE = (
    "tails", "huge", "tiny", "subnormal", "ties", "zero_factor", "one_nan", "one_inf", "masked_row",
    "equal_singular_values", "unit_triangular", "far_from_identity", "smaller_index", "repeated_index", "empty_index",
)  # fmt: skip
AXES: dict[str, tuple[str, ...]] = {
    "form": ("functional", "out", "out_view", "out_overlapping", "inplace", "view_inplace", "argument_inplace", "data_write"),
    "layout": ("contiguous", "transposed", "noncontiguous", "expanded", "conjugated", "negated"),
    "values": ("ordinary", "extreme", "ill_formed", *DEGENERATE),
    "shapes": ("static", "dynamic"),
    "partition": ("default", "min_cut"),
    "loss_reduction": ("sum", "mean"),
    "input_grad": ("with_input_grad", "without_input_grad"),
    "of": ("norms", "clipped_sum", "dot", "gram", "project"),
    "cotangents": ("contiguous", "transposed", "noncontiguous", "expanded"),
    "run_on": ("batch", "sample"),
    RUN: (PLAIN, "jitted"),
}
REFERENCES = ("loop", "upstream", "numeric", "eager", "float64", "reference", "exact", "again", "threads", "strides", "raises")
FACTS = (
    "autograd", "forward_ad", "gradgrad", "out", "inplace", "reference", "errors", "deterministic", "opinfo", "own",
    "unary", "binary", "reduction", "spectral", "shape", "other",
)  # fmt: skip
KINDS = ("unary", "binary", "reduction", "spectral", "shape", "other", "own")


def fault(what: str, expected: str = "", nearest: str = "", offset: int = -1) -> PydanticCustomError:
    """A mistake with the fields of `gen.errors.Problem`. `offset` is the place in the string."""
    return PydanticCustomError("matrix", "{what}", {"what": what, "expected": expected, "nearest": nearest, "offset": offset})


def _matching(pattern: str, expected: str) -> AfterValidator:
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise fault(f"{text!r} is not a name that Python source may hold", expected)
        return text

    return AfterValidator(check)


class _OneOf:
    """A string out of a fixed set, with the nearest name in its message and an `enum` in the JSON Schema."""

    def __init__(self, names: Iterable[str], what: str) -> None:
        self.names, self.what = tuple(names), what

    def check(self, text: str) -> str:
        if text not in self.names:
            raise fault(f'unknown {self.what} "{text}"', one_of(self.names), nearest(text, self.names))
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "enum": list(self.names)}


def _identifier(text: str) -> str:
    if not text.isidentifier() or not text.isascii() or keyword.iskeyword(text):
        raise fault(f"{text!r} cannot name a test", "a Python identifier: letters, digits and underscores")
    return text


def _pipeline(text: str) -> str:
    try:
        return str(pipeline.parse(text))
    except pipeline.PipelineError as error:
        raise fault(error.what, error.expected, nearest(error.word, pipeline.STAGES), error.offset) from None


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise fault(f"{text!r} is not a regular expression: {error}", "a pattern for re.search", offset=error.pos or -1) from None
    return text


def _specifier(text: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise fault(f"{text!r} is not a version specifier", 'such as "<2.14" or ">=2.11,!=2.12.0"') from None
    return text


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    if not joined:
        raise fault("an empty text", "a sentence")
    return joined


def _day(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise fault(f"{value!r} is not a date", "YYYY-MM-DD")
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise fault(f"{value!r} is not a date: {error}", "YYYY-MM-DD") from None


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _op_row(value: object) -> object:
    return {"op": value} if isinstance(value, str) else value


def _samples(value: object) -> object:
    if isinstance(value, str):
        return {} if value == "opinfo" else {"callable": value}
    if not isinstance(value, list):
        raise fault("not a source of samples", "opinfo, package.module:callable, or a list of {args, kwargs}")
    return {"rows": value}


def _reduce(value: object) -> object:
    strengths: dict[str, dict[str, int]] = {"smoke": {"t": 1}, "pairwise": {"t": 2}, "full": {}}
    if isinstance(value, str):
        if value not in strengths:
            expected = f"one of {', '.join(strengths)}, {{t: N}}, {{sample: N, seed: S}}"
            raise fault(f'unknown reduction "{value}"', expected, nearest(value, strengths))
        return strengths[value]
    return value


def _kind_of_argument(value: object) -> str:
    """The tag of the form of an argument. Tags occur in pydantic's paths, and are removed from messages."""
    if isinstance(value, dict):
        return "<tensor>"
    return "<list>" if isinstance(value, list) else "<plain>"


Identifier = Annotated[str, AfterValidator(_identifier)]
Dotted = Annotated[str, _matching(r"[A-Za-z_]\w*(\.\w+)*", "a dotted name such as torch.nn.functional.conv2d")]
Callable_ = Annotated[str, _matching(r"[A-Za-z_]\w*(\.\w+)*(:[A-Za-z_]\w*(\.\w+)*)?", "package.module:function, or a dotted name")]
Glob = Annotated[str, _matching(r"[\w.*?\[\]!-]+", "a name, or a glob such as torch.linalg.*")]
Word = Annotated[str, _matching(r"\w+", "a word of letters, digits and underscores")]
DtypeName = Annotated[str, _OneOf(DTYPES, "dtype")]
Text = Annotated[str, AfterValidator(_one_line)]
Regex = Annotated[str, AfterValidator(_regex)]
Specifier = Annotated[str, AfterValidator(_specifier)]
Day = Annotated[date, BeforeValidator(_day, json_schema_input_type=str)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, description="how long a cell may take")]
Globs = Annotated[list[Glob], Field(min_length=1), BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
Words = Annotated[list[Word], Field(min_length=1), BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
Reference = Annotated[str, _OneOf(REFERENCES, "reference")]
Against = Annotated[list[Reference], Field(min_length=1), BeforeValidator(_as_list, json_schema_input_type=Reference | list[Reference])]


class Strict(BaseModel):
    """A model in which unknown keys are mistakes and nothing is coerced: `"4"` is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tensor(Strict):
    """A tensor by description: its shape, the range of its values, and its memory layout."""

    shape: list[Annotated[int, Field(ge=0)]]
    dtype: DtypeName | None = None
    low: float | None = None
    high: float | None = None
    domain: Literal["any", "positive", "unit", "nonzero", "spd", "symmetric", "permutation", "index", "bool", "distinct"] = "any"
    size: Annotated[Positive | None, Field(description="indices are drawn from 0 … size − 1")] = None
    layout: Literal["contiguous", "transposed", "noncontiguous", "strided", "expanded"] = "contiguous"
    requires_grad: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Tensor:
        if self.domain == "index" and self.size is None:
            raise fault("domain index without a size", "`size: N`, so that indices are drawn from 0 … N − 1")
        if self.domain in ("spd", "symmetric") and (len(self.shape) < 2 or self.shape[-1] != self.shape[-2]):
            raise fault(f"domain {self.domain} with shape {self.shape}", "a shape whose last two sizes are equal")
        if self.domain == "permutation" and not self.shape:
            raise fault("domain permutation with shape []", "a shape with at least one dimension")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise fault(f"low {self.low} is not below high {self.high}", "low < high")
        return self


Plain = bool | int | float | str | None
Item = Annotated[Annotated[Tensor, Tag("<tensor>")] | Annotated[list[Any], Tag("<list>")] | Annotated[Plain, Tag("<plain>")],
                 Discriminator(_kind_of_argument)]  # fmt: skip
Argument = Annotated[Annotated[Tensor, Tag("<tensor>")] | Annotated[list[Item], Tag("<list>")] | Annotated[Plain, Tag("<plain>")],
                     Discriminator(_kind_of_argument)]  # fmt: skip


class Sample(Strict):
    """The arguments of one call."""

    args: list[Argument] = []
    kwargs: dict[Word, Argument] = {}


class ErrorSample(Sample):
    """A call that must fail, with its exception."""

    raises: Dotted
    match: Regex = ""


class Samples(Strict):
    """The source of samples: `opinfo`, a callable, or a list of calls."""

    callable: Callable_ | None = None
    rows: Annotated[list[Sample] | None, Field(min_length=1)] = None

    @property
    def from_opinfo(self) -> bool:
        return self.callable is None and self.rows is None


SamplesOf = Annotated[Samples, BeforeValidator(_samples, json_schema_input_type=str | list[Sample])]


class Tolerance(Strict):
    """The allowed error of results, if the dtype's own tolerance does not fit."""

    rtol: NotNegative = 0.0
    atol: NotNegative = 0.0
    reason: Text = ""


class OpRow(Strict):
    """One op. A name or glob alone stands for rows of torch's OpInfo database."""

    op: Glob
    call: Callable_ | None = None
    dtypes: Words | None = None
    samples: SamplesOf | None = None
    reference: Callable_ | None = None
    errors: list[ErrorSample] = []
    differentiable: bool | None = None
    inplace: Callable_ | None = None
    out: Callable_ | None = None
    checks: Globs | None = None
    not_checks: Globs = []
    tolerance: Tolerance | None = None
    timeout: Seconds | None = None
    notes: Text = ""


class Family(Strict):
    """Ops that share a generated module."""

    title: Text = ""
    ops: Annotated[
        list[Annotated[OpRow, BeforeValidator(_op_row, json_schema_input_type=str | OpRow)]],
        Field(min_length=1),
    ]
    not_ops: Globs = []
    kinds: list[Annotated[str, _OneOf(KINDS, "kind")]] = []
    samples: SamplesOf | None = None
    dtypes: Words | None = None
    checks: Globs = ["all"]
    not_checks: Globs = []
    timeout: Seconds | None = None


class Check(Strict):
    """A column: a pipeline, and what it is compared with."""

    claim: Text
    pipeline: Annotated[str, AfterValidator(_pipeline)] = "forward"
    against: Against
    form: Annotated[str, _OneOf(AXES["form"], "form")] = "functional"
    layout: Annotated[str, _OneOf(AXES["layout"], "layout")] = "contiguous"
    values: Annotated[str, _OneOf(AXES["values"], "values")] = "ordinary"
    over: dict[Annotated[str, _OneOf(AXES, "axis")], Words] = {}
    dtypes: Words | None = None
    ops: Globs = ["*"]
    not_ops: Globs = []
    families: Globs = ["*"]
    not_families: Globs = []
    requires: list[Annotated[str, _OneOf(FACTS, "fact")]] = []
    tolerance: Tolerance | None = None
    timeout: Seconds | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Check:
        _check_axes(self.over)
        if "argument_inplace" in self.over.get("form", [self.form]) and not pipeline.WRITABLE.intersection(self._innermost()):
            raise fault(
                f'pipeline "{self.pipeline}" with form argument_inplace', f"one of {', '.join(sorted(pipeline.WRITABLE))} innermost"
            )
        return self

    def _innermost(self) -> tuple[str, ...]:
        return pipeline.parse(self.pipeline).stages[-1:]


class Spread(Strict):
    """An axis that many checks have."""

    values: Words
    checks: Globs = ["*"]
    not_checks: Globs = []


def _check_axes(over: Mapping[str, list[str]]) -> None:
    for axis, values in over.items():
        for value in values:
            if value not in AXES[axis]:
                raise fault(f'unknown value "{value}" of axis {axis}', one_of(AXES[axis]), nearest(value, AXES[axis]))
        if len(set(values)) < len(values):
            raise fault(f"axis {axis} has a value twice", "each value once")


def _spread_axes(over: dict[str, Spread]) -> dict[str, Spread]:
    _check_axes({axis: spread.values for axis, spread in over.items()})
    return over


AxisName = Annotated[str, _OneOf(AXES, "axis")]


class Where(Strict):
    """The cases of an entry: globs over every axis. A key that is left out matches everything."""

    op: Globs = ["*"]
    family: Globs = ["*"]
    check: Globs = ["*"]
    dtype: Globs = ["*"]
    axes: dict[Annotated[str, _OneOf(AXES, "axis")], Globs] = {}
    reason: Text
    link: Text = ""
    until: Day | None = None
    name: Identifier | None = None


class Exclude(Where):
    """Cases that are not generated."""


class Known(Where):
    """Cases that are generated, with a known fact about them. The conditions are evaluated at run time."""

    target: Glob | None = None
    device: Glob | None = None
    torch: Specifier | None = None


class Xfail(Known):
    """Cases that must fail with exactly this exception and message."""

    raises: Dotted
    match: Regex


class ToleranceEntry(Known):
    """Cases with their own tolerance."""

    rtol: NotNegative = 0.0
    atol: NotNegative = 0.0


class Reduce(Strict):
    """How many of the valid cells a tier takes: all, a cover of every t-tuple, or a seeded sample."""

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

    reduce: Annotated[Reduce, BeforeValidator(_reduce, json_schema_input_type=Literal["smoke", "pairwise", "full"] | Reduce)] = Reduce()
    checks: Globs = ["*"]
    ops: Globs = ["*"]
    families: Globs = ["*"]
    dtypes: Words | None = None
    axes: Annotated[dict[AxisName, Globs], Field(description="only columns with these values")] = {}
    not_axes: Annotated[dict[AxisName, Globs], Field(description="no columns with these values")] = {}
    limit: list[Limit] = []


class Tier(Part):
    """The cells that a run takes. A tier contains the cells of the smaller tiers, and of the parts that are named under `also`."""

    also: list[Part] = []


class Targets(Strict):
    """Implementations that the matrix exercises."""

    default: Word = "runtime"
    names: list[Word] = ["runtime", "torch"]


class Device(Strict):
    """How to find out whether a device is present."""

    available: Callable_ | None = None
    reason: Text = ""


class Matrix(Strict):
    """matrix.yaml, its includes merged."""

    version: Literal[1]
    include: Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])] = []
    targets: Targets = Targets()
    dtypes: dict[Word, Words] = {}
    devices: dict[Word, Device] = {}
    checks: dict[Identifier, Check] = {}
    over: Annotated[dict[AxisName, Spread], AfterValidator(_spread_axes), Field(description="axes that many checks have")] = {}
    families: dict[Identifier, Family]
    exclude: list[Exclude] = []
    skip: list[Known] = []
    xfail: list[Xfail] = []
    vanishes: list[Known] = []
    tolerance: list[ToleranceEntry] = []
    tiers: dict[Annotated[str, _OneOf(TIERS, "tier")], Tier] = {}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of matrix.yaml, for editors."""
    schema = Matrix.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "matrix.yaml",
        **{key: value for key, value in schema.items() if key != "title"},
    }
