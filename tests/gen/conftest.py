"""What the commands say of a matrix that a test gives as text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gen.cli import main

DATA = Path(__file__).parent / "data"
TIERS = ("smoke", "default", "full")


@dataclass(frozen=True)
class Listed:
    """What `gen list` says of a matrix: all its valid cells, and the proof of each tier."""

    cases: list[dict[str, Any]]
    proof: dict[str, Any]

    def cells(self, tier: str = "all") -> set[str]:
        """Return `check[case]` of every valid cell, or of those that a tier runs."""
        return {
            case["id"].rpartition("::test_")[2]
            for case in self.cases
            if tier == "all" or case["tier"] in TIERS[: TIERS.index(tier) + 1]
        }

    def words(self, check: str, op: str) -> set[str]:
        """Return the dtype and axis values of the cells of an op under a check."""
        start = f"{check}[{op}-"
        return {cell[len(start) : -1] for cell in self.cells() if cell.startswith(start)}

    @property
    def families(self) -> dict[str, str]:
        """Return the family of each op."""
        return {case["op"]: case["family"] for case in self.cases}

    def names(self, op: str) -> list[str]:
        """Return the names of the known entries of an op, in their order."""
        return list(
            dict.fromkeys(
                name.partition(":")[2]
                for case in self.cases
                if case["op"] == op
                for name in case["known"]
            )
        )


Expand = Callable[[str], Listed]
Mistakes = Callable[[str], list[str]]
Generate = Callable[[str], dict[str, str]]


# a project of one op, `kit.double`, whose package each test writes
KIT_SETTINGS = "[pytest]\naddopts = -p gen.run.plugin\npythonpath = .\n"
KIT_REFERENCE = "def double(x):\n    return x + x\n"
KIT_CELLS = (
    "from gen.checks import cases, family, op\n"
    "FAMILY = family('kit', ops={'kit.double': {'reference': 'truth.double',\n"
    "    'samples': [{'args': [{'shape': [3]}]}]}})\n"
    "@cases(op('kit.double', smoke='float64'))\n"
    "def test_forward(case):\n"
    "    case.assert_same('forward', against='reference')\n"
)


@pytest.fixture
def listed(capsys: pytest.CaptureFixture[str]) -> Callable[[], Listed]:
    """List the matrix of the folder."""

    def run() -> Listed:
        capsys.readouterr()
        assert main(["list", "--all", "--json"]) == 0, capsys.readouterr().err
        cases = json.loads(capsys.readouterr().out)["cases"]
        assert main(["list", "--coverage", "--json"]) == 0
        return Listed(cases, json.loads(capsys.readouterr().out))

    return run


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example matrix of tests/gen/data, and in it."""
    for name in ("matrix.yaml", "more.yaml"):
        shutil.copy(DATA / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plan(example: Path, listed: Callable[[], Listed]) -> Listed:
    """The cells of the example matrix."""
    return listed()


@pytest.fixture
def expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: Callable[[], Listed]
) -> Expand:
    """Text of a matrix -> its cells."""
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> Listed:
        Path("matrix.yaml").write_text(dedent(text))
        return listed()

    return run


@pytest.fixture
def generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generate:
    """Text of a matrix -> the text of each generated module, by its name."""
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> dict[str, str]:
        Path("matrix.yaml").write_text(dedent(text))
        assert main(["generate"]) == 0, capsys.readouterr().err
        return modules(tmp_path)

    return run


def modules(folder: Path) -> dict[str, str]:
    """Return the text of each generated module of a project, by its name."""
    paths = sorted((folder / "generated_tests").glob("test_*.py"))
    return {path.name: path.read_text("utf-8") for path in paths}


@pytest.fixture
def mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Mistakes:
    """Text of a matrix -> every message about it."""
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> list[str]:
        Path("matrix.yaml").write_text(dedent(text))
        capsys.readouterr()
        if main(["list", "--counts"]) == 0:
            return []
        *messages, last = capsys.readouterr().err.splitlines()
        assert last.endswith("nothing was written")
        return messages

    return run
