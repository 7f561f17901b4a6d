"""What the generator says of wrong values behind tags, such as ``!tuple 3``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gen.cli import main

Captured = pytest.CaptureFixture[str]

MATRIX = """
version: 1
checks: {{forward: {{claim: c, against: eager}}}}
families:
  one:
    ops:
      - {{op: own.f, call: "torch:sin", samples: [{{args: [{value}]}}]}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/w.txt").touch()
    Path("w.pt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("!tuple 3", "m.yaml:7:58: !tuple stands before another kind of value"),
        ("!dtype [float32]", "!dtype stands before another kind of value"),
        ("!tuple {a: 1}", "!tuple stands before another kind of value"),
        ("!slice [1, 2, 3, 4]", "m.yaml:7:58: [1, 2, 3, 4] is no value of !slice"),
        ("!slice [1, a]", "is no value of !slice; expected !slice [1, null, 2]"),
        ("!slice [1, 5, 0]", "[1, 5, 0] is no value of !slice"),
        ("!dtype floaty", "'floaty' is no value of !dtype; expected !dtype float64"),
        ("!device c u", "'c u' is no value of !device; expected !device cuda:0"),
        ("!complex i", "'i' is no value of !complex; expected !complex 1+2j"),
        ("!generator -1", "'-1' is no value of !generator"),
        ("!file none.pt", "'none.pt' is no value of !file; expected !file data/weights.pt"),
        ("!file ../w.pt", "'../w.pt' is no value of !file"),
        ("!file data/w.txt", "'data/w.txt' is no value of !file"),
        ("!set [1]", "the tag !set is not allowed: a matrix holds data, not objects"),
        ("!tuple [{shape: [-1]}]", "shape[0]: -1 does not fit"),
        ("{!dtype float32: 1}", "a key that is a list, a mapping or has a tag"),
    ],
)
def test_a_wrong_value_behind_a_tag_is_named_with_its_place(
    written: str, message: str, capsys: Captured
) -> None:
    Path("m.yaml").write_text(MATRIX.format(value=written))
    assert main(["generate", "--matrix", "m.yaml"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("generated_tests").exists()
