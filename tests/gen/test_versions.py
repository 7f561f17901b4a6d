"""Rows, samples, tolerances and entries for some versions of torch."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gen import cli
from gen.checks import Case, Cell, Family
from gen.language.axes import USUAL
from gen.outcomes import Lacking
from gen.targets import load
from tests.checks.cells import Watching, case

INSTALLED = version("torch").partition("+")[0]
ROOT = Path(__file__).parents[2]
ONE = {"args": [{"shape": [2]}]}
VERSIONS = sorted(
    path.stem.removeprefix("torch-") for path in (ROOT / "runtime/facts/locks").glob("torch-*.json")
)
OTHER, THIS = f"!={INSTALLED}", f">={INSTALLED}"


@pytest.mark.parametrize(
    ("specifier", "holds"),
    [(THIS, True), (OTHER, False), (f"=={INSTALLED}", True), (f">={INSTALLED},{OTHER}", False)],
)
def test_a_specifier_holds_for_the_installed_release(specifier: str, holds: bool) -> None:
    row = {"samples": [{"args": [{"shape": [2]}], "torch": specifier}, ONE]}
    assert len(_samples(row)) == 1 + holds


_REQUIREMENTS = (ROOT / "requirements.txt", *sorted((ROOT / "requirements").glob("*.txt")))


@pytest.mark.parametrize("file", _REQUIREMENTS, ids=lambda f: f.stem)
def test_an_environment_of_make_has_one_version_of_each_package(file: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines()]
    packages = [line for line in lines if line and not line.startswith("-r ")]
    # a range would take the version that a new environment happens to have
    assert packages and [line for line in packages if "==" not in line] == []


def test_each_torch_with_facts_has_an_environment() -> None:
    pinned = {line for file in _REQUIREMENTS for line in file.read_text("utf-8").splitlines()}
    assert VERSIONS and [v for v in VERSIONS if f"torch=={v}" not in pinned] == []


def _samples(row: dict[str, Any]) -> list[list[float]]:
    """Return the numbers of each sample with which a cell calls its op."""
    target = Watching()
    case("own.sin", target=target, ops={"own.sin": {**row, "call": "torch:sin"}}).assert_same(
        "forward", against="eager"
    )
    return [x.tolist() for (x,) in target.calls]


def test_samples_for_other_versions_are_left_out_and_do_not_change_the_rest() -> None:
    every = _samples({"samples": [ONE, ONE, ONE]})
    assert len({str(values) for values in every}) == 3
    without = _samples({"samples": [ONE, {**ONE, "torch": OTHER}, ONE]})
    assert without == [every[0], every[2]]
    assert _samples({"samples": [ONE, {**ONE, "torch": THIS}, ONE]}) == every


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


def test_each_condition_of_the_own_matrix_is_met_by_a_version_with_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row or an entry that never runs says nothing."""
    monkeypatch.chdir(ROOT)
    assert cli.main(["check", "--torch", *VERSIONS]) in (0, 1)
    assert "is for none of the versions" not in capsys.readouterr().err
