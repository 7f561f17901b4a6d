"""Failures of a results file, grouped by cause and ordered by severity."""

import json
from pathlib import Path
from typing import Any

import pytest

from gen.cli import main
from tests.report.made import cell, results, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(*cells: Any) -> int:
    """Write the report of a run with these cells, and return the exit status."""
    path = write(Path("results.jsonl"), results(*cells))
    return main(["report", "--results", str(path), "--json", "r.json", "--open", "no"])


def findings(*cells: Any) -> list[dict[str, Any]]:
    assert report(*cells) == 0
    found: list[dict[str, Any]] = json.loads(Path("r.json").read_text())["runs"][0]["findings"]
    return found


def test_one_cause_is_one_finding_of_an_op_and_a_line_of_user_code() -> None:
    same: dict[str, Any] = {"severity": "refused", "cause": "RuntimeError: no # here"}
    groups = findings(
        cell("failed", "no 1 here", check="vjp", frame="ops.py:3 in f", **same),
        cell("failed", "no 2 here", check="jvp", frame="ops.py:3 in f", **same),
        cell("failed", "no 1 here", check="vmap", frame="ops.py:9 in f", **same),
        cell("failed", "no 1 here", op="torch.cos", frame="ops.py:3 in f", **same),
    )
    counts = [(group["op"], group["why"], group["frame"], group["count"]) for group in groups]
    assert counts == [
        ("torch.sin", "no 2 here", "ops.py:3 in f", 2),  # of test_jvp, the first by name
        ("torch.cos", "no 1 here", "ops.py:3 in f", 1),
        ("torch.sin", "no 1 here", "ops.py:9 in f", 1),
    ]


@pytest.mark.parametrize(
    ("outcome", "severity"),
    [
        ("failed", "wrong"),
        ("crashed", "crash"),
        ("timed out", "slow"),
        ("error", "unasked"),
        ("vacuous", "unasked"),
        ("xpassed", "stale"),
    ],
)
def test_a_row_of_an_older_file_has_the_severity_of_its_outcome(
    outcome: str, severity: str
) -> None:
    assert [group["severity"] for group in findings(cell(outcome, "why"))] == [severity]


@pytest.mark.parametrize("outcome", ["passed", "skipped", "lacking", "xfailed"])
def test_what_did_not_fail_has_no_severity(outcome: str) -> None:
    assert findings(cell(outcome, "why")) == []


def test_a_severity_that_there_is_not_is_a_mistake_of_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report(cell("failed", "why", severity="grave"), cell()) == 2
    assert "'grave' is not a severity" in capsys.readouterr().err
