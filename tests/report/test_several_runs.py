"""Runs beside one another and one after another, and what other programs read of them."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gen import cli
from gen.run.results import LAST, Results
from tests.report.made import cell, changes, report, results, text_of, write


def test_three_targets_stand_side_by_side(tmp_path: Path) -> None:
    runs = [
        results(cell(), cell(check="jvp")),
        results(cell("failed", "wrong"), target="torch"),
        results(cell(), target="inductor"),
    ]
    text = text_of(report(runs, tmp_path))
    assert (
        "runtime beside torch beside inductor 1 common cells; besides these: 1 of runtime" in text
    )
    assert "cells runtime torch inductor 1 passed failed passed" in text


def runs_of(*outcomes: str, seconds: float = 0.1) -> list[Results]:
    return [
        results(cell(outcome, seconds=seconds), began=f"2026-11-{day:02}")
        for day, outcome in enumerate(outcomes, 1)
    ]


def test_a_cell_that_fails_now_and_then_is_flaky_and_one_that_was_mended_is_not(
    tmp_path: Path,
) -> None:
    (flaky,) = changes(runs_of("passed", "failed", "passed"), tmp_path)["flaky"]
    assert flaky["outcomes"] == ["passed", "failed", "passed"]
    assert changes(runs_of("failed", "failed", "passed", "passed"), tmp_path)["flaky"] == []


def test_a_cell_that_takes_twice_its_usual_time_is_named(tmp_path: Path) -> None:
    earlier = runs_of("passed", "passed", "passed")
    (slower,) = changes([*earlier, *runs_of("passed", seconds=0.3)], tmp_path)["slower"]
    assert (slower["seconds"], slower["usual"]) == (0.3, 0.1)
    assert changes([*earlier, *runs_of("passed", seconds=0.14)], tmp_path)["slower"] == []


def test_a_cell_that_the_run_before_lacks_is_compared_with_its_last_one(tmp_path: Path) -> None:
    runs = [results(cell("failed", "wrong")), results(cell(check="jvp")), results(cell())]
    dated = [replace(run, header={**run.header, "began": str(n)}) for n, run in enumerate(runs)]
    assert [one["node"] for one in changes(dated, tmp_path)["fixed"]] == [cell().node]


def test_the_time_of_families_and_checks_is_summed(tmp_path: Path) -> None:
    run = results(
        cell(seconds=0.5), cell(dtype="float32", seconds=1.5), cell(check="jvp", seconds=0.25)
    )
    text = text_of(report([run], tmp_path))
    assert "family s cells ms a cell slowest ms unary 2.2 3 750.0" in text
    assert "check s cells ms a cell slowest ms vjp 2.0 2 1000.0 1500 jvp 0.2 1 250.0" in text


def test_junit_has_a_case_for_each_cell_and_the_command_of_each_failure(
    tmp_path: Path,
) -> None:
    run = results(
        cell(),
        cell("failed", "wrong \x00<&", check="jvp", failing=2),
        cell("timed out", "slow", check="vmap"),
        cell("lacking", "no", op="a"),
    )
    report([run], tmp_path, "--junit", str(tmp_path / "j.xml"))
    suite = ElementTree.parse(tmp_path / "j.xml").getroot().find("testsuite")
    assert suite is not None
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.get("message") == "wrong \N{REPLACEMENT CHARACTER}<&"
    assert failure.text == (
        "pytest 't/test_unary.py::test_jvp[torch.sin-float64]' --target runtime "
        "--tier full --sample 2"
    )


def test_json_has_counts_and_failures(tmp_path: Path) -> None:
    report(runs_of("failed"), tmp_path, "--json", str(tmp_path / "r.json"))
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["runs"][0]["counts"] == {"failed": 1}
    assert found["runs"][0]["failures"][0]["command"].endswith("--tier full")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_all_of_it(project: Path) -> None:
    now = write(project / "now.jsonl", results(cell("failed", "wrong"), began="2026-11-30"))
    named = ["--results", str(now), "--junit", "j.xml", "--json", "r.json"]
    assert cli.main(["report", *named]) == 0
    assert "wrong" in (project / "report/index.html").read_text()
    assert ElementTree.parse(project / "j.xml").getroot().tag == "testsuites"
    assert json.loads((project / "r.json").read_text())["runs"][0]["failures"]


def test_the_last_run_is_reported_even_if_it_was_narrowed(project: Path) -> None:
    write(project / ".cache/matrix/results-torch-cpu.jsonl", results(cell(op="torch.whole")))
    part = write(
        project / ".cache/matrix/results-torch-cpu-part.jsonl", results(cell(op="torch.part"))
    )
    (project / LAST).write_text(str(part))
    assert cli.main(["report", "--last"]) == 0
    assert "torch.part" in (project / "report/index.html").read_text()
