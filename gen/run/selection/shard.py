"""Decide which of N shards runs a cell, before any cell is made.

All cells stand in one line: module after module, op after op, each as long as it takes by the
shipped durations. A shard is one N-th of the line. So it imports only the modules that its part
touches, and the cells of one op, which share samples, stay together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from gen.checks.tables import TIERS, Cell
from gen.run.cell_durations import Durations
from gen.run.inventory import Module, matrix_fingerprint

__all__ = ["Partition", "Shard", "parse_shard"]

Shard = tuple[int, int]
_PLAIN = 0.1  # seconds of a module that is none of the matrix


def parse_shard(text: str) -> Shard:
    """Return the two numbers of a shard, counted from one: `2/4` -> (2, 4).

    Raises ValueError for any other text.
    """
    index, _, count = text.partition("/")
    are_numbers = index.isdecimal() and count.isdecimal()
    if not (are_numbers and 1 <= int(index) <= int(count)):
        raise ValueError(f"--shard {text!r}: expected I/N with 1 <= I <= N, as 2/4")
    return int(index), int(count)


class Partition:
    """The line of all cells at a tier, cut into `count` parts.

    Its fingerprint is equal on two machines that cut the same line alike. `selection` is what else
    narrows the run; it is only part of the fingerprint.
    """

    def __init__(
        self,
        modules: Sequence[Module],
        durations: Durations,
        tier: str,
        count: int,
        selection: str = "",
    ) -> None:
        self.matrix = matrix_fingerprint(modules)
        self.cells = sum(module.counts.get(tier, 0) for module in modules)
        self.count = count
        self._durations = durations
        self._spans: dict[Path, tuple[float, float]] = {}
        # Each module is a span of the line, as long as its cells take.
        begin = 0.0
        for module in modules:
            length = _PLAIN
            if module.counts:
                length = durations.family(module.family) * module.counts.get(tier, 0)
            self._spans[module.path] = begin, begin + length
            begin += length
        self._length = begin
        # All on which a division depends, so that shards of two divisions cannot be merged.
        parts = [
            self.matrix,
            tier,
            str(count),
            selection,
            *(f"{path.name} {span}" for path, span in self._spans.items()),
            repr(durations),
        ]
        self.fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    def knows(self, path: Path) -> bool:
        """Return whether the module is one of those that are divided."""
        return path in self._spans

    def touches(self, path: Path, number: int) -> bool:
        """Return whether shard `number` may have cells of the module."""
        first, last = self._ends(path)
        return first <= number <= last

    def owner(self, path: Path) -> int:
        """Return the shard that runs the tests of the module that are no cells."""
        return self._at(self._spans[path][0])

    def part(
        self, path: Path, tables: Mapping[str, Sequence[Cell]], number: int
    ) -> dict[str, list[Cell]]:
        """Return the cells of shard `number` among those of a module: function -> cells."""
        line: list[tuple[str, int, str, Cell]] = []
        for turn, (name, cells) in enumerate(tables.items()):
            for cell in cells:
                line.append((cell.op, turn, name, cell))
        line.sort(key=_by_op)
        weights = [self._durations.cell(name.removeprefix("test_"), op) for op, _, name, _ in line]
        begin, end = self._spans[path]
        scale = (end - begin) / (sum(weights) or 1.0)
        first, last = self._ends(path)
        chosen: dict[str, list[Cell]] = {name: [] for name in tables}
        passed = 0.0
        for (_, _, name, cell), weight in zip(line, weights, strict=True):
            # The middle of a cell decides. Only the shards from `first` to `last` import the
            # module, so rounding may not move a cell to another one.
            shard = self._at(begin + scale * (passed + weight / 2))
            if min(max(shard, first), last) == number:
                chosen[name].append(cell)
            passed += weight
        return chosen

    def _ends(self, path: Path) -> tuple[int, int]:
        """Return the shards of a module's first and last cell. A module that ends where a shard
        does has nothing in the next one."""
        begin, end = self._spans[path]
        return self._at(begin), self._at(begin + (end - begin) * (1 - 1e-9))

    def _at(self, place: float) -> int:
        """Return the shard of a place in the line."""
        return max(1, min(self.count, int(place * self.count / (self._length or 1.0)) + 1))


def _by_op(entry: tuple[str, int, str, Cell]) -> tuple[str, int]:
    """Return the op of a cell and the place of its check, by which a line is sorted."""
    return entry[:2]


def lacks_the_largest_tier(modules: Sequence[Module]) -> bool:
    """Return whether modules have cells, and none beyond the tier full."""
    counts = [module.counts for module in modules if module.counts]
    has_more = any(of_tiers.get(TIERS[-1], 0) > of_tiers.get(TIERS[-2], 0) for of_tiers in counts)
    return bool(counts) and not has_more
