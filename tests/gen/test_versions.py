"""Rows, samples, tolerances and entries for some versions of torch."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gen import cli
from gen.checks import Case, Cell, Family
from gen.language import validate
from gen.language.axes import USUAL
from gen.outcomes import Lacking
from gen.samples.samples import candidates, make_op
from gen.targets import load
from gen.versions import is_for_installed, is_for_version
from runtime.facts import lock

INSTALLED = version("torch").partition("+")[0]
ROOT = Path(__file__).parents[2]
OTHER, THIS = f"!={INSTALLED}", f">={INSTALLED}"


@pytest.mark.parametrize(
    ("specifier", "torch", "holds"),
    [
        (">=2.14", "2.14.1", True),
        (">=2.14", "2.13.0+cpu", False),
        ("==2.13.*", "2.13.0+cpu", True),
        (">=2.14,!=2.14.1", "2.14.1", False),
        (">=2.15.0.dev0", "2.15.0.dev20260101", True),
    ],
)
def test_a_specifier_holds_for_releases(specifier: str, torch: str, holds: bool) -> None:
    assert is_for_version(specifier, torch) is holds


def test_no_specifier_holds_always() -> None:
    assert is_for_installed(None) and is_for_installed(THIS) and not is_for_installed(OTHER)


_REQUIREMENTS = (ROOT / "requirements.txt", *sorted((ROOT / "requirements").glob("*.txt")))


@pytest.mark.parametrize("file", _REQUIREMENTS, ids=lambda f: f.stem)
def test_an_environment_of_make_has_one_version_of_each_package(file: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines()]
    packages = [line for line in lines if line and not line.startswith("-r ")]
    # a range would take the version that a new environment happens to have
    assert packages and [line for line in packages if "==" not in line] == []


def test_each_torch_with_facts_has_an_environment() -> None:
    pinned = {line for file in _REQUIREMENTS for line in file.read_text("utf-8").splitlines()}
    assert [v for v in lock.versions() if f"torch=={v}" not in pinned] == []


def _samples(rows: list[dict[str, Any]]) -> list[list[Any]]:
    import torch

    row = {"samples": rows}
    found = candidates(make_op("torch.sin", row), row, torch.float64, "cpu", wrapped=False)
    return [sample.inputs[0].tolist() for sample in found]


def test_samples_for_other_versions_are_left_out_and_do_not_change_the_rest() -> None:
    one = {"args": [{"shape": [2]}]}
    all_of_them = _samples([one, one, one])
    assert len({str(values) for values in all_of_them}) == 3
    assert _samples([one, {**one, "torch": OTHER}, one]) == [all_of_them[0], all_of_them[2]]
    assert _samples([one, {**one, "torch": THIS}, one]) == all_of_them


def _run(row: dict[str, Any]) -> Case:
    family = Family("mine", ops={"torch.sin": row})
    cell = Cell("torch.sin", "float64", USUAL, "full", ())
    case = Case(cell, check="forward", family=family, target=load("torch"))
    case.assert_same("forward", against="exact")
    return case


def test_a_row_for_other_versions_is_lacking_by_name() -> None:
    samples = {"samples": [{"args": [{"shape": [2]}]}]}
    assert _run({**samples, "torch": THIS}).compared
    with pytest.raises(Lacking, match=f"the row is for torch {OTHER}"):
        _run({**samples, "torch": OTHER})


MATRIX = """
version: 1
targets: {{default: torch, names: [torch]}}
dtypes: {{real: [float32, float64]}}
devices: {{cpu: {{}}}}
checks:
  forward: {{claim: The op equals itself in double precision., against: float64}}
tiers: {{full: {{}}}}
families:
  pointwise:
    ops:
      - {{op: torch.sin, torch: "{row}", tolerance: {{rtol: 1e-3, torch: "{tolerance}"}}}}
      - {{op: torch.cos, samples: [{{args: [{{shape: [2]}}], torch: "{sample}"}}]}}
xfail:
  - {{op: torch.sin, torch: "{entry}", reason: it is wrong, raises: Mismatch, match: size 1}}
"""
PLACES = {
    "row": "families.pointwise.ops[0].torch",
    "tolerance": "families.pointwise.ops[0].tolerance.torch",
    "sample": "families.pointwise.ops[1].samples[0].torch",
    "entry": "xfail[0].torch",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.chdir(tmp_path)

    def of(**conditions: str) -> None:
        text = MATRIX.format(**dict.fromkeys(PLACES, ">=2") | conditions)
        (tmp_path / "matrix.yaml").write_text(text)

    return of


@pytest.mark.parametrize("place", PLACES)
def test_a_condition_that_no_version_meets_is_a_mistake(
    place: str, write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(**{place: ">=2.14"})
    assert cli.main(["generate"]) == 0
    assert cli.main(["check", "--torch", "2.13.0", "2.14.1"]) == 0
    assert cli.main(["check", "--torch", "2.12.1", "2.13.0"]) == 2
    said = capsys.readouterr().err
    assert f'{PLACES[place]}: ">=2.14" is for none of the versions 2.12.1, 2.13.0' in said
    assert "1 mistake;" in said


def test_a_version_that_is_none_is_refused(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    with pytest.raises(SystemExit):
        cli.main(["check", "--torch", "new"])
    assert "'new' is no version, such as 2.14.1" in capsys.readouterr().err


def test_the_condition_of_a_tolerance_is_that_of_its_entry(write: Callable[..., None]) -> None:
    write(tolerance="<2.14")
    assert cli.main(["generate"]) == 0
    text = Path("generated_tests/test_pointwise.py").read_text()
    assert 'torch="<2.14"' in text and json.dumps(">=2") in text


def test_each_condition_of_the_own_matrix_is_met_by_a_version_with_facts() -> None:
    """A row or an entry that never runs says nothing."""
    loaded = validate.load(Path(__file__).parents[2] / "matrix.yaml")
    validate.refuse_unmet(loaded, lock.versions())
    assert loaded.problems == []
