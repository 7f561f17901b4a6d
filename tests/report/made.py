"""Results as the tests of the report make them, and what the commands write of them."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

from gen import cli
from gen.run.results import CellResult, Results, Writer

HEADER = {
    "target": "runtime",
    "device": "cpu",
    "tier": "full",
    "torch": "2.13.0",
    "seed": "s",
    "shard": "1/1",
}
SIN = CellResult(
    "torch.sin-float64",
    "unary",
    "torch.sin",
    "float64",
    "vjp",
    {},
    "passed",
    "",
    0.01,
    3,
    "t/test_unary.py::test_vjp[x]",
)


def cell(outcome: str = "passed", why: str = "", **other: Any) -> CellResult:
    """One cell: of sin under vjp, unless it says otherwise."""
    changed = replace(SIN, outcome=outcome, why=why, **other)
    case = f"{changed.op}-{changed.dtype}"
    return replace(
        changed, id=case, node=f"t/test_{changed.family}.py::test_{changed.check}[{case}]"
    )


def results(*cells: CellResult, complete: bool = True, **header: Any) -> Results:
    """A run of these cells."""
    return Results(
        {**HEADER, **header},
        cells,
        {"complete": complete, "wall_seconds": 65.0, "never_happened": []} if complete else {},
    )


def write(path: Path, run: Results) -> Path:
    """Write the results file of a run."""
    writer = Writer(path, run.header)
    for one in run.cells:
        writer.cell(one)
    writer.close(run.end or {"complete": False})
    return path


def report(runs: Sequence[Results], folder: Path, *more: str) -> str:
    """Return the page that `gen report` draws of some runs, in an empty folder."""
    folder.mkdir(exist_ok=True)
    files = [str(write(folder / f"run{n}.jsonl", run)) for n, run in enumerate(runs)]
    page = folder / "page.html"
    assert cli.main(["report", "--results", *files, "--out", str(page), *more]) == 0
    return page.read_text("utf-8")


def text_of(page: str) -> str:
    """Return what a reader sees of a page, words by one space apart."""
    without_code = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", without_code)).split())


def changes(runs: Sequence[Results], folder: Path) -> Any:
    """Return what `gen diff --json` writes of some runs, oldest first."""
    folder.mkdir(exist_ok=True)
    files = [str(write(folder / f"run{n}.jsonl", run)) for n, run in enumerate(runs)]
    out = folder / "changes.json"
    assert cli.main(["diff", *files, "--json", str(out)]) in (0, 1)
    return json.loads(out.read_text("utf-8"))
