"""Choose the cells of each tier: a cover of their t-tuples, a sample of them, or all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gen.language.axes import PLAIN
from gen.language.selection_specs import Tier
from gen.plan import reduce
from gen.plan.cell_sets import Choice, Plan, TierCells


def fill_tiers(plan: Plan, specs: Mapping[str, tuple[Tier, list[Choice]]]) -> None:
    """Choose the cells of each tier. Smaller tiers come first, since the larger ones contain their
    cells.
    """
    columns = [factors(plan, position) for position in range(len(plan.columns))]
    chosen = [0] * len(plan.ops)
    for name, (tier, parts) in specs.items():
        whole = [0] * len(plan.ops)
        for part in parts:
            universe = [0] * len(plan.ops)
            for index in reduce.bits(part.ops):
                universe[index] = plan.valid[index] & part.columns
            chosen = _choose_cells(plan, part, universe, columns, chosen)
            whole = _join(whole, universe)
        # A tier without a cover is reported by its pairs.
        coverage = reduce.coverage(whole, chosen, columns, tier.reduce.t or 2)
        plan.tiers[name] = TierCells(tier, parts, whole, chosen, coverage)


def _choose_cells(
    plan: Plan,
    part: Choice,
    universe: list[int],
    columns: Sequence[reduce.Column],
    cells_of_smaller_tiers: list[int],
) -> list[int]:
    """Return the cells of smaller tiers, and those that the part chooses from `universe`."""
    # a row that moved keeps the cells that were drawn for it
    rows = [op.row.get("former_name", op.name) for op in plan.ops]
    # A cover builds on the cells of smaller tiers. Any other choice is added to them.
    wanted = part.spec.reduce
    if wanted.t is not None:
        chosen = reduce.cover(rows, universe, columns, wanted.t, cells_of_smaller_tiers)
    elif wanted.sample is not None:
        sample = reduce.sample(rows, universe, columns, wanted.sample, wanted.seed)
        chosen = _join(cells_of_smaller_tiers, sample)
    else:
        chosen = _join(cells_of_smaller_tiers, universe)
    # A limit counts the cells of smaller tiers, and may only drop others.
    for limit, limited in part.limits:
        room = limit.cells
        free = []
        for mask, before in zip(chosen, cells_of_smaller_tiers, strict=True):
            room -= (before & limited).bit_count()
            free.append(mask & limited & ~before)
        drawn = reduce.sample(rows, free, columns, max(0, room), limit.seed)
        chosen = [
            (mask & ~spare) | taken for mask, spare, taken in zip(chosen, free, drawn, strict=True)
        ]
    return chosen


def factors(plan: Plan, position: int) -> reduce.Column:
    """Return the values of a column that a reduction distinguishes."""
    column = plan.columns[position]
    values = [f"{axis}={value}" for axis, value in column.axes.by_name().items() if value != PLAIN]
    return (f"check={column.check}", f"dtype={column.dtype}", *values)


def _join(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [a | b for a, b in zip(first, second, strict=True)]
