"""Each report is a program that torch answers wrongly and that the runtime answers rightly,
or says why not."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gen import cli
from gen.checks import Known
from tests.reports.cells import Cell, noticed, unnoticed
from tests.reports.page import page
from tests.reports.report import LONGEST, Report, program, reports, same
from tests.reports.run import ROOT, Outcome, Side, outcomes

REPORTS = reports()
# `python -m tests.reports run --compiled` runs the others
QUICK = [entry for entry in REPORTS if not entry.compiled]


@cache
def answers(side: Side) -> dict[str, Outcome]:
    return outcomes(QUICK, side)


def test_numbers_are_distinct() -> None:
    assert [
        number for number, count in Counter(entry.number for entry in REPORTS).items() if count > 1
    ] == []


def test_the_page_of_findings_is_made_of_the_reports() -> None:
    there = (ROOT / "docs/findings.md").read_text("utf-8")
    assert there == page(REPORTS), "run `make docs`"


@pytest.mark.parametrize("entry", REPORTS, ids=lambda entry: entry.name)
def test_a_report_is_a_short_program_that_says_why(entry: Report) -> None:
    source = program(entry)
    assert len(source.splitlines()) < LONGEST
    assert "runtime" not in source and "tests." not in source
    assert entry.title.endswith(".") and entry.text
    assert all(
        link.startswith("pytorch#") and link[len("pytorch#") :].isdigit() for link in entry.links
    )


def test_each_report_is_noticed_or_has_a_reason() -> None:
    assert sorted([*noticed(), *unnoticed()]) == sorted(entry.number for entry in REPORTS)


def known_entries(folder: Path) -> dict[str, Known]:
    """Return the known entries of the matrix, with those of cells that no tier has, by name."""
    assert cli.main(["generate", "--every", "--out", str(folder)]) == 0
    found: dict[str, Known] = {}
    for path in folder.glob("test_*.py"):
        names: dict[str, Any] = {}
        # the tables of cells are behind, and long
        exec(path.read_text("utf-8").partition("\n@cases(")[0], names)
        found |= names["FAMILY"].known
    return found


def test_cells_that_notice_are_expected_to_fail(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An entry of the matrix says so; a run of the matrix on the target of the cell
    holds it to that."""
    entries = known_entries(tmp_path / "every")
    capsys.readouterr()
    assert cli.main(["list", "--known", "--all", "--json"]) == 0
    failing = set()
    for case in json.loads(capsys.readouterr().out)["cases"]:
        for kind, _, name in (known.partition(":") for known in case["known"]):
            if kind == "xfail":
                target = entries[name].target
                failing |= {
                    Cell(case["id"].partition("::")[2], one)
                    for one in ([target] if target else ["torch", "inductor"])
                }
    assert sorted(map(str, set(noticed().values()) - failing)) == []


@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: entry.name)
def test_torch_is_still_wrong(entry: Report) -> None:
    if not entry.is_here:
        pytest.skip(
            f"this machine has no {entry.capability}, whose kernel is the one that is wrong"
        )
    got = answers("torch")[entry.name]
    if entry.is_mended:
        assert got.verdict != "wrong", f"it is said to be wrong on torch {entry.torch} alone"
        return
    assert got.verdict != "right", (
        f"torch {torch.__version__} mends {entry.number}: "
        f"{', '.join(entry.links)}; say so with torch=, or remove the report"
    )
    assert (got.verdict == "error") == bool(entry.raises), got.text
    assert not entry.raises or any(part in got.text for part in entry.raises), got.text


@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: entry.name)
def test_the_runtime_is_right_or_says_why_not(entry: Report) -> None:
    got, theirs = answers("runtime")[entry.name], answers("torch")[entry.name]
    if entry.is_mended and (theirs.verdict, theirs.text) == ("error", got.text):
        pytest.skip(f"torch {torch.__version__} cannot run the program: {got.text}")
    if entry.runtime:
        assert got.verdict != "right", f"the runtime is right; drop «{entry.runtime}»"
    elif not entry.kernel:  # a wrong kernel is the runtime's kernel too, unless it goes round it
        assert got.verdict == "right", got.text


def test_the_runtime_is_right_where_no_kernel_is_wrong() -> None:
    above = [entry for entry in REPORTS if not entry.kernel]
    assert sum(not entry.runtime for entry in above) >= 0.95 * len(above)


@pytest.mark.parametrize(
    ("actual", "expected", "equal"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0001]), True),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.01]), False),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), True),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, 1.0]), False),
        (torch.tensor([float("inf")]), torch.tensor([float("-inf")]), False),
        (torch.tensor([1.0]), torch.tensor([float("inf")]), False),
        (torch.tensor([0.0]), torch.tensor([1e-30]), False),
        (torch.zeros(0, 3), torch.zeros(3, 0), False),
        (torch.tensor(1 + 1j), torch.tensor(1.0), False),
        ([1.0, "an error"], (1.0, "an error"), True),
        (2, 2.0, True),
        (True, 1, False),
    ],
)
def test_answers_are_the_same_to_a_part_of_the_largest_element(
    actual: object, expected: object, equal: bool
) -> None:
    assert same(actual, expected, 1e-4) is equal
