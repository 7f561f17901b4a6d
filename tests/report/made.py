"""Results as the tests of the report make them."""

from dataclasses import replace
from typing import Any

from gen.run.results import CellResult, Results

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
