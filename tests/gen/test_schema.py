"""The JSON Schema: it is current, whole, and agrees with the language about what is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gen import source
from gen.spec import json_schema

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = json_schema()
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
UNDERSTOOD = {
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "default", "description", "enum", "exclusiveMinimum", "format",
    "items", "maximum", "minItems", "minimum", "oneOf", "properties", "propertyNames", "required", "title", "type",
}  # fmt: skip


def faults(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """What a JSON Schema validator would say, for the keywords that the schema uses."""
    if "$ref" in schema:
        yield from faults(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], path)
        return
    for union in ("anyOf", "oneOf"):
        if union in schema and all(any(faults(value, option, path)) for option in schema[union]):
            yield f"{path}: no option fits"
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        yield f"{path}: not of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{path}: not {schema['const']}"
    if isinstance(value, dict):
        yield from _object(value, schema, path)
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{path}: too short"
        for index, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{path}[{index}]")


def _object(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{path}: lacks {key}" for key in schema.get("required", ()) if key not in value)
    for key, item in value.items():
        if key in properties:
            yield from faults(item, properties[key], f"{path}.{key}")
        elif others is False:
            yield f"{path}: unknown key {key}"
        elif isinstance(others, dict):
            yield from faults(item, others, f"{path}.{key}")
        yield from faults(key, schema.get("propertyNames", {}), f"{path}.{key}")


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema; the keys of `properties` and `$defs` are names, not keywords."""
    if isinstance(schema, list):
        for item in schema:
            yield from subschemas(item)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in ("properties", "$defs"):
                for inner in value.values():
                    yield from subschemas(inner)
            elif key not in ("default", "enum", "const"):
                yield from subschemas(value)


def test_the_committed_schema_is_current() -> None:
    """`python -m gen schema` writes it."""
    assert json.loads((ROOT / "matrix.schema.json").read_text()) == SCHEMA


def test_every_reference_resolves_and_every_keyword_is_one_this_test_understands() -> None:
    for schema in subschemas(SCHEMA):
        assert set(schema) <= UNDERSTOOD, set(schema) - UNDERSTOOD
        if "$ref" in schema:
            assert schema["$ref"].removeprefix("#/$defs/") in SCHEMA["$defs"]


@pytest.mark.parametrize(
    "path", [Path(__file__).parent / "data" / "matrix.yaml", ROOT / "matrix.yaml"], ids=["example", "the project's own"]
)
def test_right_matrices_fit(path: Path) -> None:
    assert list(faults(source.load(path).data, SCHEMA)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"chekcs": {}},
        {"version": 2},
        {"checks": {"vjp": {"pipeline": "vjp", "against": "upstream"}}},
        {"checks": {"vjp": {"claim": "x", "against": "upstraem"}}},
        {"families": {"one": {"ops": "torch.sin"}}},
        {"families": {"one": {"ops": [{"op": "a.b", "samples": [{"args": [{"shap": [1]}]}]}]}}},
        {"skip": [{"op": "torch.sin"}]},
        {"xfail": [{"op": "torch.sin", "reason": "r", "raises": "E"}]},
        {"tiers": {"smok": {}}},
        {"tiers": {"full": {"reduce": "ful"}}},
    ],
)
def test_wrong_matrices_do_not(change: dict[str, Any]) -> None:
    right = {"version": 1, "families": {"one": {"ops": ["torch.sin"]}}}
    assert list(faults(right, SCHEMA)) == []
    assert list(faults({**right, **change}, SCHEMA))


def test_matrix_yaml_names_its_schema_for_editors() -> None:
    assert (ROOT / "matrix.yaml").read_text().startswith("# yaml-language-server: $schema=./matrix.schema.json\n")
