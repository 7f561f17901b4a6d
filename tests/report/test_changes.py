"""What one run changed since another one."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gen import cli
from gen.run.results import CellResult, Results, Writer
from tests.report.made import cell, changes, results

CHANGES: dict[str, tuple[CellResult, CellResult]] = {
    "broken": (cell(), cell("failed", "largest error 2")),
    "fixed": (cell("crashed", "SIGSEGV"), cell("xfailed", "known")),
    "failures": (cell("failed", "largest error 2"), cell("failed", "TypeError: no")),
    "outcomes": (cell(), cell("lacking", "torch has no such op")),
    "refusals": (cell(refusal="RuntimeError: overlap"), cell(refusal="ValueError: overlap")),
    "values": (cell(values="0a"), cell(values="0b")),
    "samples": (cell(values="0a"), cell(values="0a", samples=2)),
    "entries": (cell("xfailed", entries=("a",)), cell("xfailed", entries=("b",))),
}


def kinds(before: CellResult, now: CellResult, folder: Path) -> dict[str, int]:
    """Return how many cells changed, by the kind of change."""
    told = changes([results(before), results(now)], folder)
    return {kind: len(told[kind]) for kind in CHANGES if told[kind]}


@pytest.mark.parametrize("kind", CHANGES)
def test_each_kind_of_change_is_told_from_the_others(kind: str, tmp_path: Path) -> None:
    assert kinds(*CHANGES[kind], tmp_path) == {kind: 1}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (cell(seconds=1.0, values="0a"), cell(seconds=2.0, values="0a")),
        (cell("failed", "wrong"), cell("failed", "wrong")),
        (cell(), cell(values="0a")),  # a file of an older version has no digests
        (cell("xfailed", "known"), cell("xfailed", "known")),
    ],
)
def test_a_cell_that_is_as_before_is_not_named(
    before: CellResult, now: CellResult, tmp_path: Path
) -> None:
    told = changes([results(before), results(now)], tmp_path)
    assert kinds(before, now, tmp_path) == {} and told["common"] == 1


@pytest.mark.parametrize(
    ("kind", "before", "now"),
    [
        ("failures", cell("failed", "w", values="0a"), cell("failed", "w", values="0b")),
        ("failures", cell("failed", "w", failing=1), cell("failed", "w", failing=2)),
        ("failures", cell("failed", "w", refusal="E: a"), cell("failed", "w", refusal="E: b")),
        ("samples", cell("failed", "w"), cell("failed", "w", samples=2)),
        ("values", cell(values="aa"), cell(values="")),
        ("values", cell(values=""), cell(values="aa")),
        # an answer in the place of a refusal
        ("refusals", cell(refusal="RuntimeError: no"), cell(values="0a")),
    ],
)
def test_a_change_below_the_outcome_is_one(
    kind: str, before: CellResult, now: CellResult, tmp_path: Path
) -> None:
    assert kinds(before, now, tmp_path) == {kind: 1}


def test_ops_and_cells_of_one_run_alone_are_named(tmp_path: Path) -> None:
    old = results(cell(), cell(check="jvp"), cell(op="torch.gone"))
    new = results(cell(), cell(check="vmap"), cell(op="torch.new"), cell(op="torch.new", check="f"))
    told = changes([old, new], tmp_path)
    assert (told["new_ops"], told["vanished_ops"]) == ({"torch.new": 2}, {"torch.gone": 1})
    assert told["new_cells"] == [cell(check="vmap").node]
    assert told["vanished_cells"] == [cell(check="jvp").node]
    assert told["common"] == 1


def test_settings_that_differ_are_named_and_dates_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = results(torch="2.13.0", date="1"), results(torch="2.14.1", date="2", python="3.13")
    changes([old, new], tmp_path)
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert said == ["torch: 2.13.0 -> 2.14.1", "python: not written -> 3.13"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number, (kind, pair) in enumerate(CHANGES.items()):
        for place, one in enumerate(pair):
            made = replace(cell(one.outcome, one.why, op=f"torch.{kind}"), values=one.values)
            _append(tmp_path / f"{place}.jsonl", made, first=number == 0)
    return tmp_path


def _append(path: Path, one: CellResult, *, first: bool) -> None:
    writer = Writer(path, results().header if first else None)
    writer.cell(one)
    writer.close({"complete": True})


def _diff(*words: str) -> int:
    return cli.main(["diff", *words])


def test_the_command_says_it_as_text_json_and_a_page(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff("0.jsonl", "1.jsonl", "--json", "d.json", "--page", "d.html") == 1
    text = capsys.readouterr().out
    assert "1 fail, and did not:" in text and "torch.values: 1 cells" in text
    assert "passed -> failed: largest error 2" in text
    told: dict[str, Any] = json.loads((project / "d.json").read_text())
    assert told["broken"][0]["now"] == {"outcome": "failed", "why": "largest error 2"}
    page = (project / "d.html").read_text()
    assert "fail, and did not" in page and "torch.fixed" in page


def test_the_command_fails_only_where_something_broke(project: Path) -> None:
    assert _diff("1.jsonl", "1.jsonl") == 0
    assert _diff("0.jsonl", "1.jsonl") == 1


def test_a_folder_is_its_runs_in_their_order(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Results] = [results(cell(o), began=f"2026-11-0{n}") for n, o in enumerate(_TURNS)]
    for number, run in enumerate(reversed(runs)):
        writer = Writer(project / f"runs/{number}.jsonl", run.header)
        writer.cell(run.cells[0])
        writer.close({"complete": True})
    assert _diff("runs") == 1
    text = capsys.readouterr().out
    assert "1 flaky" in text and "passed, failed, passed, failed" in text


_TURNS = ("passed", "failed", "passed", "failed")


def test_a_list_ends_and_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, outcome in (("a", "passed"), ("b", "failed")):
        writer = Writer(project / f"{name}.jsonl", results().header)
        writer.lines([])
        for number in range(41):
            writer.cell(cell(outcome, op=f"torch.op{number}"))
        writer.close({"complete": True})
    assert _diff("a.jsonl", "b.jsonl") == 1
    assert "… and 1 more; --all lists them" in capsys.readouterr().out
    assert _diff("a.jsonl", "b.jsonl", "--all") == 1
    assert "torch.op40" in capsys.readouterr().out


def test_the_matrix_runs_under_a_python_that_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "matrix.yaml").write_text(_MATRIX)
    (project / "pytest.ini").write_text("[pytest]\naddopts = -p gen.run.plugin\n")
    assert cli.main(["generate"]) == 0
    assert _diff(sys.executable, sys.executable, "--tier", "smoke", "--workers", "1") == 0
    text = capsys.readouterr().out
    assert "target torch on cpu, tier smoke" in text and "cells of both, 0 changed" in text
    assert "0 cells of both" not in text


_MATRIX = """
version: 1
targets: {default: torch, names: [torch]}
dtypes: {real: [float32, float64]}
devices: {cpu: {}}
checks:
  forward: {claim: The op equals itself in double precision., against: float64}
tiers: {smoke: {}, default: {}, full: {}}
families:
  pointwise: {ops: [torch.sin]}
"""
