"""A device of another package runs by its name. What it leaves to the CPU is not covered, a kernel
that kills its process costs one cell, and a backend that is not there stops the run."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gen.cli import main
from gen.run.results import read

pytest_plugins = "pytester"

RESULTS = ".cache/matrix/results-torch-shelf.jsonl"
MATRIX = """\
devices:
  shelf: {import: tests.devices.shelf}
  gone: {import: no_such_backend}
  silent: {import: json}
"""
CELLS = """
from gen.checks import cases, op

ROWS = ("torch.sin", "torch.tan", "torch.linalg.eigvals", "torch.rand_like")

@cases(*(op(name, smoke="float64") for name in ROWS))
def test_forward(case):
    case.assert_same("forward", against="eager")
"""
ENTRY = """
from gen.checks import cases, family, known, op

FAMILY = family("demo", known={
    "lack": known(
        "xfail", device="shelf", raises="NotImplementedError", match="no kernel", reason="lacking"
    )
})

@cases(op("torch.tan", smoke="float64", known="lack"))
def test_forward(case):
    case.assert_same("forward", against="eager")
"""


class Project:
    """A folder with a matrix, and a module of cells."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def run(self, cells: str, *args: str, matrix: str = MATRIX) -> pytest.RunResult:
        self.pytester.makepyfile(test_demo=cells)
        (self.pytester.path / "matrix.yaml").write_text(matrix)
        words = ("-p", "gen.run.plugin", "-p", "no:cacheprovider", "--target", "torch", *args)
        return self.pytester.runpytest_inprocess(*words)

    def cells(self) -> dict[str, Any]:
        return {cell.op: cell for cell in read(self.pytester.path / RESULTS).cells}


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


def test_each_cell_on_a_device_has_its_own_outcome(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELF_FAULT", "death")
    project.run(CELLS, "--device", "shelf")
    cells = project.cells()
    assert cells["torch.sin"].outcome == "passed"
    assert cells["torch.rand_like"].outcome == "passed"  # by its seeds: the CPU draws otherwise
    assert cells["torch.tan"].outcome == "crashed"
    assert "SIGSEGV" in cells["torch.tan"].why
    assert cells["torch.linalg.eigvals"].outcome == "not covered"
    assert "aten.linalg_eig" in cells["torch.linalg.eigvals"].why


def test_an_op_that_a_device_lacks_is_an_entry_that_names_the_device(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELF_FAULT", "lack")
    project.run(ENTRY, "--device", "shelf")
    assert project.cells()["torch.tan"].outcome == "xfailed"


def test_what_a_device_lacks_becomes_an_entry_with_the_cells_that_failed(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELF_FAULT", "lack")
    project.run(CELLS, "--device", "shelf")
    capsys.readouterr()
    assert main(["lacks", str(project.pytester.path / RESULTS)]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["xfail"] == [
        {
            "op": "torch.tan",
            "check": ["forward"],
            "dtype": ["float64"],
            "device": "shelf",
            "raises": "NotImplementedError",
            "match": r"shelf has no kernel for aten\.tan\.default",
            "reason": "shelf has no kernel for it",
        }
    ]
    assert "# not covered: 1 cells: device shelf ran aten.linalg_eig.default on the CPU" in text


def test_the_command_line_names_a_backend_that_the_matrix_does_not(project: Project) -> None:
    words = ("--device", "shelf", "--backend", "tests.devices.shelf", "-k", "sin")
    project.run(CELLS, *words, "--results", "r.jsonl", matrix="devices: {cpu: {}}\n")
    cells = read(project.pytester.path / "r.jsonl").cells
    assert [cell.outcome for cell in cells] == ["passed"]


def test_a_device_may_stand_in_a_list(project: Project) -> None:
    matrix = "devices:\n  - cpu\n  - {name: gone, import: no_such_backend}\n"
    result = project.run(CELLS, "--device", "gone", matrix=matrix)
    result.stderr.fnmatch_lines(["*matrix.yaml:3:5: device gone: cannot import no_such_backend *"])


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            "gone",
            "matrix.yaml:3:9: device gone: cannot import no_such_backend (Module",
        ),
        ("silent", "matrix.yaml:4:11: device silent: json is imported, and torch makes no tensor"),
        ("abacus", "not present here, nothing was run; a device of another package"),
    ],
)
def test_a_device_that_is_not_there_stops_the_run_with_its_place(
    project: Project, device: str, message: str
) -> None:
    result = project.run(CELLS, "--device", device)
    assert f"--device {device}: {message}" in result.stderr.str()
