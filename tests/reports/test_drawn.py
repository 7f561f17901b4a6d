"""Each drawn program still differs as its entry says, and the page is made of the entries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from gen.grammar import LEVELS, death_of, difference_of, finding_of
from tests.reports.drawn import SECTIONS, drawn, drawn_page
from tests.reports.run import ROOT

COMPILERS = (os.environ.get("CXX", "g++"), "clang++", "c++")


@pytest.mark.parametrize("number", drawn())
def test_a_drawn_program_differs_as_its_entry_says(number: str) -> None:
    finding = finding_of(drawn()[number])
    if finding.difference.level == "inductor" and not any(map(shutil.which, COMPILERS)):
        pytest.skip("Inductor needs a compiler of C++")
    if finding.difference.severity.word == "crash":
        level = LEVELS[finding.difference.level]()
        assert death_of(finding.program, level, patience=60) == finding.difference.part
        return
    found = difference_of(finding.program, LEVELS[finding.difference.level]())
    assert found is not None, f"{number} differs no more"
    assert found.cause == finding.difference.cause
    assert found.severity is finding.difference.severity


def test_the_page_is_made_of_the_entries() -> None:
    there = (ROOT / "docs/drawn_findings.md").read_text("utf-8")
    assert there == drawn_page(), "`python -m tests.reports drawn --out docs/drawn_findings.md`"


def test_each_entry_has_a_section_and_a_title_of_its_own() -> None:
    entries = list(drawn().values())
    assert {entry["severity"] for entry in entries} <= set(SECTIONS)
    titles = [entry["title"] for entry in entries]
    assert len(set(titles)) == len(titles)
    assert all("2.13.0" in entry["wrong_on"] for entry in entries)


def test_a_number_that_there_is_not_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reports", "drawn", "D0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no such drawn program: D0" in done.stderr
