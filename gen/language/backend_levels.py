"""Say which cells belong to a level: what an author of a backend brings up first, second, third.

    levels:
      - name: elementwise
        claim: Kernels of numbers one by one.
        ops: [torch.add, torch.mul, "torch.exp*"]
        checks: [forward_layout, out]

A level has the cells of its ops under its checks that the full tier has, without jitted ones. Its
ops stand in the order in which to write them. So the first one that fails is the one to write next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from gen.errors import MatrixError, Problem
from gen.language import source
from gen.language.axes import Axes
from gen.language.globs import Names
from gen.language.selection_specs import LevelSpec

__all__ = ["TIER_OF_LEVELS", "Level", "LevelError", "chosen_levels", "levels_of", "read_levels"]

TIER_OF_LEVELS = "full"
"""The tier whose cells belong to levels."""


class LevelError(ValueError):
    """There is no such level."""


@dataclass(frozen=True)
class Level:
    """A level, with its number from 1."""

    number: int
    spec: LevelSpec
    # An op is asked for with each of its cells, and None is an answer, too.
    _ranks: dict[str, int | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def title(self) -> str:
        return f"level {self.number}, {self.spec.name}"

    def rank(self, op: str) -> int | None:
        """Return where an op stands in the order of the level. None if it is not in it."""
        if op not in self._ranks:
            # The first glob that names it decides, as `ops` may name it again by a wider one.
            names = Names({op: 0}, "op")
            matched = (place for place, glob in enumerate(self.spec.ops) if names.named(glob))
            self._ranks[op] = next(matched, None)
        return self._ranks[op]

    def has(self, op: str, check: str, dtype: str, axes: Axes) -> bool:
        """Return whether a cell of the full tier belongs to the level."""
        return self.rank(op) is not None and self.has_column(check, dtype, axes)

    def has_column(self, check: str, dtype: str, axes: Axes) -> bool:
        """Return whether cells of a check, a dtype and axes belong to the level.

        A graph that is jitted is a matter of the target, and says nothing more of a backend.
        """
        limits: dict[str, Sequence[str]] = {
            "check": self.spec.checks,
            "dtype": self.spec.dtypes or ["*"],
            "run": ["plain"],
            **self.spec.axes,
        }
        words = {"check": check, "dtype": dtype, **axes.by_name()}
        return all(_matches(word, limits.get(axis, ["*"])) for axis, word in words.items())


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(map(Names({name: 0}, "name").named, globs))


def levels_of(specs: Sequence[LevelSpec]) -> list[Level]:
    """Return the levels of a matrix, numbered from 1."""
    return [Level(place, spec) for place, spec in enumerate(specs, 1)]


def read_levels(matrix: Path) -> list[Level]:
    """Return the levels of a matrix and the files that it includes.

    Raises MatrixError if they cannot be read. `gen generate` names each mistake.
    """
    read = source.load(matrix)
    specs = read.data.get("levels", [])
    try:
        return levels_of([LevelSpec.model_validate(spec) for spec in specs])
    except (ValidationError, TypeError) as error:
        place = read.where(("levels",))
        what = f"the levels cannot be read: {str(error).splitlines()[0]}"
        raise MatrixError([Problem(place, "levels", what, "what `gen generate` takes")]) from None


def chosen_levels(levels: Sequence[Level], text: str) -> list[Level]:
    """Return the levels that a text asks for: `3`, or `1-6`.

    Raises LevelError if there is no such level, or if it has no cells.
    """
    if not levels:
        raise LevelError("matrix.yaml has no section `levels:`")
    numbers = {str(level.number): level.number for level in levels}
    # What is no number of a level becomes 0, which the condition below refuses.
    low, _, high = text.partition("-")
    first, last = numbers.get(low, 0), numbers.get(high or low, 0)
    if not 1 <= first <= last:
        named = ", ".join(f"{level.number} {level.spec.name}" for level in levels)
        raise LevelError(f"{text!r} is no level, and no range of them such as 1-3; known: {named}")
    chosen = [level for level in levels[first - 1 : last] if not level.spec.absent]
    if not chosen:
        absent = levels[first - 1]
        raise LevelError(f"{absent.title}, has no cells: {absent.spec.absent}")
    return chosen
