"""`gen probe` proposes entries for the failures that it found, and leaves the
reasons to a person."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from torch._C._functorch import is_functorch_wrapped_tensor

from gen.cli import main

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


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX)
    return path


def run(
    matrix: Path, op: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, Any]:
    code = main(["probe", op, "--target", "torch", "--matrix", str(matrix), *more])
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
    matrix.write_text(MATRIX + yaml.safe_dump({"xfail": [entry]}))
    assert main(["list"]) == 2
    assert "reason" in capsys.readouterr().err
    entry["reason"] = "only square matrices factorize"
    matrix.write_text(MATRIX + yaml.safe_dump({"xfail": [entry]}))
    assert main(["list"]) == 0
    assert "xfail:only_square_matrices_factorize" in capsys.readouterr().out


def test_checks_can_be_chosen_by_glob(matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(matrix, "torch.sin", capsys, "--checks", "vm*")[2]["families"]["mine"]["ops"][0][
        "checks"
    ] == ["vmap"]


def test_an_unknown_op_is_told_with_the_nearest(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(matrix, "torch.sine", capsys)
    assert code == 2 and "torch.sin" in text


def size(x: Any) -> Any:
    raise RuntimeError("size of tensor a (3) must match 0x7f at dim 1, got '4'")


def wrong(x: Any) -> Any:
    """Give another result inside of a transform of the target, which the reference has not."""
    return x * (2 if is_functorch_wrapped_tensor(x) else 1)


def written(x: Any) -> Any:
    raise ValueError("a+b\nmore")


def silent(x: Any) -> Any:
    raise ValueError("")


WRONG = r"output 0 of 1, float64\[3\]: largest error 1\.41 at index \[2\]"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("size", "size of tensor a"),
        ("wrong", WRONG),
        ("written", r"a\+b"),
        ("silent", "^$"),
    ],
)
def test_a_pattern_holds_what_stays_the_same_from_sample_to_sample(
    name: str, pattern: str, matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = f"      - {{op: tests.run.test_probe.{name}, samples: [{{args: [{{shape: [3]}}]}}]}}\n"
    matrix.write_text(MATRIX + row)
    proposed = run(matrix, f"tests.run.test_probe.{name}", capsys, "--checks", "vjp")[2]
    assert proposed["xfail"][0]["match"] == pattern


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
