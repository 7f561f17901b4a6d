"""The pages about records say what the records hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.rules import RECORDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of each page. A process of its own writes it, as other tests enter records of their
    own."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("coverage", "records"):
        command = [sys.executable, "-m", "runtime", name, "--out", str(folder / name)]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


def rows_of(page: str) -> dict[str, list[str]]:
    """The cells of each row by the name of the op."""
    found = re.findall(r"^\| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def test_every_record_has_its_row(pages: dict[str, str]) -> None:
    rows = rows_of(pages["coverage"])
    assert f"\n{len(rows)} overloads have a record." in pages["coverage"]
    ops = [str(f).removeprefix("aten.") for f in RECORDS if getattr(f, "namespace", "") == "aten"]
    assert ops and set(ops) <= rows.keys()


def test_a_row_tells_own_rules_from_derived_ones(pages: dict[str, str]) -> None:
    rows = rows_of(pages["coverage"])
    assert rows["sin.default"] == ["pointwise", "own", "own", "own", "formula of its vjp"]
    assert rows["mm.default"][2] == "multilinear"
    assert rows["argmax.default"][1] == "none needed"
    assert rows["convolution.default"][4] == "factors for weight, bias"
    assert rows["cumsum.default"][4] == "vmap of vjp"


def test_what_torch_differentiates_and_no_record_covers_is_named_at_the_end(
    pages: dict[str, str],
) -> None:
    page = pages["coverage"]
    stated = re.search(r"(\d+) have none here; they are named at the end", page)
    assert stated is not None
    without = re.findall(r"`([^`]+)`", page.partition("## Without a derivative")[2])
    assert len(without) == int(stated[1])
    assert "sin.default" not in without


@pytest.mark.parametrize("name", ["coverage", "records"])
def test_the_page_in_docs_is_current(name: str, pages: dict[str, str]) -> None:
    page = (ROOT / f"docs/{name}.md").read_text("utf-8")
    if f"with torch {torch.__version__.partition('+')[0]};" not in page:
        pytest.skip("the page was written with another version of torch")
    assert page == pages[name], "make docs writes it anew"


SINE = "| `sin` | self: `g * conj(self.cos())` | self: `self_t * self.cos()` | `elementwise` |  |"
SELECT = (
    "| `select.int` | self: `kernels.select_backward(g, self_shape, dim, index)` | linear | "
    "`dims(1)` | inverse `aten.select"
)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("coverage", "| `sin.default` | pointwise | own |"),
        ("records", SINE),
        ("records", SELECT),
        ("records", "`convolution` | input, weight, bias: `vjp("),
        ("records", "`max_pool2d_with_indices` |"),
    ],
)
def test_a_page_has_the_row(name: str, row: str, pages: dict[str, str]) -> None:
    assert row in pages[name]


def test_every_record_of_atens_stands_on_its_page(pages: dict[str, str]) -> None:
    ops = [
        str(func).removeprefix("aten.").removesuffix(".default")
        for func in RECORDS
        if getattr(func, "namespace", "") == "aten"
    ]
    assert ops and not [name for name in ops if f"`{name}`" not in pages["records"]]
