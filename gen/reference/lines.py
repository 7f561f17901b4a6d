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


def _sum(xs: Row) -> object:
    """Return the sum. Infinities of both signs, or a NaN, make it NaN."""
    if all(isinstance(x, int) for x in xs):
        return sum(xs)
    return _fsum(xs)


def _all_finite(xs: Row) -> bool:
    return all(map(math.isfinite, xs))


def _fsum(xs: Row) -> float:
    """Return the sum of floats. math.fsum rounds once, and refuses infinities of both signs."""
    if _all_finite(xs):
        return math.fsum(xs)
    return sum(map(float, xs))


def _mean(xs: Row) -> float:
    if not xs:
        return NAN
    return _fsum(xs) / len(xs)


def _numbers(xs: Row) -> list[object]:
    return [x for x in xs if x == x]


def _only_numbers(xs: Row, slope: float) -> Slope:
    """Return `slope` by each number, and 0 by each NaN."""
    return [slope if x == x else 0.0 for x in xs]


def _prod_slopes(xs: Row) -> Slope:
    """Return the products of the others. By infinities and NaN nothing is said, as a formula may
    divide by them."""
    if not _all_finite(xs):
        return [None] * len(xs)
    # without a quotient by the number itself, which may be 0
    return [math.prod(xs[:k]) * math.prod(xs[k + 1 :]) for k in range(len(xs))]


def _spread(xs: Row, lost_degrees: float) -> float:
    """Return the mean square distance from the mean, by the degrees of freedom."""
    if not xs:
        return NAN
    if not _all_finite(xs):
        return NAN
    if len(xs) <= lost_degrees:
        # a division of what is 0, or not above it, by no degree of freedom
        return NAN if min(xs) == max(xs) else INF
    middle = _mean(xs)
    return math.fsum((x - middle) ** 2 for x in xs) / (len(xs) - lost_degrees)


def _lost_degrees(unbiased: bool | None = None, correction: float | None = None) -> float:
    """Return how many degrees of freedom a variance loses, by the arguments of either overload."""
    if correction is not None:
        return correction
    if unbiased is False:
        return 0.0
    return 1.0


def _var(xs: Row, **options: Any) -> float:
    return _spread(xs, _lost_degrees(**options))


def _std(xs: Row, **options: object) -> float:
    return math.sqrt(_var(xs, **options))


def _var_slopes(xs: Row, **options: Any) -> Slope:
    """Return twice the distances from the mean over the degrees of freedom."""
    lost_degrees, middle = _lost_degrees(**options), _mean(xs)
    # Without a degree of freedom torch divides by 0.
    if len(xs) <= lost_degrees or not _all_finite(xs):
        return [None] * len(xs)
    return [2 * (x - middle) / (len(xs) - lost_degrees) for x in xs]


def _std_slopes(xs: Row, **options: object) -> Slope:
    """Return the slopes of the root. They are zeros where all numbers are equal, as torch has
    them.
    """
    root = _std(xs, **options)

    def slope_of_root(slope: float | None) -> float | None:
        if slope is None or slope == 0:
            return slope
        return slope / (2 * root)

    return list(map(slope_of_root, _var_slopes(xs, **options)))


# --- order ----------------------------------------------------------------------------------------


def _extreme(choose: Callable[..., object], xs: Row) -> object:
    """Return the greatest or least number, or NaN if one is NaN.

    A row without numbers is refused.
    """
    nans = [x for x in xs if x != x]
    if nans:
        return nans[0]
    return choose(xs)


def _any_nan(xs: Row) -> bool:
    return any(x != x for x in xs)


def _same(x: object, y: object) -> bool:
    """Return whether numbers are equal. NaN equals NaN here."""
    return bool(x == y or (x != x and y != y))


def _first(choose: Callable[..., object], xs: Row) -> int:
    """Return the place of the first extreme number, or of the first NaN."""
    extreme = _extreme(choose, xs)
    return next(index for index, x in enumerate(xs) if _same(x, extreme))


def _last(choose: Callable[..., object], xs: Row) -> int:
    """Return the place of the last extreme number, or of the last NaN."""
    return len(xs) - 1 - _first(choose, xs[::-1])


def _even(extreme: object, xs: Row, *, nan: bool = True) -> Slope:
    """Return a slope that is divided evenly between what equals `extreme`.

    `nan`: between NaNs too; else nothing is said where the result is NaN.
    """
    if extreme != extreme and not nan:
        return [None] * len(xs)
    ties = [_same(x, extreme) for x in xs]
    return [tie / sum(ties) for tie in ties]


def _at(place: int | None, xs: Row) -> Slope:
    """Return the slope 1 at a place. None: nothing is said."""
    if place is None:
        return [None] * len(xs)
    return [float(k == place) for k in range(len(xs))]


