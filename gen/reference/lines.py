"""Define reductions and scans of one row of numbers: at ties, zeros, infinities and NaN, and of a
row without numbers.

``LINES["torch.amax"].value([1.0, 2.0, 2.0])`` is 2.0, and ``.slopes`` of it [0.0, 0.5, 0.5]: the
derivative by each number of the row. A scan gives a row, and a row of slopes for each result. Ops
with several results give a tuple, of which the slopes are those of the first one that has any. None
is a number of which nothing is said. A ValueError or IndexError says that the op refuses the row.

Where numbers tie, the slopes are the choice that torch documents: ``amax`` divides evenly, and
``max`` of a dimension has the slope of the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LINES", "PLACED", "Line"]

INF, NAN = math.inf, math.nan
Row = Sequence[Any]
Slope = list[float | None]


@dataclass(frozen=True)
class Line:
    """The definition of an op on a row."""

    value: Callable[..., Any]
    # Gives a list for each result that is differentiable, in order.
    slopes: Callable[..., Any] | None = None
    # Whether the op has a result for each number.
    scan: bool = False
    # Whether nothing is rounded.
    exact: bool = False


# --- sums, averages and products ------------------------------------------------------------------


def _sum(row: Row) -> object:
    """Return the sum. Infinities of both signs, or a NaN, make it NaN."""
    # The sum of integers is an integer, which a float could not hold exactly.
    if all(isinstance(x, int) for x in row):
        return sum(row)
    return _fsum(row)


def _all_finite(row: Row) -> bool:
    return all(map(math.isfinite, row))


def _fsum(row: Row) -> float:
    """Return the sum of floats. math.fsum rounds once, and refuses infinities of both signs."""
    if _all_finite(row):
        return math.fsum(row)
    return sum(map(float, row))


def _mean(row: Row) -> float:
    # torch divides 0 by 0 here, and raises no error.
    if not row:
        return NAN
    return _fsum(row) / len(row)


def _numbers(row: Row) -> list[object]:
    return [x for x in row if x == x]


def _only_numbers(row: Row, slope: float) -> Slope:
    """Return `slope` by each number, and 0 by each NaN."""
    # NaN is the only number that is not equal to itself.
    return [slope if x == x else 0.0 for x in row]


def _prod_slopes(row: Row) -> Slope:
    """Return the products of the other numbers.

    By infinities and NaN nothing is said, because a formula may divide by them.
    """
    if not _all_finite(row):
        return [None] * len(row)
    # The whole product divided by the number would be shorter, but the number may be 0.
    return [math.prod(row[:index]) * math.prod(row[index + 1 :]) for index in range(len(row))]


def _spread(row: Row, lost_degrees: float) -> float:
    """Return the mean square distance from the mean, by the degrees of freedom."""
    if not row:
        return NAN
    if not _all_finite(row):
        return NAN
    if len(row) <= lost_degrees:
        # A sum of squares is divided by no degree of freedom: 0 by 0, or a positive number by 0.
        return NAN if min(row) == max(row) else INF
    middle = _mean(row)
    return math.fsum((x - middle) ** 2 for x in row) / (len(row) - lost_degrees)


def _lost_degrees(unbiased: bool | None = None, correction: float | None = None) -> float:
    """Return the degrees of freedom that a variance loses, by the arguments of either overload."""
    if correction is not None:
        return correction
    if unbiased is False:
        return 0.0
    return 1.0


def _var(row: Row, **options: Any) -> float:
    return _spread(row, _lost_degrees(**options))


def _std(row: Row, **options: object) -> float:
    return math.sqrt(_var(row, **options))


def _var_slopes(row: Row, **options: Any) -> Slope:
    """Return twice the distances from the mean over the degrees of freedom."""
    lost_degrees, middle = _lost_degrees(**options), _mean(row)
    # Without a degree of freedom torch divides by 0.
    if len(row) <= lost_degrees or not _all_finite(row):
        return [None] * len(row)
    return [2 * (x - middle) / (len(row) - lost_degrees) for x in row]


def _std_slopes(row: Row, **options: object) -> Slope:
    """Return the slopes of the root of the variance.

    They are zeros where all numbers are equal, as torch has them.
    """
    root = _std(row, **options)

    def slope_of_root(slope: float | None) -> float | None:
        if slope is None or slope == 0:
            return slope
        return slope / (2 * root)

    return list(map(slope_of_root, _var_slopes(row, **options)))


# --- order ----------------------------------------------------------------------------------------


def _extreme(choose: Callable[..., object], row: Row) -> object:
    """Return the greatest or least number, or NaN if one is NaN.

    A row without numbers is refused.
    """
    nans = [x for x in row if x != x]
    if nans:
        return nans[0]
    return choose(row)


def _any_nan(row: Row) -> bool:
    return any(x != x for x in row)


def _same(x: object, y: object) -> bool:
    """Return whether numbers are equal. NaN equals NaN here."""
    return bool(x == y or (x != x and y != y))


def _first(choose: Callable[..., object], row: Row) -> int:
    """Return the place of the first extreme number, or of the first NaN."""
    extreme = _extreme(choose, row)
    return next(index for index, x in enumerate(row) if _same(x, extreme))


def _last(choose: Callable[..., object], row: Row) -> int:
    """Return the place of the last extreme number, or of the last NaN."""
    # The last place in the row is the first one in the reversed row.
    return len(row) - 1 - _first(choose, row[::-1])


def _even(extreme: object, row: Row, *, nan: bool = True) -> Slope:
    """Return a slope that is divided evenly between what equals `extreme`.

    `nan` says whether NaNs divide it too. Otherwise nothing is said where the result is NaN.
    """
    if extreme != extreme and not nan:
        return [None] * len(row)
    ties = [_same(x, extreme) for x in row]
    return [tie / sum(ties) for tie in ties]


def _at(place: int | None, row: Row) -> Slope:
    """Return the slope 1 at a place. With None for the place, nothing is said."""
    if place is None:
        return [None] * len(row)
    return [float(index == place) for index in range(len(row))]


def _median(row: Row) -> object:
    """Return the lower one of the middle numbers.

    It is NaN if one of the numbers is NaN, or if there is none.
    """
    if not row or _any_nan(row):
        return NAN
    return sorted(row)[(len(row) - 1) // 2]


def _nanmedian(row: Row) -> object:
    return _median(_numbers(row))


def _place_of_only(number: object, row: Row) -> int | None:
    """Return the place of the only number that equals `number`.

    It is None if there are several, because the documentation names none of them.
    """
    ties = [index for index, x in enumerate(row) if _same(x, number)]
    if len(ties) != 1:
        return None
    return ties[0]


def _with_index(median: Callable[[Row], object]) -> Line:
    """Return the median of a dimension, whose slope is at the index that it returns."""

    def value(row: Row) -> tuple[Any, int | None]:
        if not row:
            raise IndexError("no index")
        return median(row), _place_of_only(median(row), row)

    return Line(value, lambda row: [_at(value(row)[1], row)], exact=True)


def _running_extreme(choose: Callable[..., object]) -> Line:
    """Return a running extreme. Of equal numbers the index is that of the last one."""

    # From its place on, a NaN is both the greatest and the least number.
    def places(row: Row) -> list[int]:
        return [_last(choose, row[: index + 1]) for index in range(len(row))]

    def value(row: Row) -> tuple[list[Any], list[int]]:
        return [row[k] for k in places(row)], places(row)

    def slopes(row: Row) -> list[list[Slope]]:
        return [[_at(k, row) for k in places(row)]]

    return Line(value, slopes, scan=True, exact=True)


def _quantile(row: Row, q: float = 0.5, interpolation: str = "linear") -> object:
    """Return a quantile by linear interpolation.

    Of other interpolations, and of infinities, nothing is said.
    """
    if not row:
        raise ValueError("a quantile of nothing")
    if _any_nan(row):
        return NAN
    if interpolation != "linear" or not _all_finite(row):
        return None
    place = q * (len(row) - 1)
    low = math.floor(place)
    ordered = sorted(row)
    # The last number has no other one behind it.
    high = min(low + 1, len(row) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# --- exponentials ---------------------------------------------------------------------------------


def _logsumexp(row: Row) -> float:
    """Return the logarithm of the sum of exponentials, without overflow."""
    if _any_nan(row):
        return NAN
    top = max(row, default=-INF)
    # The formula below would take a difference of infinities, which is NaN.
    if math.isinf(top):
        return float(top)
    return top + math.log(math.fsum(math.exp(x - top) for x in row))


def _softmax(row: Row) -> Slope:
    """Return the share of each exponential in their sum.

    Nothing is said where the sum is infinite, or has no terms.
    """
    total = _logsumexp(row)
    if not math.isfinite(total):
        return [None] * len(row)
    return [math.exp(x - total) for x in row]


def _scan(value: Callable[[Row], object], slopes: Callable[[Row], Slope]) -> Line:
    """Return the scan that reduces each beginning of the row."""

    def beginnings(row: Row) -> list[Row]:
        return [row[: index + 1] for index in range(len(row))]

    def values(row: Row) -> list[Any]:
        return list(map(value, beginnings(row)))

    def rows_of_slopes(row: Row) -> list[list[Slope]]:
        # A result does not depend on the numbers behind it, so these slopes are 0.
        return [
            [
                slopes(beginning) + [0.0] * (len(row) - len(beginning))
                for beginning in beginnings(row)
            ]
        ]

    return Line(values, rows_of_slopes, scan=True)


# --- norms ----------------------------------------------------------------------------------------


def _norm(row: Row, p: float = 2) -> Any:
    """Return the norm by its definition. For p = 0 it counts the numbers that are not 0."""
    sizes = list(map(abs, row))
    if p == 0:
        return float(sum(size != 0 for size in sizes))
    if p == INF:
        return _extreme(max, sizes)
    if p == -INF:
        return _extreme(min, sizes)
    if _any_nan(sizes):
        return NAN
    return _norm_of_powers(sizes, p)


def _norm_of_powers(sizes: Row, p: float) -> object:
    """Return the p-th root of the sum of powers.

    For a negative p it is 0 if one of the sizes is 0.
    """
    if p < 0 and not sizes:
        raise ValueError("a negative power of nothing")
    # A negative power of 0 is infinite, and so is the sum. Its negative root is 0.
    if p < 0 and 0 in sizes:
        return 0.0
    if p > 0 and INF in sizes:
        return INF
    total = sum(size**p for size in sizes)
    if total:
        return total ** (1 / p)
    return 0.0 if p > 0 else INF


def _norm_slopes(row: Row, p: float = 2) -> Slope:
    """Return ``sign x · (|x| / norm)**(p - 1)``, with the slope 0 at 0, where torch has it.

    The norms of infinite p divide evenly.
    """
    if p == 0:
        return [0.0] * len(row)
    if not _all_finite(row):
        return [None] * len(row)
    norm = _norm(row, p)
    if math.isinf(p):
        return _slopes_of_extreme_size(row, norm)
    # Such a norm has no finite slope at 0.
    if p < 1 and 0 in row:
        return [None] * len(row)

    def slope(x: Any) -> Any:
        if x == 0:
            return 0.0
        return _sign(x) * (abs(x) / norm) ** (p - 1)

    return list(map(slope, row))


def _slopes_of_extreme_size(row: Row, extreme: float) -> Slope:
    """Return the slopes of the largest or least size, divided evenly between ties."""
    ties: int = sum(abs(x) == extreme for x in row)

    def slope(x: float) -> float:
        if abs(x) != extreme:
            return 0.0
        return _sign(x) / ties

    return list(map(slope, row))


def _sign(x: float) -> float:
    return float((x > 0) - (x < 0))


# --- the table ------------------------------------------------------------------------------------

_even_median = Line(_median, lambda row: [_even(_median(row), row)], exact=True)
_even_nanmedian = Line(_nanmedian, lambda row: [_even(_nanmedian(row), row)], exact=True)
_variance = Line(_var, lambda row, **options: [_var_slopes(row, **options)])
_deviation = Line(_std, lambda row, **options: [_std_slopes(row, **options)])


def _nanmean(row: Row) -> float:
    return _mean(_numbers(row))


def _nanmean_slopes(row: Row) -> Slope:
    count = len(_numbers(row))
    if count == 0:
        return [None] * len(row)
    return _only_numbers(row, 1 / count)


def _with_mean(line: Line) -> Line:
    """Return a line that also returns the mean."""
    slopes = line.slopes
    assert slopes is not None
    return Line(
        lambda row, **options: (line.value(row, **options), _mean(row)),
        lambda row, **options: [*slopes(row, **options), [1 / len(row)] * len(row)],
    )


def _extreme_line(choose: Callable[..., object], *, nan: bool) -> Line:
    """Return the greatest or least number as an op with slopes."""
    return Line(
        lambda row: _extreme(choose, row),
        lambda row: [_even(_extreme(choose, row), row, nan=nan)],
        exact=True,
    )


def _extreme_with_index(choose: Callable[..., object]) -> Line:
    """Return the greatest or least number of a dimension, with its index."""
    return Line(
        lambda row: (_extreme(choose, row), _first(choose, row)),
        lambda row: [_at(_first(choose, row), row)],
        exact=True,
    )


def _both_extremes(row: Row) -> tuple[object, object]:
    return _extreme(min, row), _extreme(max, row)


LINES: dict[str, Line] = {
    "torch.sum": Line(_sum, lambda row: [[1.0] * len(row)]),
    "torch.mean": Line(_mean, lambda row: [[1 / len(row)] * len(row)]),
    "torch.nansum": Line(lambda row: _sum(_numbers(row)), lambda row: [_only_numbers(row, 1.0)]),
    "torch.nanmean": Line(_nanmean, lambda row: [_nanmean_slopes(row)]),
    "torch.prod": Line(math.prod, lambda row: [_prod_slopes(row)]),
    "torch.var": _variance,
    "torch.var.unbiased": _variance,
    "torch.std": _deviation,
    "torch.std.unbiased": _deviation,
    "torch.var_mean": _with_mean(_variance),
    "torch.var_mean.unbiased": _with_mean(_variance),
    "torch.std_mean": _with_mean(_deviation),
    "torch.std_mean.unbiased": _with_mean(_deviation),
    # --- order
    "torch.amax": _extreme_line(max, nan=False),
    "torch.amin": _extreme_line(min, nan=False),
    "torch.max.reduction_no_dim": _extreme_line(max, nan=True),
    "torch.min.reduction_no_dim": _extreme_line(min, nan=True),
    "torch.max.reduction_with_dim": _extreme_with_index(max),
    "torch.min.reduction_with_dim": _extreme_with_index(min),
    "torch.aminmax": Line(
        _both_extremes,
        lambda row: [_even(found, row, nan=False) for found in _both_extremes(row)],
        exact=True,
    ),
    "torch.argmax": Line(lambda row: _first(max, row), exact=True),
    "torch.argmin": Line(lambda row: _first(min, row), exact=True),
    "torch.median": _even_median,
    "torch.nanmedian": _even_nanmedian,
    "torch.quantile": Line(_quantile),
    # of NaNs alone the result is NaN, and not the error of an empty row
    "torch.nanquantile": Line(lambda row, **options: _quantile(_numbers(row) or row, **options)),
    # --- truth and counts
    "torch.any": Line(lambda row: any(row), exact=True),
    "torch.all": Line(lambda row: all(row), exact=True),
    "torch.count_nonzero": Line(lambda row: sum(x != 0 for x in row), exact=True),
    # --- exponentials and norms
    "torch.logsumexp": Line(_logsumexp, lambda row: [_softmax(row)]),
    "torch.linalg.vector_norm": Line(_norm, lambda row, **options: [_norm_slopes(row, **options)]),
    "torch.norm": Line(_norm, lambda row, **options: [_norm_slopes(row, **options)]),
    "torch.norm.inf": Line(_norm, lambda row, **options: [_norm_slopes(row, **options)]),
    "torch.norm.fro": Line(_norm, lambda row, **options: [_norm_slopes(row, **options)]),
    # --- scans
    "torch.cumsum": _scan(_sum, lambda row: [1.0] * len(row)),
    "torch.cumprod": _scan(math.prod, _prod_slopes),
    "torch.logcumsumexp": _scan(_logsumexp, _softmax),
    "torch.cummax": _running_extreme(max),
    "torch.cummin": _running_extreme(min),
}
PLACED: dict[str, Line] = {
    "torch.median": _with_index(_median),
    "torch.nanmedian": _with_index(_nanmedian),
}
"""Ops that return an index too if they get a dimension."""
