"""The coverage table says what the records hold."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.__main__ import main
from runtime.coverage import missing, rows, torch_differentiates
from runtime.rules.record import RECORDS

ROOT = Path(__file__).parents[2]


def test_every_record_has_its_row() -> None:
    assert len(rows()) == len(RECORDS)


def test_a_row_tells_own_rules_from_derived_ones() -> None:
    found = {row.name: row for row in rows()}
    assert (found["sin.default"].vjp, found["sin.default"].batch) == ("own", "own")
    assert found["mm.default"].jvp == "multilinear"
    assert found["argmax.default"].vjp == "none needed"
    assert found["convolution.default"].per_sample == "own in conv1d, conv2d, conv3d"
    assert found["sin.default"].per_sample == "vmap of vjp"


def test_what_is_missing_is_what_torch_lists_and_no_record_covers() -> None:
    listed = set(torch_differentiates())
    assert "sin.default" in listed
    assert set(missing()) <= listed
    assert "sin.default" not in missing()


def test_the_page_in_docs_is_current(tmp_path: Path) -> None:
    page = (ROOT / "docs/coverage.md").read_text("utf-8")
    if f"with torch {torch.__version__.partition('+')[0]};" not in page:
        pytest.skip("the page was written with another version of torch")
    fresh = [sys.executable, "-m", "runtime", "coverage", "--out", str(tmp_path / "page.md")]  # other tests enter records of their own
    subprocess.run(fresh, check=True, capture_output=True, cwd=ROOT)
    assert page == (tmp_path / "page.md").read_text("utf-8"), "make docs writes it anew"


def test_the_page_is_written_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--out", str(tmp_path / "page.md")]) == 0
    assert "| `sin.default` | pointwise | own |" in (tmp_path / "page.md").read_text()