def _median(xs: Row) -> object:
    """Return the lower one of the middle numbers, or NaN if one is NaN or there is none."""
    if not xs or _any_nan(xs):
        return NAN
    return sorted(xs)[(len(xs) - 1) // 2]


def _nanmedian(xs: Row) -> object:
    return _median(_numbers(xs))


def _place_of_only(number: object, xs: Row) -> int | None:
    """Return the place of what equals `number`, if it is the only one: of others the documentation
    names none.
    """
    ties = [index for index, x in enumerate(xs) if _same(x, number)]
    if len(ties) != 1:
        return None
    return ties[0]


def _with_index(median: Callable[[Row], object]) -> Line:
    """Return the median of a dimension, whose slope is at the index that it returns."""

    def value(xs: Row) -> tuple[Any, int | None]:
        if not xs:
            raise IndexError("no index")
        return median(xs), _place_of_only(median(xs), xs)

    return Line(value, lambda xs: [_at(value(xs)[1], xs)], exact=True)


def _running_extreme(choose: Callable[..., object]) -> Line:
    """Return a running extreme. Of equal numbers the index is that of the last one."""

    # A NaN is the greatest and the least number from its place on.
    def places(xs: Row) -> list[int]:
        return [_last(choose, xs[: k + 1]) for k in range(len(xs))]

    def value(xs: Row) -> tuple[list[Any], list[int]]:
        return [xs[k] for k in places(xs)], places(xs)

    def slopes(xs: Row) -> list[list[Slope]]:
        return [[_at(k, xs) for k in places(xs)]]

    return Line(value, slopes, scan=True, exact=True)


def _quantile(xs: Row, q: float = 0.5, interpolation: str = "linear") -> object:
    """Return a quantile by linear interpolation. Of other interpolations, and of infinities,
    nothing is said.
    """
    if not xs:
        raise ValueError("a quantile of nothing")
    if _any_nan(xs):
        return NAN
    if interpolation != "linear" or not _all_finite(xs):
        return None
    place = q * (len(xs) - 1)
    low = math.floor(place)
    ordered = sorted(xs)
    high = min(low + 1, len(xs) - 1)  # the last number has none behind it
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# --- exponentials ---------------------------------------------------------------------------------


def _logsumexp(xs: Row) -> float:
    """Return the logarithm of the sum of exponentials, without overflow."""
    if _any_nan(xs):
        return NAN
    top = max(xs, default=-INF)
    # a difference of infinities would be NaN
    if math.isinf(top):
        return float(top)
    return top + math.log(math.fsum(math.exp(x - top) for x in xs))


def _softmax(xs: Row) -> Slope:
    """Return shares of the sum. Where it is infinite, or of nothing, they are not compared."""
    total = _logsumexp(xs)
    if not math.isfinite(total):
        return [None] * len(xs)
    return [math.exp(x - total) for x in xs]


def _scan(value: Callable[[Row], object], slopes: Callable[[Row], Slope]) -> Line:
    """Return the scan that reduces each beginning of the row."""

    def beginnings(xs: Row) -> list[Row]:
        return [xs[: k + 1] for k in range(len(xs))]

    def values(xs: Row) -> list[Any]:
        return list(map(value, beginnings(xs)))

    def rows_of_slopes(xs: Row) -> list[list[Slope]]:
        # a result does not depend on the numbers behind it
        return [[slopes(ys) + [0.0] * (len(xs) - len(ys)) for ys in beginnings(xs)]]

    return Line(values, rows_of_slopes, scan=True)


# --- norms ----------------------------------------------------------------------------------------


def _norm(xs: Row, p: float = 2) -> Any:
    """Return the norm by its definition. It counts what is not 0 for p = 0."""
    sizes = list(map(abs, xs))
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
    """Return the root of a sum of powers. For a negative p it is 0 if one of the sizes is."""
    if p < 0 and not sizes:
        raise ValueError("a negative power of nothing")
    if p < 0 and 0 in sizes:
        return 0.0
    if p > 0 and INF in sizes:
        return INF
    total = sum(size**p for size in sizes)
    if total:
        return total ** (1 / p)
    return 0.0 if p > 0 else INF


def _norm_slopes(xs: Row, p: float = 2) -> Slope:
    """Return ``sign x · (|x| / norm)**(p - 1)``, with the slope 0 at 0, where torch has it.

    The norms of infinite p divide evenly.
    """
    if p == 0:
        return [0.0] * len(xs)
    if not _all_finite(xs):
        return [None] * len(xs)
    norm = _norm(xs, p)
    if math.isinf(p):
        return _slopes_of_extreme_size(xs, norm)
    # Such a norm has no finite slope at 0.
    if p < 1 and 0 in xs:
        return [None] * len(xs)

    def slope(x: Any) -> Any:
        if x == 0:
            return 0.0
        return _sign(x) * (abs(x) / norm) ** (p - 1)

    return list(map(slope, xs))


def _slopes_of_extreme_size(xs: Row, extreme: float) -> Slope:
    """Return the slopes of the largest or least size, divided evenly between ties."""
    ties: int = sum(abs(x) == extreme for x in xs)

    def slope(x: float) -> float:
        if abs(x) != extreme:
            return 0.0
        return _sign(x) / ties

    return list(map(slope, xs))


def _sign(x: float) -> float:
    return float((x > 0) - (x < 0))


# --- the table ------------------------------------------------------------------------------------

_even_median = Line(_median, lambda xs: [_even(_median(xs), xs)], exact=True)
_even_nanmedian = Line(_nanmedian, lambda xs: [_even(_nanmedian(xs), xs)], exact=True)
_variance = Line(_var, lambda xs, **options: [_var_slopes(xs, **options)])
_deviation = Line(_std, lambda xs, **options: [_std_slopes(xs, **options)])


def _nanmean(xs: Row) -> float:
    return _mean(_numbers(xs))


def _nanmean_slopes(xs: Row) -> Slope:
    count = len(_numbers(xs))
    if count == 0:
        return [None] * len(xs)
    return _only_numbers(xs, 1 / count)


def _with_mean(line: Line) -> Line:
    """Return a line that also returns the mean."""
    slopes = line.slopes
    assert slopes is not None
    return Line(
        lambda xs, **options: (line.value(xs, **options), _mean(xs)),
        lambda xs, **options: [*slopes(xs, **options), [1 / len(xs)] * len(xs)],
    )


def _extreme_line(choose: Callable[..., object], *, nan: bool) -> Line:
    """Return the greatest or least number as an op with slopes."""
    return Line(
        lambda xs: _extreme(choose, xs),
        lambda xs: [_even(_extreme(choose, xs), xs, nan=nan)],
        exact=True,
    )


def _extreme_with_index(choose: Callable[..., object]) -> Line:
    """Return the greatest or least number of a dimension, with its index."""
    return Line(
        lambda xs: (_extreme(choose, xs), _first(choose, xs)),
        lambda xs: [_at(_first(choose, xs), xs)],
        exact=True,
    )


def _both_extremes(xs: Row) -> tuple[object, object]:
    return _extreme(min, xs), _extreme(max, xs)


LINES: dict[str, Line] = {
    "torch.sum": Line(_sum, lambda xs: [[1.0] * len(xs)]),
    "torch.mean": Line(_mean, lambda xs: [[1 / len(xs)] * len(xs)]),
    "torch.nansum": Line(lambda xs: _sum(_numbers(xs)), lambda xs: [_only_numbers(xs, 1.0)]),
    "torch.nanmean": Line(_nanmean, lambda xs: [_nanmean_slopes(xs)]),
    "torch.prod": Line(math.prod, lambda xs: [_prod_slopes(xs)]),
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
        lambda xs: [_even(found, xs, nan=False) for found in _both_extremes(xs)],
        exact=True,
    ),
    "torch.argmax": Line(lambda xs: _first(max, xs), exact=True),
    "torch.argmin": Line(lambda xs: _first(min, xs), exact=True),
    "torch.median": _even_median,
    "torch.nanmedian": _even_nanmedian,
    "torch.quantile": Line(_quantile),
    # of NaNs alone the result is NaN, and not the error of an empty row
    "torch.nanquantile": Line(lambda xs, **options: _quantile(_numbers(xs) or xs, **options)),
    # --- truth and counts
    "torch.any": Line(lambda xs: any(xs), exact=True),
    "torch.all": Line(lambda xs: all(xs), exact=True),
    "torch.count_nonzero": Line(lambda xs: sum(x != 0 for x in xs), exact=True),
    # --- exponentials and norms
    "torch.logsumexp": Line(_logsumexp, lambda xs: [_softmax(xs)]),
    "torch.linalg.vector_norm": Line(_norm, lambda xs, **options: [_norm_slopes(xs, **options)]),
    "torch.norm": Line(_norm, lambda xs, **options: [_norm_slopes(xs, **options)]),
    "torch.norm.inf": Line(_norm, lambda xs, **options: [_norm_slopes(xs, **options)]),
    "torch.norm.fro": Line(_norm, lambda xs, **options: [_norm_slopes(xs, **options)]),
    # --- scans
    "torch.cumsum": _scan(_sum, lambda xs: [1.0] * len(xs)),
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
