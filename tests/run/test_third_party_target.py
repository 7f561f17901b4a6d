"""A third party's target is found by its entry point and runs like the built-in ones."""

import shutil
from pathlib import Path

import pytest

from gen.run.results import read
from tests.commands import ROOT, python

RUN = ("-m", "pytest", "-p", "gen.run.plugin", "--target", "plain")
MODULE = """
from gen.checks import cases, op

ROWS = [op("torch.sin", smoke="float64 complex128"), op("torch.mul", smoke="float64")]

@cases(*ROWS)
def test_vjp(case):
    case.assert_same("vjp", against=("upstream", "numeric"))

@cases(*ROWS)
def test_vjp_of_vjp(case):
    case.assert_same("vjp . vjp", against="upstream")

@cases(*ROWS)
def test_vmap(case):
    case.assert_same("vmap", against="loop")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as its author's users have it: built and installed, in a folder of its own."""
    folder = tmp_path_factory.mktemp("third_party")
    package = folder / "package"
    shutil.copytree(
        ROOT / "tests/third_party_target", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    pip = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--disable-pip-version-check",
    )
    done = python(folder, *pip, "--target", str(folder / "site"), str(package))
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_it_is_found_by_name(installed: Path, tmp_path: Path) -> None:
    program = "from gen.targets import load, names; print(names(), load('plain').name)"
    found = python(tmp_path, "-c", program, path=(installed, ROOT))
    assert found.stdout.split()[-1] == "plain" and "'plain'" in found.stdout, found.stderr


def test_the_matrix_runs_on_it_and_names_what_it_lacks(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_demo.py").write_text(MODULE)
    done = python(tmp_path, *RUN, "-q", path=(installed, ROOT))
    assert done.returncode == 0, done.stdout
    assert "6 passed · 3 lacking" in done.stdout
    assert "3 cells of vmap: target plain lacks vmap" in done.stdout
    cells = read(tmp_path / ".cache/matrix/results-plain-cpu.jsonl").cells
    assert {(cell.check, cell.outcome) for cell in cells} == {
        ("vjp", "passed"),
        ("vjp_of_vjp", "passed"),
        ("vmap", "lacking"),
    }


def test_without_the_package_the_name_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "test_demo.py").write_text(MODULE)
    done = python(tmp_path, *RUN)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no target 'plain'" in done.stderr
