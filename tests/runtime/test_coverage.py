"""The coverage table says what the records hold."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime import records_page
from runtime.__main__ import main
from runtime.coverage import denied, missing, rows, torch_differentiates
from runtime.extend import Record, asking, register
from runtime.records_page import source
from runtime.rules import RECORDS
from runtime.rules.record import made_of

ROOT = Path(__file__).parents[2]


def test_every_record_has_its_row() -> None:
    assert len(rows()) == len(RECORDS)


def test_a_row_tells_own_rules_from_derived_ones() -> None:
    found = {row.name: row for row in rows()}
    assert (found["sin.default"].vjp, found["sin.default"].batch) == ("own", "own")
    assert found["mm.default"].jvp == "multilinear"
    assert found["argmax.default"].vjp == "none needed"
    assert found["convolution.default"].per_sample == "factors for weight, bias"
    assert found["sin.default"].per_sample == "formula of its vjp"
    assert found["cumsum.default"].per_sample == "vmap of vjp"


def test_what_is_missing_is_what_torch_lists_and_no_record_covers() -> None:
    listed = set(torch_differentiates())
    assert "sin.default" in listed
    assert set(missing()) <= listed
    assert "sin.default" not in missing()


def test_no_record_denies_a_derivative_that_the_installed_torch_has() -> None:
    assert denied() == []
    table: dict[Any, Record] = {}
    register("sin argmax", table, nondiff=True)
    assert denied(table) == ["sin.default"]


@pytest.mark.parametrize("name", ["coverage", "records"])
def test_the_page_in_docs_is_current(name: str, tmp_path: Path) -> None:
    page = (ROOT / f"docs/{name}.md").read_text("utf-8")
    if f"with torch {torch.__version__.partition('+')[0]};" not in page:
        pytest.skip("the page was written with another version of torch")
    # other tests enter records of their own
    fresh = [sys.executable, "-m", "runtime", name, "--out", str(tmp_path / "page.md")]
    subprocess.run(fresh, check=True, capture_output=True, cwd=ROOT)
    assert page == (tmp_path / "page.md").read_text("utf-8"), "make docs writes it anew"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("coverage", "| `sin.default` | pointwise | own |"),
        (
            "records",
            (
                "| `sin` | self: `g * conj(self.cos())` | self: "
                "`self_t * self.cos()` | `elementwise` |  |"
            ),
        ),
        (
            "records",
            (
                "| `select.int` | self: `kernels.select_backward(g, self_shape, dim, index)` | "
                "linear | `dims(1)` | inverse `aten.select"
            ),
        ),
        ("records", "`convolution` | input, weight, bias: `vjp("),
        ("records", "`max_pool2d_with_indices` |"),
    ],
)
def test_the_page_is_written_where_asked(name: str, row: str, tmp_path: Path) -> None:
    assert main([name, "--out", str(tmp_path / "page.md")]) == 0
    assert row in (tmp_path / "page.md").read_text()


def test_every_record_of_atens_stands_on_its_page() -> None:
    page = records_page.markdown()
    ops = [
        str(func).removeprefix("aten.").removesuffix(".default")
        for func in RECORDS
        if getattr(func, "namespace", "") == "aten"
    ]
    assert ops and not [name for name in ops if f"`{name}`" not in page]


def twice(g: Any) -> Any:
    return 2 * g


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        (lambda g, self: g * self, "g * self"),
        (
            asking("g", "other")(lambda g, y: g if g.is_complex() else y),
            "g if g.is_complex() else other",
        ),
        (asking("g", "other")(lambda g, *rest: rest[0](lambda g: g)), "rest[0](lambda g: g)"),
        ([lambda x: x, lambda g: -g][1], "-g"),
        (made_of("g / {}", lambda self: self + 1, lambda g: g), "g / (self + 1)"),
        (twice, "twice(g)"),
        (lambda: None, "None"),
        (
            lambda g: (
                g.sin().cos().sin().cos().sin().cos().sin().cos().tan().tan().tan(),
                g.sin().cos().sin().cos().sin().cos().sin().cos(),
            ),
            "…",
        ),
    ],
)
def test_a_formula_shows_its_source(formula: Any, shown: str) -> None:
    assert source(formula) == shown
