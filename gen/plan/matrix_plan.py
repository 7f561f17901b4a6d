"""Share what the commands need: find the matrix, expand it, name its cases, and compute the
coverage of its tiers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from gen.errors import MatrixError
from gen.files import replace
from gen.language import validate
from gen.plan import catalog, expand
from gen.plan.cell_sets import Column, Plan, TierCells
from gen.plan.level_cells import refuse_idle_levels


def add_matrix_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--matrix FILE`, for every sub-command that reads one."""
    parser.add_argument(
        "--matrix",
        type=Path,
        default=Path("matrix.yaml"),
        metavar="FILE",
        help="the matrix (default: %(default)s)",
    )


def above(low: float, *, or_equal: bool = False, kind: type = float) -> Callable[[str], Any]:
    """Return the type of an argument: a number above `low`. argparse names the option before its
    message.
    """

    def number(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no {'whole ' * (kind is int)}number"
            ) from None
        is_above = low <= value if or_equal else low < value
        # NaN is above nothing
        if not is_above or value == float("inf"):
            raise argparse.ArgumentTypeError(
                f"{text} is {'below' if or_equal else 'not more than'} {low:g}"
            )
        return value

    return number


def cache_of(matrix: Path) -> Path:
    """Return the folder for everything that the generator can rebuild."""
    return matrix.resolve().parent / ".cache" / "gen"


def load_plan(matrix: Path, versions: Sequence[str] = ()) -> Plan:
    """Return the expanded matrix. Raises `MatrixError` with every mistake in it.

    `versions`: of torch, of which every condition has to hold for one.
    """
    loaded = validate.load(matrix)
    if versions:
        validate.refuse_unmet(loaded, versions)
    try:
        catalog_of_matrix = catalog.load(cache_of(matrix), loaded.matrix.torch)
    except catalog.UnknownTorch as unknown:
        loaded.problem(("torch",), str(unknown))
        raise MatrixError(loaded.problems) from None
    plan = expand.expand(loaded, catalog_of_matrix)
    refuse_idle_levels(plan)
    if loaded.problems:
        raise MatrixError(loaded.problems)
    return plan


def coverage(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return for each tier its reduction, its cells, and how many of the valid t-tuples they
    cover.
    """
    return {name: _coverage_of(tier) for name, tier in plan.tiers.items()}


def _coverage_of(tier: TierCells) -> dict[str, Any]:
    """Return the coverage of one tier, as JSON has it."""
    parts = (tier.spec, *tier.spec.also)
    limits = chain.from_iterable(part.limit for part in parts)
    return {
        "reduce": tier.spec.reduce.model_dump(exclude_none=True),
        "limits": [limit.model_dump() for limit in limits],
        "cases": tier.cells,
        **asdict(tier.coverage),
        "complete": tier.coverage.complete,
    }


def write_coverage(plan: Plan, path: Path) -> None:
    """Write the coverage to the file that the report reads."""
    replace(path, json.dumps(coverage(plan), indent=1))


PLACES = "places.json"


def write_places(plan: Plan, path: Path) -> None:
    """Write the line of the matrix where each op and check stands, for the report."""
    ops = {op.name: _line(plan, op.path) for op in plan.ops}
    checks = {name: _line(plan, ("checks", name)) for name in plan.loaded.matrix.checks}
    replace(path, json.dumps({"ops": ops, "checks": checks}, separators=(",", ":")))


def _line(plan: Plan, path: tuple[str | int, ...]) -> str:
    mark = plan.loaded.source.where(path, key=True)
    return f"{plan.loaded.source.relative(mark.file)}:{mark.line}"


def node_id(plan: Plan, op: int, column: Column) -> str:
    """Return the pytest id of the case."""
    name = plan.ops[op]
    return f"generated_tests/test_{name.family}.py::test_{column.check}[{column.case(name.name)}]"
