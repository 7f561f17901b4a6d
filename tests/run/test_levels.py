"""`--level` runs what an author of a backend brings up in one step, in order, and the summary names
the op to write next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gen.cli import main

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[2]

MATRIX = """\
version: 1
targets: {default: torch, names: [torch]}
devices:
  cpu: {}
  shelf: {import: tests.devices.shelf}
checks:
  forward: {claim: The op equals itself., pipeline: forward, against: eager, dtypes: [float64]}
  again: {claim: Twice the same., pipeline: forward, against: again, dtypes: [float64]}
  trace: {claim: A graph gives the same., pipeline: trace, against: eager, dtypes: [float64],
          over: {shapes: [static, dynamic]}}
families:
  unary: {title: Unary, dtypes: [float64], ops: [torch.sin, torch.tan, torch.cos, torch.exp]}
tiers:
  smoke: {families: unary, checks: [forward], reduce: {sample: 1, seed: 1}}
"""
LEVELS = """\
levels:
  - {name: numbers, claim: Numbers one by one., ops: [torch.tan, torch.sin], checks: [forward]}
  - {name: repeats, claim: The same bits., ops: [torch.exp, "torch.[st]*"], checks: [again]}
  - {name: graphs, claim: Graphs., ops: [torch.exp], checks: [trace], axes: {shapes: static}}
  - {name: cluster, claim: Several devices., absent: nothing here runs on two devices}
"""


@pytest.fixture
def project(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> pytest.Pytester:
    """A folder with a matrix of four levels, generated."""
    (pytester.path / "matrix.yaml").write_text(MATRIX + LEVELS)
    assert main(["generate"]) == 0
    capsys.readouterr()
    return pytester


def run(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    return project.runpytest_inprocess(
        "-p", "gen.run.plugin", "-p", "no:cacheprovider", "generated_tests", *words
    )


def summary(result: pytest.RunResult) -> list[str]:
    lines = result.outlines
    start = next(place for place, line in enumerate(lines) if "= levels =" in line)
    return [line for line in lines[start + 1 :] if not line.startswith("=")]


def test_a_level_that_holds_names_the_next_one(project: pytest.Pytester) -> None:
    result = run(project, "--level", "1")
    assert summary(result)[:2] == [
        "level 1, numbers: 2 passed",
        "it holds; the next level: --level 2",
    ]
    assert result.ret == 0


def test_a_level_has_the_cells_of_its_ops_checks_and_axes(project: pytest.Pytester) -> None:
    nodes = [
        line.rpartition("::")[2]
        for line in run(project, "--level", "1-3", "--collect-only", "-q").outlines
        if "::" in line
    ]
    assert nodes == [
        "test_forward[torch.tan-float64]",
        "test_forward[torch.sin-float64]",
        "test_again[torch.exp-float64]",
        "test_again[torch.sin-float64]",
        "test_again[torch.tan-float64]",
        "test_trace[torch.exp-float64-static]",
    ]


def test_the_first_op_in_order_that_fails_is_the_one_to_write_next(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELF_FAULT", "lack")  # of a kernel for tan
    result = run(project, "--level", "1-2", "--device", "shelf")
    lines = summary(result)
    assert lines[:3] == [
        "level 1, numbers: 1 passed · 1 failed",
        "level 2, repeats: 2 passed · 1 failed",
        "write next: torch.tan (level 1, numbers): red are 1 of 1 cells",
    ]
    assert "NotImplementedError: shelf has no kernel for aten.tan.default" in lines[3]
    assert lines[4] == "and then: torch.tan"
    assert result.ret == 1


def test_the_last_level_that_has_cells_is_followed_by_the_reason_why_there_is_no_more(
    project: pytest.Pytester,
) -> None:
    result = run(project, "--level", "4")
    assert "--level: level 4, cluster, has no cells: nothing here runs on two devices" in (
        result.stderr.str()
    )


@pytest.mark.parametrize("text", ["0", "5", "3-2", "views", "1-9"])
def test_what_is_no_level_is_named_with_those_that_there_are(
    text: str, project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    known = f"'{text}' is no level, and no range of them such as 1-3; known: 1 numbers, 2 repeats"
    assert known in run(project, "--level", text).stderr.str()
    assert main(["list", "--level", text]) == 2
    assert f"--level: {known}" in capsys.readouterr().err


def test_a_matrix_without_levels_says_so(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.path / "matrix.yaml").write_text(MATRIX)
    assert (
        "--level: matrix.yaml has no section `levels:`" in run(project, "--level", "1").stderr.str()
    )


def test_list_shows_the_cells_of_a_level_in_the_order_in_which_to_write_them(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--level", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("[")[2].partition("-")[0] for line in printed[:3]] == [
        "torch.exp",
        "torch.sin",
        "torch.tan",
    ]
    assert printed[-1] == "3 cases"


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("ops: [torch.sinn], checks: [forward]", 'levels[0].ops[0]: no op matches "torch.sinn"'),
        (
            "ops: [torch.sin], checks: [forwards]",
            'levels[0].checks[0]: no check matches "forwards"',
        ),
        ("ops: [torch.sin]", "levels[0]: not a level; expected `ops:` and `checks:`, or `absent:`"),
        (
            "ops: [torch.sin], checks: [trace], axes: {shapes: statc}",
            "levels[0].ops[0]: the full tier has no cell of torch.sin under trace",
        ),
    ],
)
def test_a_mistake_in_a_level_has_its_place(
    level: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"levels:\n  - {{name: one, claim: One., {level}}}\n"
    (tmp_path / "matrix.yaml").write_text(MATRIX + text)
    assert main(["check", "--matrix", str(tmp_path / "matrix.yaml")]) == 2
    assert f"matrix.yaml:{len(MATRIX.splitlines()) + 2}:" in (said := capsys.readouterr().err)
    assert message in said


def test_the_page_about_devices_has_each_level_of_this_projects_matrix() -> None:
    levels = yaml.safe_load((ROOT / "matrix/levels.yaml").read_text("utf-8"))["levels"]
    page = (ROOT / "docs/devices.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", page, re.M)
    assert rows == [(str(number), one["name"]) for number, one in enumerate(levels, 1)]
