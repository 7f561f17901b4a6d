"""Failures of a results file, grouped by cause and ordered by severity."""

import json
from pathlib import Path
from typing import Any

import pytest

from gen.report.exports import as_json
from gen.run.results import ResultsError, read
from tests.report.made import cell, results, write


def findings(*cells: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(as_json([results(*cells)]))["runs"][0]["findings"]
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
        ("torch.sin", "no 1 here", "ops.py:3 in f", 2),
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


def test_a_severity_that_there_is_not_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    rows = results(cell("failed", "why", severity="grave"), cell())
    path = write(tmp_path / "r.jsonl", rows)
    with pytest.raises(ResultsError, match="'grave' is not a severity"):
        read(path)
