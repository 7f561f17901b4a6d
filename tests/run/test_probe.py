"""`gen probe` proposes entries for the failures that it found, and leaves the
reasons to a person."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from gen.commands import probe
from gen.errors import MatrixError
from gen.language import validate
from gen.outcomes import Mismatch
from gen.plan import catalog
from gen.plan.catalog import Catalog, Facts
from gen.plan.expand import expand

MATRIX = """
version: 1
checks:
  vjp: {claim: c, pipeline: vjp, against: upstream, dtypes: [float64], requires: [autograd]}
  vmap: {claim: c, pipeline: vmap, against: loop, dtypes: [float32, float64]}
families:
  own:
    ops:
      - {op: own.floor, call: torch.floor, samples: [{args: [{shape: [2, 3]}]}]}
      - {op: own.refuses, call: torch.linalg.cholesky, samples: [{args: [{shape: [2, 2], domain: \
spd}]}, {args: [{shape: [2, 3]}]}]}
"""
SIN = Facts(
    "torch.sin", "sin", "", "unary", ("float32", "float64"), ("float64",), ("autograd", "opinfo")
)


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(catalog, "load", lambda cache: Catalog.of("2.13.0", [SIN]))
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX)
    return path


def run(
    matrix: Path, op: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, Any]:
    parser = argparse.ArgumentParser()
    probe.add_arguments(parser)
    code = probe.run(parser.parse_args([op, "--target", "torch", "--matrix", str(matrix), *more]))
    out, err = capsys.readouterr()
    return code, out + err, yaml.safe_load(out)


def test_an_op_of_the_database_is_proposed_with_the_checks_that_concern_it(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, proposed = run(matrix, "torch.sin", capsys)
    assert code == 0 and "# torch.sin on target torch: 3 passed" in text
    row = proposed["families"]["mine"]["ops"][0]
    assert row == {"op": "torch.sin", "dtypes": ["float64", "float32"], "checks": ["vjp", "vmap"]}


def test_what_compares_nothing_is_not_proposed(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, proposed = run(matrix, "own.floor", capsys)
    assert proposed["families"]["own"]["ops"][0]["checks"] == ["vmap"]
    assert "# compared nothing: vjp float64" in text


def test_a_failure_becomes_an_entry_that_does_not_validate_without_a_reason(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, proposed = run(matrix, "own.refuses", capsys)
    entry = proposed["xfail"][0]
    assert (entry["raises"], entry["target"], entry["reason"]) == ("RuntimeError", "torch", None)
    assert "an entry without a reason does not validate" in text
    known = Catalog.of("2.13.0", [SIN])
    matrix.write_text(MATRIX + yaml.safe_dump({"xfail": [entry]}))
    with pytest.raises(MatrixError, match="reason"):
        expand(validate.load(matrix), known)
    matrix.write_text(
        MATRIX + yaml.safe_dump({"xfail": [entry | {"reason": "only square matrices factorize"}]})
    )
    assert expand(validate.load(matrix), known).entries


def test_checks_can_be_chosen_by_glob(matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(matrix, "torch.sin", capsys, "--checks", "vm*")[2]["families"]["mine"]["ops"][0][
        "checks"
    ] == ["vmap"]


def test_an_unknown_op_is_told_with_the_nearest(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(matrix, "torch.sine", capsys)
    assert code == 2 and "torch.sin" in text


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        (
            RuntimeError("size of tensor a (3) must match 0x7f at dim 1, got '4'"),
            "size of tensor a",
        ),
        (
            Mismatch(
                "vjp(f): output 0 of 1, float64[3]: largest error 2 at index [1]: got 1, expected 3"
            ),
            "largest error",
        ),
        (ValueError("a+b\nmore"), r"a\+b"),
        (ValueError(""), "^$"),
    ],
)
def test_a_pattern_holds_what_stays_the_same_from_sample_to_sample(
    error: Exception, pattern: str
) -> None:
    assert probe.pattern(error) == pattern


def test_several_checks_can_be_chosen(matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proposed = run(matrix, "torch.sin", capsys, "--checks", "vm*", "--checks", "vjp")[2]
    assert proposed["families"]["mine"]["ops"][0]["checks"] == ["vjp", "vmap"]


def test_a_check_that_does_not_exist_is_told_with_the_nearest(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(matrix, "torch.sin", capsys, "--checks", "vpj")
    assert (
        code == 2
        and 'no check matches "vpj"; expected one of vjp, vmap; did you mean "vjp"?' in text
    )
