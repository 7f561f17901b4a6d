"""`gen coverage`: the table, the reasons, and what is lost since a file was written."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

import gen.dispatcher
from gen import cli

REASONS = Path(gen.dispatcher.__file__).with_name("reasons.yaml")


def counted(folder: Path, *names: str) -> Path:
    """Write a folder as a run leaves it, in which the target calls these overloads."""
    folder.mkdir()
    line = {"op": "torch.sin", "check": "out", "calls": {"top": list(names)}}
    (folder / "1.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_an_overload_has_its_rows_or_a_reason(tmp_path: Path) -> None:
    folder, file = counted(tmp_path / "calls", "aten::sin.out"), tmp_path / "coverage.json"
    assert cli.main(["coverage", "--counted", str(folder), "--json", str(file)]) == 0
    facts = json.loads(file.read_text())
    assert facts["aten::sin.out"] == {"state": "called", "family": "out=", "by": ["torch.sin out"]}
    assert facts["aten::sin"]["state"] == "open"
    assert facts["aten::cudnn_convolution"]["reason"].startswith("hardware: ")
    assert len(facts) > 3000


def test_what_is_no_longer_called_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "coverage.json"
    more = counted(tmp_path / "more", "aten::sin.out", "aten::cos.out")
    less = counted(tmp_path / "less", "aten::sin.out")
    assert cli.main(["coverage", "--counted", str(more), "--json", str(file)]) == 0
    assert cli.main(["coverage", "--counted", str(less), "--against", str(file)]) == 1
    printed = capsys.readouterr().out
    assert "no longer called: aten::cos.out" in printed and "aten::sin.out" not in printed
    both = ["coverage", "--counted", str(less), "--counted", str(more), "--against", str(file)]
    assert cli.main(both) == 0


def test_a_folder_without_calls_is_no_coverage(tmp_path: Path) -> None:
    assert cli.main(["coverage", "--counted", str(tmp_path)]) == 2


def test_each_glob_of_the_reasons_fits_an_overload(tmp_path: Path) -> None:
    from gen.torch_private.aten_overloads import every_overload

    wholes = [name.removeprefix("aten::") for name in every_overload()]
    bases = {name.partition(".")[0] for name in wholes}
    rules = yaml.safe_load(REASONS.read_text())
    globs = [glob for kind in rules.values() for rule in kind for glob in rule["names"]]
    unused = [
        glob
        for glob in globs
        if not any(fnmatchcase(name, glob) for name in (wholes if "." in glob else bases))
    ]
    assert unused == []
