"""Choose fewer cells that still cover every valid t-tuple, and count the coverage.

The cells of a matrix are (row, column) pairs. A row is an op, a column is one check × dtype × axis
values. A row's valid cells are the bits of an integer. So each row takes a few wide bit operations,
without a search over a product:

1. For each row, a greedy choice covers the (t−1)-tuples of the row's columns. Together with the
   row, these are all the t-tuples that contain it. The choice depends on that row alone, so adding
   an op changes no other line.
2. Almost all t-tuples without a row are covered by then. Cells are added for the others.

Both steps choose among enumerated valid cells and stop only when nothing valid is uncovered, so the
cover is complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from hashlib import blake2b
from itertools import combinations
from operator import or_
from zlib import crc32

# the values of a cell's factors other than the op; no two factors share a value
Column = tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """How completely the chosen cells cover combinations of factor values."""

    # the number of factors in a combination
    t: int
    # how many combinations occur in valid cells
    tuples: int
    # how many of these occur in chosen cells
    covered: int
    # the number of chosen cells
    cells: int
    valid_cells: int

    @property
    def complete(self) -> bool:
        return self.tuples == self.covered


def cover(
    rows: Sequence[str],
    valid: Sequence[int],
    columns: Sequence[Column],
    t: int,
    given: Sequence[int],
) -> list[int]:
    """Return the chosen columns of each row, as bits: those in `given`, and more until every
    t-tuple of the `valid` cells is covered.

    The result is deterministic. A row's own part depends only on the row's name and its valid
    columns.
    """
    inside = _tuple_masks(columns, t - 1)
    hashes = [crc32(" ".join(column).encode()) for column in columns]
    chosen = list(given)
    for index, row in enumerate(rows):
        usable = list(bits(valid[index]))
        missing = _union(inside, usable) & ~_union(inside, bits(given[index] & valid[index]))
        if missing:
            # Rows begin at different columns, so that together they cover pairs of columns early.
            # An odd factor keeps different hashes different.
            salt = crc32(row.encode()) | 1
            usable.sort(key=lambda column: (hashes[column] * salt) & 0xFFFFFFFF)
            for column in _greedy(inside, usable, missing):
                chosen[index] |= 1 << column
    _cover_between_rows(rows, valid, columns, t, chosen)
    return chosen


def _cover_between_rows(
    rows: Sequence[str], valid: Sequence[int], columns: Sequence[Column], t: int, chosen: list[int]
) -> None:
    """Add cells to `chosen` until the t-tuples without a row are covered, too."""
    outside = _tuple_masks(columns, t)
    everywhere = fold(or_, valid, 0)
    chosen_somewhere = 0
    for mask, valid_mask in zip(chosen, valid, strict=True):
        chosen_somewhere |= mask & valid_mask
    missing = _union(outside, bits(everywhere)) & ~_union(outside, bits(chosen_somewhere))
    for column in _greedy(outside, list(bits(everywhere)), missing):
        # The row of the lowest hash takes the cell, so that a new op takes few from others.
        able = [index for index, mask in enumerate(valid) if (mask >> column) & 1]
        hashes = {index: crc32(f"{rows[index]} {columns[column]}".encode()) for index in able}
        chosen[min(able, key=hashes.__getitem__)] |= 1 << column


def coverage(
    valid: Sequence[int], chosen: Sequence[int], columns: Sequence[Column], t: int
) -> Coverage:
    """Count the t-tuples of the valid cells and of the chosen ones."""
    inside, outside = _tuple_masks(columns, t - 1), _tuple_masks(columns, t)
    chosen_cells = [mask & ok for mask, ok in zip(chosen, valid, strict=True)]
    return Coverage(
        t=t,
        tuples=_count(inside, outside, valid),
        covered=_count(inside, outside, chosen_cells),
        cells=sum(mask.bit_count() for mask in chosen_cells),
        valid_cells=sum(mask.bit_count() for mask in valid),
    )


def sample(
    rows: Sequence[str], valid: Sequence[int], columns: Sequence[Column], cells: int, seed: int
) -> list[int]:
    """Return `cells` of the valid cells, by a rank that depends only on the seed and the cell. So a
    new op displaces few others.
    """
    ranked: list[tuple[bytes, int, int]] = []
    for index, mask in enumerate(valid):
        for column in bits(mask):
            text = f"{seed} {rows[index]} {columns[column]}"
            ranked.append((blake2b(text.encode(), digest_size=8).digest(), index, column))
    chosen = [0] * len(rows)
    for _, index, column in sorted(ranked)[:cells]:
        chosen[index] |= 1 << column
    return chosen


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask  # the lowest set bit alone
        yield low.bit_length() - 1
        mask ^= low


def _tuple_masks(columns: Sequence[Column], size: int) -> list[int]:
    """Return for each column the tuples of `size` of its values, as bits.

    The empty tuple stands for the row alone.
    """
    numbers: dict[tuple[str, ...], int] = {}
    masks = []
    for column in columns:
        mask = 0
        for values in combinations(column, size):
            mask |= 1 << numbers.setdefault(values, len(numbers))
        masks.append(mask)
    return masks


def _greedy(masks: Sequence[int], candidates: Sequence[int], missing: int) -> Iterator[int]:
    """Yield candidates that cover `missing`, those that cover most first. Ties are in the order of
    `candidates`.
    """
    gains = [(candidate, (masks[candidate] & missing).bit_count()) for candidate in candidates]
    level = max((gain for _, gain in gains), default=0)
    while missing and level:
        remaining = []
        for candidate, bound in gains:
            # A gain only shrinks as tuples are covered, so the gain of before is a bound.
            gain = (masks[candidate] & missing).bit_count() if bound else 0
            if gain >= level:
                missing &= ~masks[candidate]
                yield candidate
            elif gain:
                remaining.append((candidate, gain))
        gains = remaining
        level -= 1


def _union(masks: Sequence[int], columns: Iterable[int]) -> int:
    """Return the tuples that any of the columns has, as bits."""
    union = 0
    for column in columns:
        union |= masks[column]
    return union


def _count(inside: Sequence[int], outside: Sequence[int], cells: Sequence[int]) -> int:
    """Count the tuples of cells: those with a row, and those without."""
    everywhere = fold(or_, cells, 0)
    count = _union(outside, bits(everywhere)).bit_count()
    # Many rows have the same cells, and each set of cells is counted once.
    tuples_of_mask: dict[int, int] = {}
    for mask in cells:
        if mask not in tuples_of_mask:
            tuples_of_mask[mask] = _union(inside, bits(mask)).bit_count()
        count += tuples_of_mask[mask]
    return count
