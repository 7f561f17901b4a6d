"""`gen target init` writes a package whose target gives first results without an edit. That of a
device is run by `test_bring_up.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gen.cli import main
from gen.run.results import read

pytest_plugins = "pytester"

KINDS = ("device", "library", "framework")


def begin(folder: Path, kind: str) -> Path:
    """Write a package, and return its folder."""
    assert main(["target", "init", str(folder), "--kind", kind, "--requirement", "x==1"]) == 0
    return folder


def outcomes(folder: Path) -> set[str]:
    """Return the outcomes of the cells that have run in a package."""
    (results,) = folder.glob(".cache/matrix/results-*.jsonl")
    run = read(results)
    assert run.header["target"] == folder.name
    return {cell.outcome for cell in run.cells}


@pytest.mark.parametrize(
    ("kind", "expected"), [("library", {"passed"}), ("framework", {"passed", "lacking"})]
)
def test_a_target_passes_its_own_tests_and_the_smoke_tier_as_it_is_written(
    kind: str, expected: set[str], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begin(pytester.path / f"my_{kind}", kind)
    monkeypatch.chdir(folder)
    done = pytester.runpytest_inprocess("-q", "tests", "generated_tests", "--tier", "smoke")
    assert done.ret == 0
    assert outcomes(folder) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_its_files_are_what_its_readme_says(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begin(tmp_path / "mine", kind)
    assert (folder / "requirements.txt").read_text().splitlines()[0] == "x==1"
    assert f"mine: a target of kind {kind}. Next: cd " in capsys.readouterr().out
    assert main(["check", "--matrix", str(folder / "matrix.yaml")]) == 0
    table = [line for line in (folder / "README.md").read_text().splitlines() if line[:2] == "| "]
    for line in table[1:]:
        assert (folder / line.split("`")[1]).is_file(), line
    matrix = yaml.safe_load((folder / "matrix.yaml").read_text())
    assert matrix["targets"]["import"] == {"mine": "mine.target:Target"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2fast", "'2fast' is no name for a package"),
        ("json", "a package 'json' is installed already"),
        ("inductor", "a target 'inductor' is there already"),
        ("full", "full has notes.txt: choose an empty folder"),
    ],
)
def test_what_is_in_the_way_is_named_and_stays(
    name: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    assert main(["target", "init", name, "--kind", "device", "--requirement", "x"]) == 2
    assert message in capsys.readouterr().err
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == [
        "full",
        "full/notes.txt",
    ]


def test_a_kind_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["target", "init", "mine"])
    assert "the following arguments are required: --kind" in capsys.readouterr().err


MATRIX = """\
version: 1
targets:
  names: [torch, mine]
  import: {%s}
checks:
  forward: {claim: The op equals itself., pipeline: forward, against: eager}
families:
  unary: {title: Unary, dtypes: [float64], ops: [torch.sin]}
"""


@pytest.mark.parametrize(
    ("imports", "message"),
    [
        (
            "mine: nowhere.target:Target",
            'matrix.yaml:4:18: targets.import.mine: there is no package or module "nowhere"',
        ),
        (
            "other: gen.targets.torch_target:TorchTarget",
            'matrix.yaml:4:19: targets.import.other: "other" is not in targets.names',
        ),
        (
            "torch: gen.targets.torch_target:TorchTarget",
            'matrix.yaml:4:19: targets.import.torch: "torch" is a target of this generator',
        ),
    ],
)
def test_a_mistake_in_the_targets_of_a_matrix_is_shown_with_its_place(
    imports: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX % imports)
    assert main(["generate", "--matrix", str(tmp_path / "matrix.yaml")]) == 2
    assert message in capsys.readouterr().err
