"""Hold a matrix that is expanded: its columns, its entries, its tiers, and the cells of each op.

The cells of an op are the bits of one integer over the *columns*. A column is a check with a dtype
and axis values. With columns `(sum, float32)`, `(sum, float64)`, `(grad, float64)`, the integer
`0b101` says that an op has the first and the third.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gen.language.axes import Axes
from gen.language.selection_specs import Limit, Part, Tier, Where
from gen.language.validate import Loaded
from gen.plan import matrix_ops as ops_
from gen.plan import reduce
from gen.plan.catalog import Catalog
from gen.plan.matrix_ops import Dtypes, Op

# The entries that say something of a cell that stays. An exclusion takes its cells away.
KNOWN_KINDS = ("skip", "xfail", "vanishes", "tolerance")


@dataclass(frozen=True)
class Column:
    """A cell without its op: a check, a dtype and axes."""

    check: str
    dtype: str
    axes: Axes

    @property
    def word(self) -> str:
        """Return the column as a generated module has it: `dtype[:value…]`."""
        return ":".join((self.dtype, *self.axes.spoken))

    def case(self, op: str) -> str:
        """Return the id of the case."""
        return "-".join((op, self.dtype, *self.axes.spoken))


@dataclass(frozen=True)
class Entry:
    """An entry of exclude, skip, xfail, vanishes or tolerance.

    It is about each cell whose column and whose op are in its sets.
    """

    kind: str
    name: str
    spec: Where
    path: ops_.Path
    # one bit for each column of the plan
    columns: int
    # one bit for each op of the plan
    ops: int


@dataclass
class TierCells:
    """The cells of a tier, which include those of the smaller tiers."""

    spec: Tier
    parts: list[Choice]
    # the cells that its reduction had to cover, as one integer per op
    universe: list[int]
    # the cells that it has, as one integer per op
    chosen: list[int]
    coverage: reduce.Coverage

    @property
    def cells(self) -> int:
        """Count the cases of a run of the tier."""
        return sum(mask.bit_count() for mask in self.chosen)


@dataclass(frozen=True)
class Choice:
    """A tier, or a part of one."""

    spec: Part
    # its place in the matrix
    path: ops_.Path
    # the columns that its filters leave, one bit for each
    columns: int
    # the ops that its filters leave, one bit for each
    ops: int
    # its limits, each with the columns that it is about
    limits: list[tuple[Limit, int]]

    def has(self, op: int, column: int) -> bool:
        """Return whether the cell of an op and a column lies within its filters."""
        return bool((self.ops >> op) & 1 and (self.columns >> column) & 1)


@dataclass
class Plan:
    """The expanded matrix.

    Lists of integers have one integer per op, whose bits stand for `columns`.
    """

    loaded: Loaded
    catalog: Catalog
    dtypes: Dtypes
    ops: list[Op]
    columns: list[Column]
    spans: dict[str, tuple[int, int]]
    """First column and number of columns of each check."""
    # the cells that fit an op
    possible: list[int]
    # the possible cells that no entry excludes
    valid: list[int]
    entries: list[Entry]
    tiers: dict[str, TierCells] = field(default_factory=dict)

    def of_check(self, mask: int, check: str) -> int:
        """Return the bits of `mask` for the columns of `check`, moved to bit 0."""
        start, count = self.spans[check]
        return (mask >> start) & ((1 << count) - 1)

    def entries_of(self, op: int) -> Iterator[Entry]:
        """Yield the known entries of an op. Those of the matrix come before those of a row or
        check.
        """
        for entry in self.entries:
            if entry.kind in KNOWN_KINDS and (entry.ops >> op) & 1:
                yield entry

    def tier_of(self, op: int, column: int) -> str | None:
        """Return the smallest tier that takes the cell."""
        # from the smallest tier, as they are filled in this order
        for name, tier in self.tiers.items():
            if (tier.chosen[op] >> column) & 1:
                return name
        return None
