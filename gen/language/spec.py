"""Define the language of matrix.yaml, as pydantic models. They give `matrix.schema.json`.

This is the file as a whole. Its parts are in `op_specs` (rows), `sample_specs` (their arguments),
`check_specs` (columns) and `selection_specs` (entries, tiers, levels).

Short forms are widened before validation: a word to a list of one word, an op's name to a mapping.
So each model has one shape, and a mistake has one place. `gen.plan.expand` resolves names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gen.errors import nearest, one_of
from gen.language.check_specs import Check, Spread, check_spreads
from gen.language.field_types import AxisName, DtypeName, Strict, Words, as_list
from gen.language.op_specs import Family
from gen.language.selection_specs import (
    TIERS,
    Exclude,
    Known,
    LevelSpec,
    Tier,
    ToleranceEntry,
    Xfail,
)
from gen.language.texts import Callable_, Identifier, NotNegative, OneOf, Text, Word, fault

# A mistake in one of these may change which cases there are.
SECTIONS_OF_CASES = ("include", "dtypes", "checks", "over", "families", "exclude")


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
        list[str], BeforeValidator(as_list, json_schema_input_type=str | list[str])
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
        AfterValidator(check_spreads),
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
    # An included file has some of the same sections, and none of them is required.
    properties = {name: _refer_to_matrix(value) for name, value in schema["properties"].items()}
    return {SCHEMA: whole, INCLUDED_SCHEMA: {**draft, **included, "properties": properties}}


def _close(schema: object) -> Any:
    """Return `schema`, in which a mapping whose keys have a pattern takes no other keys."""
    if isinstance(schema, list):
        return list(map(_close, schema))
    if not isinstance(schema, dict):
        return schema
    # Pydantic leaves such a mapping open, but `Identifier` and `Word` refuse other keys.
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
