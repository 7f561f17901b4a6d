"""Estimate how long a cell takes, from a small file of the project: the time of a check, times a
factor of the op.

The file has one number for each check, op and family. So it is small enough to be committed, it
knows of cells that no run has had, and every machine that has the same commit divides the same way.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gen.files import replace

__all__ = ["PLACE", "Durations", "extended", "fit", "read_durations", "write_durations"]

PLACE = Path("matrix/durations.json")
_USUAL = 0.01  # seconds of a cell of which nothing is known
_ROUNDS = 20  # of the fit, each of which makes the totals of checks and ops right in turn
_LEAST = 1e-5  # seconds


@dataclass(frozen=True)
class Durations:
    """Expected times of cells."""

    # the mean seconds of a cell, by check
    checks: Mapping[str, float] = field(default_factory=dict)
    # factors by which cells of an op take longer than the mean of their check
    ops: Mapping[str, float] = field(default_factory=dict)
    # the mean seconds of a family's cells
    families: Mapping[str, float] = field(default_factory=dict)

    def cell(self, check: str, op: str) -> float:
        """Return the seconds of a cell. An unknown check counts as the mean of the known ones, and
        so does an unknown op.

        Sums of cells are what a division is made of. The median, also that of checks of the same
        pipeline, gives a third of the true sum for checks of tier full alone; the mean is within a
        quarter of it (docs/scaling.md).
        """
        return max(self.checks.get(check, self._check) * self.ops.get(op, self.op), _LEAST)

    def family(self, name: str) -> float:
        """Return the mean seconds of a family's cells. An unknown family counts as the mean of the
        known ones."""
        return max(self.families.get(name, self._family), _LEAST)

    @cached_property
    def _check(self) -> float:
        return fmean(self.checks.values()) if self.checks else _USUAL

    @cached_property
    def op(self) -> float:
        """Return the factor of an unknown op."""
        return fmean(self.ops.values()) if self.ops else 1.0

    @cached_property
    def _family(self) -> float:
        return fmean(self.families.values()) if self.families else _USUAL


def fit(cells: Iterable[tuple[str, str, str, float]]) -> Durations:
    """Return the durations that explain ``(family, check, op, seconds)`` of cells.

    Scaling checks and ops in turn keeps the totals of both (iterative proportional fitting), and
    totals are what shards are made of."""
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    of_family: dict[str, list[float]] = {}
    for family, check, op, cell_seconds in cells:
        seconds[check, op] += cell_seconds
        counts[check, op] += 1
        total = of_family.setdefault(family, [0.0, 0.0])
        total[0] += cell_seconds
        total[1] += 1
    checks = dict.fromkeys((check for check, _ in counts), 1.0)
    ops = dict.fromkeys((op for _, op in counts), 1.0)
    # Each half of a round makes one side's totals right, and the other side's nearly so.
    for _ in range(_ROUNDS):
        checks = _scale(seconds, counts, checks, 0, {key: ops[key[1]] for key in counts})
        ops = _scale(seconds, counts, ops, 1, {key: checks[key[0]] for key in counts})
    families = {name: total / count for name, (total, count) in of_family.items()}
    return Durations(checks, ops, families)


def extended(known: Durations, cells: Iterable[tuple[str, str, str, float]]) -> Durations:
    """Return `known` with the checks, ops and families of ``(family, check, op, seconds)`` that it
    lacks, and all that it has.

    The cells may be of a slower machine: the cells that both have show by how much. Raises
    ValueError if they have no cell of a known check and op.
    """
    all_cells = list(cells)
    both = []
    for _, check, op, seconds in all_cells:
        if check in known.checks and op in known.ops:
            both.append((check, seconds, known.cell(check, op)))
    if not both:
        raise ValueError(
            "no cell is of a check and an op that the file has, "
            "so that the speed of the machine cannot be told"
        )
    # the median of checks, which a few cells that took long by chance do not move
    slowness = median(_ratios(both).values()) or 1.0
    # In each table the known numbers come last, and so replace those of these cells.
    checks = {
        **_ratios(
            (check, seconds / slowness, known.ops.get(op, known.op))
            for _, check, op, seconds in all_cells
        ),
        **known.checks,
    }
    ops = {
        **_ratios((op, seconds / slowness, checks[check]) for _, check, op, seconds in all_cells),
        **known.ops,
    }
    families = {
        **_ratios((family, seconds / slowness, 1.0) for family, _, _, seconds in all_cells),
        **known.families,
    }
    return Durations(checks, ops, families)


def _ratios(parts: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Return, for each name, the sum of the first numbers by the sum of the second ones."""
    above: defaultdict[str, float] = defaultdict(float)
    below: defaultdict[str, float] = defaultdict(float)
    for name, numerator, denominator in parts:
        above[name] += numerator
        below[name] += denominator
    return {name: above[name] / below[name] for name in above if below[name]}


def _scale(
    seconds: Mapping[tuple[str, str], float],
    counts: Mapping[tuple[str, str], int],
    names: Iterable[str],
    side: int,
    other: Mapping[tuple[str, str], float],
) -> dict[str, float]:
    """Return the numbers of one side, checks or ops, that explain the totals with those of the
    other.
    """
    taken, expected = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for key, count in counts.items():
        taken[key[side]] += seconds[key]
        expected[key[side]] += count * other[key]
    return {name: taken[name] / expected[name] if expected[name] else 1.0 for name in taken}


def read_durations(path: Path) -> Durations:
    """Return the file's durations. Without a file every cell counts the same.

    Raises ValueError for a file that is none of durations.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Durations()
    except ValueError as error:
        raise ValueError(
            f"{path}: not JSON ({error}); `python -m gen durations RESULTS` writes it"
        ) from error
    try:
        parts: list[dict[str, Any]] = [data[name] for name in ("checks", "ops", "families")]
        tables = []
        for part in parts:
            tables.append({name: _number(value) for name, value in part.items()})
        return Durations(*tables)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path}: not a file of durations ({error!r}); "
            "`python -m gen durations RESULTS` writes it"
        ) from error


def _number(value: Any) -> float:
    # JSON as Python reads it has NaN and Infinity.
    number = float(value)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"{value} is no time")
    return number


def write_durations(path: Path, durations: Durations) -> None:
    """Write the file, with three digits of each number."""
    data: dict[str, dict[str, float]] = {}
    for name in ("checks", "ops", "families"):
        numbers = sorted(getattr(durations, name).items())
        data[name] = {key: float(f"{value:.3g}") for key, value in numbers}
    replace(path, json.dumps(data, indent=1) + "\n")
