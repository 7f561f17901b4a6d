"""Find the cells of each level in an expanded matrix, and refuse a level that has none."""

from __future__ import annotations

from gen.errors import nearest, one_of
from gen.language.backend_levels import TIER_OF_LEVELS, Level, levels_of
from gen.language.globs import Names
from gen.plan.cell_sets import Plan

__all__ = ["cells_of", "refuse_idle_levels"]


def cells_of(plan: Plan, level: Level) -> list[tuple[int, int]]:
    """Return each op of a level with its columns as bits, in the order in which to write them."""
    columns = 0
    for position, column in enumerate(plan.columns):
        if level.has_column(column.check, column.dtype, column.axes):
            columns |= 1 << position
    ranked = []
    for index, op in enumerate(plan.ops):
        rank = level.rank(op.name)
        cells = plan.tiers[TIER_OF_LEVELS].chosen[index] & columns
        if rank is not None and cells:
            ranked.append((rank, index, cells))
    return [(index, cells) for _, index, cells in sorted(ranked)]


def refuse_idle_levels(plan: Plan) -> None:
    """Note each check of a level that names nothing, and each op that has no cell there."""
    ops = Names({op.name: 0 for op in plan.ops}, "op")
    checks = Names(dict.fromkeys(plan.loaded.matrix.checks, 0), "check")
    for level in levels_of(plan.loaded.matrix.levels):
        _refuse_unknown(plan, level, "ops", ops)
        _refuse_unknown(plan, level, "checks", checks)
        shown = {plan.ops[index].name for index, _ in cells_of(plan, level)}
        for position, glob in enumerate(level.spec.ops):
            named = ops.named(glob)
            if named and shown.isdisjoint(named):
                plan.loaded.problem(
                    ("levels", level.number - 1, "ops", position),
                    f"the full tier has no cell of {glob} under {', '.join(level.spec.checks)}",
                    "a check that has one",
                )


def _refuse_unknown(plan: Plan, level: Level, key: str, names: Names) -> None:
    """Note each glob of a level under `key` that names no op or no check."""
    for position, glob in enumerate(getattr(level.spec, key)):
        if not names.named(glob):
            plan.loaded.problem(
                ("levels", level.number - 1, key, position),
                f'no {names.what} matches "{glob}"',
                one_of(names.sets),
                nearest(glob, names.sets),
            )
