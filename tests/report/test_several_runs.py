"""Runs beside one another and one after another, and what other programs read of them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gen import cli
from gen.report.exports import as_json, as_junit
from gen.report.runs import history, side_by_side
from gen.report.view import _view, page
from gen.run.results import LAST, Results, Writer
from tests.report.made import cell, results


def test_three_targets_stand_side_by_side() -> None:
    runs = [
        results(cell(), cell(check="jvp")),
        results(cell("failed", "wrong"), target="torch"),
        results(cell(), target="inductor"),
    ]
    found = side_by_side(runs)
    assert found.names == ("runtime", "torch", "inductor")
    assert found.table == [(("passed", "failed", "passed"), 1)]
    assert (found.common, found.only) == (1, (1, 0, 0))
    assert "runtime beside torch beside inductor" in page(runs, {})


def runs_of(*outcomes: str, seconds: float = 0.1) -> list[Results]:
    return [
        results(cell(outcome, seconds=seconds), began=f"2026-11-{day:02}")
        for day, outcome in enumerate(outcomes, 1)
    ]


def test_a_cell_that_fails_now_and_then_is_flaky_and_one_that_was_mended_is_not() -> None:
    found = history(runs_of("passed", "failed", "passed"))
    assert [outcomes for _, outcomes in found.flaky] == [["passed", "failed", "passed"]]
    assert history(runs_of("failed", "failed", "passed", "passed")).flaky == []


def test_a_cell_that_takes_twice_its_usual_time_is_named() -> None:
    earlier = runs_of("passed", "passed", "passed")
    found = history([*earlier, *runs_of("passed", seconds=0.3)])
    assert [(one.seconds, usual) for one, usual in found.slower] == [(0.3, 0.1)]
    assert history([*earlier, *runs_of("passed", seconds=0.14)]).slower == []


def test_a_cell_that_the_run_before_lacks_is_compared_with_its_last_one() -> None:
    runs = [results(cell("failed", "wrong")), results(cell(check="jvp")), results(cell())]
    assert [one.now.check for one in history(runs).changes.of("fixed")] == ["vjp"]


def test_the_time_of_families_and_checks_is_summed() -> None:
    view = _view(
        "run0",
        results(
            cell(seconds=0.5), cell(dtype="float32", seconds=1.5), cell(check="jvp", seconds=0.25)
        ),
    )
    assert [
        (kind, [(share.name, share.cells, share.seconds) for share in shares])
        for kind, shares in view.shares
    ] == [
        ("family", [("unary", 3, 2.25)]),
        ("check", [("vjp", 2, 2.0), ("jvp", 1, 0.25)]),
    ]


def test_junit_has_a_case_for_each_cell_and_the_command_of_each_failure() -> None:
    run = results(
        cell(),
        cell("failed", "wrong \x00<&", check="jvp", failing=2),
        cell("timed out", "slow", check="vmap"),
        cell("lacking", "no", op="a"),
    )
    suite = ElementTree.fromstring(as_junit([run])).find("testsuite")
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


def test_json_has_counts_and_failures() -> None:
    found = json.loads(as_json(runs_of("failed")))
    assert found["runs"][0]["counts"] == {"failed": 1}
    assert found["runs"][0]["failures"][0]["command"].endswith("--tier full")


def write(path: Path, run: Results) -> Path:
    writer = Writer(path, run.header)
    for one in run.cells:
        writer.cell(one)
    writer.close(run.end)
    return path


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
