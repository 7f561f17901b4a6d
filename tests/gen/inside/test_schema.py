"""The JSON Schemas: they are current, whole, and agree with the language about what is right.

Inside: gen.language.source and gen.language.pipeline. A schema is about the data of a file before
anything else has read it, and PyYAML alone reads another version of YAML. The patterns of pipelines
are compared with the parser on 60,000 texts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from gen.errors import MatrixError
from gen.language import pipeline, source
from gen.language.spec import json_schemas
from tests.bad_inputs.trial import BadInput, bad_inputs, prepare

ROOT = Path(__file__).parents[3]
SCHEMAS = json_schemas()
REGISTRY: Registry[Any] = Registry().with_resources(
    (name, Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)
OF_MATRICES = [
    bad
    for bad in bad_inputs()
    if bad.run == ("gen generate",) and bad.code == 2 and not bad.full_disk
]


def faults(data: Any, name: str = "matrix.schema.json") -> list[str]:
    """What an editor would say of the data."""
    return [
        error.message
        for error in Draft202012Validator(
            SCHEMAS[name], registry=REGISTRY, format_checker=FormatChecker()
        ).iter_errors(data)
    ]


def test_the_committed_schemas_are_current() -> None:
    """`python -m gen schema` writes them."""
    for name, schema in SCHEMAS.items():
        assert json.loads((ROOT / name).read_text()) == schema
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "path",
    [Path(__file__).parents[1] / "data" / "matrix.yaml", ROOT / "matrix.yaml"],
    ids=["example", "the project's own"],
)
def test_right_matrices_fit(path: Path) -> None:
    assert faults(source.load(path).data) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "matrix").glob("*.yaml")), ids=lambda path: path.stem
)
def test_included_files_name_their_schema_and_fit_it(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=../included.schema.json\n")
    assert faults(source.load(path).data, "included.schema.json") == []


def loaded(bad: BadInput, folder: Path) -> Any:
    """The data of a bad matrix, or None if it is not readable as YAML."""
    prepare(bad, folder)
    try:
        return source.load(folder / "matrix.yaml").data
    except MatrixError:
        return None


@pytest.mark.parametrize("bad", OF_MATRICES, ids=lambda bad: bad.what)
def test_the_schema_refuses_what_generate_refuses(bad: BadInput, tmp_path: Path) -> None:
    """Except for what a schema cannot say, such as that a name stands elsewhere. Such
    rows are marked."""
    (tmp_path / "generated_tests").mkdir()
    data = loaded(bad, tmp_path)
    if data is None:
        assert not bad.beyond_schema, "the row is marked without need: its YAML is not read"
    else:
        assert bool(faults(data)) != bad.beyond_schema, faults(data)


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
    assert faults(right) == []
    assert faults({**right, **change})


def test_matrix_yaml_names_its_schema_for_editors() -> None:
    assert (
        (ROOT / "matrix.yaml")
        .read_text()
        .startswith("# yaml-language-server: $schema=./matrix.schema.json\n")
    )


STAGES = (*pipeline.STAGES, "vpj")


@pytest.mark.parametrize("first", STAGES)
@pytest.mark.parametrize("second", STAGES)
def test_schema_and_parser_agree_on_pipelines(first: str, second: str) -> None:
    for third in STAGES:
        text = f"{first} . {second}.{third}"
        try:
            pipeline.parse(text)
            right = True
        except pipeline.PipelineError:
            right = False
        assert bool(re.search(pipeline.PATTERN, text)) == right, text


@pytest.mark.parametrize(
    "text", ["", " ", "vmap vjp", "vmap . ", ". vmap", "vmap..vjp", "vmap . vjp . ", "vmap,vjp"]
)
def test_neither_takes_what_is_no_pipeline(text: str) -> None:
    assert not re.search(pipeline.PATTERN, text)
    with pytest.raises(pipeline.PipelineError):
        pipeline.parse(text)
