"""Elementwise ops where two arguments tie, at kinks, zeros of either sign, infinities and NaN, in
Python's numbers: what IEEE 754, C, Python or torch's documentation says of each.

``POINTWISE["torch.fmax"].value(nan, 1.0)`` is 1.0. A rule takes the op's arguments in the op's
order, with one number in place of each tensor. A value of None is one of which nothing is said. An
error of Python says that the op refuses the numbers.

``slopes`` are the derivatives by each parameter, one-sided at the edge of a domain. At a tie or a
kink they are the choice that torch's formulas make. Where versions of torch choose differently on
purpose, the slope is None."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

__all__ = ["NARROW", "POINTWISE", "Near", "Pointwise"]

INF, NAN = math.inf, math.nan
Slopes = tuple[float | None, ...]


@dataclass(frozen=True)
class Pointwise:
    """What is known of an op.

    `signed`: a zero that it returns has the sign that `value` gives. `exact`: nothing is rounded,
    so that a result is a number of `value`, or one that `value` says is :class:`Near` it."""

    value: Callable[..., Any]
    slopes: Callable[..., Slopes] | None = None
    signed: bool = False
    exact: bool = False


class Near(float):
    """A result of an exact op that is rounded all the same."""


# --- IEEE 754 and C -------------------------------------------------------------------------------


def _signed_zero(x: float) -> float:
    return math.copysign(1.0, x)


def _divide(x: float, y: float) -> float:
    """Return the quotient of floats by IEEE 754, and of integers as such a quotient."""
    if y != 0:
        return x / y
    if isinstance(y, int):
        x, y = float(x), float(y)
    if x == 0 or math.isnan(x):
        return NAN
    return math.copysign(INF, x) * _signed_zero(y)


def _where_finite(f: Callable[[float], Any]) -> Callable[[float], Any]:
    """Return `f` as it is at whole numbers, with NaN, infinities and the sign of zero kept."""

    def g(x: float) -> Any:
        if isinstance(x, int) or not math.isfinite(x):
            return x
        return math.copysign(float(f(x)), x)

    return g


def _floor_divide(x: float, y: float) -> Any:
    """Return Python's ``//``, which the documentation names, and a quotient of IEEE 754 by 0."""
    return x // y if y != 0 or isinstance(y, int) else _divide(x, y)


def _trunc_divide(x: float, y: float) -> Any:
    """Return the quotient without its fraction, as C divides integers. Python refuses an integer
    over zero."""
    if isinstance(x, int) and isinstance(y, int):
        quotient = abs(x) // abs(y)
        return quotient if (x < 0) == (y < 0) else -quotient
    return _where_finite(math.trunc)(_divide(x, y))


def _rounded_quotient(x: float, y: float, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _divide(x, y)
    return _floor_divide(x, y) if rounding_mode == "floor" else _trunc_divide(x, y)


def _size(x: int) -> int:
    """Return the size of an integer, if 64 bits have it. C defines nothing by others."""
    if abs(x) >= 1 << 63:
        raise OverflowError("the size of the least integer")
    return abs(x)


def _gcd(x: int, y: int) -> int:
    return math.gcd(_size(x), _size(y))


def _lcm(x: int, y: int) -> int:
    return _size(x) * _size(y) // _gcd(x, y) if x and y else 0


def _fmod(x: float, y: float) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        return (_size(x) % abs(y)) * (-1 if x < 0 else 1)
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return NAN
    return math.fmod(x, y)


def _remainder(x: float, y: float) -> Any:
    """Return Python's ``%``, which the documentation names."""
    if isinstance(x, int) and isinstance(y, int):
        return x % y
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return NAN
    if math.isinf(y) and (x < 0) != (y < 0):
        return None  # Python gives y, and C's fmod, which kernels call, lets x stay
    return x % y


def _power(x: float, y: float) -> Any:
    """Return C's ``pow``. An integer to a negative power is refused."""
    if isinstance(x, int) and isinstance(y, int):
        if y < 0:
            raise ValueError("an integer to a negative power")
        return x**y
    if x == 0 and y < 0:
        odd = math.isfinite(y) and y % 2 == 1
        return math.copysign(INF, x) if odd else INF
    if x < 0 and math.isfinite(x) and math.isfinite(y) and y != math.floor(y):
        return NAN
    return math.pow(x, y)


def _float_power(x: float, y: float) -> Any:
    return _power(float(x), float(y))


def _log(x: float, of: Callable[[float], float] = math.log) -> float:
    if x == 0:
        return -INF
    return NAN if x < 0 else of(x)


def _times_log(x: float, y: float, of: Callable[[float], float]) -> float:
    """Return x·log y as the documentation has it: 0 where x is 0, except that NaN in y stays."""
    if math.isnan(y):
        return NAN
    return 0.0 if x == 0 else x * of(y)


def _entropy(x: float) -> float:
    """Return -x·log x, which has no value below 0 and vanishes at 0."""
    if x != x:
        return x
    return -INF if x < 0 or x == INF else -_times_log(x, x, _log)


def _log1p(y: float) -> float:
    if y == -1:
        return -INF
    return NAN if y < -1 else math.log1p(y)


def _logaddexp(x: float, y: float, base: float = math.e) -> float:
    if math.isnan(x) or math.isnan(y):
        return NAN
    if math.isinf(x) or math.isinf(y) or x == y:
        return max(x, y) + (math.log(2) / math.log(base) if math.isfinite(x) and x == y else 0)
    return max(x, y) + math.log1p(base ** -abs(x - y)) / math.log(base)


def _sqrt(x: float) -> float:
    return NAN if x < 0 else math.sqrt(x)


def _sign(x: float) -> Any:
    """Return the sign. Of NaN the documentation says nothing."""
    if x != x:
        return None
    return x if x == 0 else type(x)(math.copysign(1, x))


def _angle(x: float) -> float:
    """Return the angle of a real number: that of a negative one is π."""
    if x != x:
        return x
    return math.pi if x < 0 else 0.0


def _ldexp(x: float, y: float) -> Any:
    """Return ``x·2**y``, as the documentation has it: y may be no whole number, and the power is
    rounded then."""
    found = x * _power(2.0, float(y))
    return Near(found) if math.isfinite(y) and y != int(y) else found


def _frexp(x: float) -> tuple[float, int | None]:
    """Return C's ``frexp``, which gives no exponent for infinities and NaN."""
    return math.frexp(x) if math.isfinite(x) else (x, None)


def _inside(low: float, high: float, f: Callable[[float], float]) -> Callable[[float], float]:
    """Return `f` in its domain, and NaN outside of it."""

    def g(x: float) -> float:
        if not low <= x <= high:
            return NAN
        return INF if x == INF else f(x)

    return g


def _sinc(x: float) -> float:
    """Return ``sin(πx) / (πx)``, which is 1 at 0 and 0 at other whole numbers."""
    if x == 0 or x != x:
        return x + 1
    return 0.0 if x == int(x) else math.sin(math.pi * x) / (math.pi * x)


def _logit(x: float, eps: float | None = None) -> float | None:
    if eps is not None and eps > 0.5:
        return None  # bounds that cross
    y = x if eps is None or x != x else min(max(x, eps), 1 - eps)
    if not 0 <= y <= 1:
        return NAN
    return INF if y == 1 else _log(y / (1 - y))


def _nextafter(x: float, y: float, dtype: Any) -> float:
    with numpy.errstate(over="ignore", under="ignore"):
        return float(numpy.nextafter(dtype(x), dtype(y)))


# --- order and comparisons ------------------------------------------------------------------------


def _nan_first(choose: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return the larger or smaller argument, or NaN if one is NaN."""
    return lambda x, y: NAN if x != x or y != y else choose(x, y)


def _nan_last(choose: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return the larger or smaller number, or NaN if both are NaN."""

    def chosen(x: Any, y: Any) -> Any:
        if x != x:
            return y
        return x if y != y else choose(x, y)

    return chosen


def _clamp(x: float, min: Any = None, max: Any = None) -> Any:
    """Return ``min(max(x, lower), upper)``, and NaN if an argument is NaN."""
    lower = x if min is None else _nan_first(_larger)(x, min)
    return lower if max is None else _nan_first(_smaller)(lower, max)


def _larger(x: Any, y: Any) -> Any:
    return x if x >= y else y


def _smaller(x: Any, y: Any) -> Any:
    return x if x <= y else y


def _isclose(
    x: float, y: float, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    if x != x or y != y:
        return equal_nan and x != x and y != y
    if x == y or math.isinf(x) or math.isinf(y):
        return x == y
    return abs(x - y) <= atol + abs(rtol * y)


def _heaviside(x: float, at_zero: float) -> Any:
    """Return the step of the documentation, which has no case for NaN."""
    if x != x:
        return None
    return at_zero if x == 0 else int(x > 0)


def _nan_to_num(
    x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None,
    *, dtype: Any,
) -> Any:  # fmt: skip
    if isinstance(x, int) or math.isfinite(x):
        return x
    largest = float(numpy.finfo(dtype).max)
    if x != x:
        return 0.0 if nan is None else nan
    if x > 0:
        return largest if posinf is None else posinf
    return -largest if neginf is None else neginf


# --- slopes ---------------------------------------------------------------------------------------


def _fixed(*slopes: float) -> Callable[..., Slopes]:
    return lambda *args, **kwargs: slopes


def _step(x: float, *, low: float = 0.0, at: float = 0.0, high: float = 1.0) -> Slopes:
    """Return the slope of a function with one kink, at 0. At NaN the slope is not compared."""
    if x != x:
        return (None,)
    if x == 0:
        return (at,)
    return (high if x > 0 else low,)


def _kinks(
    *kinks: tuple[float, float], between: Callable[[float], float]
) -> Callable[[float], Slopes]:
    """Return slopes that are `between` outside of `kinks`, which are pairs of a place and the slope
    there."""
    at = dict(kinks)

    def slope(x: float) -> Slopes:
        if x != x:
            return (None,)
        return (at[x] if x in at else between(x),)

    return slope


def _choice(larger: bool, tie: Slopes, *, nan_last: bool) -> Callable[[float, float], Slopes]:
    """Return the slopes of a choice between two numbers: 1 of what is chosen, and `tie` where they
    are equal.

    With a NaN, ``fmax`` and ``fmin`` choose the number. Of others the slopes are a convention."""

    def slopes(x: float, y: float) -> Slopes:
        if x != x and y != y:
            return (None, None)
        if x != x or y != y:
            return (float(x == x), float(y == y)) if nan_last else (None, None)
        if x == y:
            return tie
        return (1.0, 0.0) if (x > y) == larger else (0.0, 1.0)

    return slopes


def _clamp_slopes(x: float, min: Any = None, max: Any = None) -> Slopes:
    """Return slopes within and outside of the bounds. At a bound the versions of torch differ."""
    given = [bound for bound in (min, max) if bound is not None]
    if x != x or x in given or any(bound != bound for bound in given):
        return (None,) * 3
    if min is not None and max is not None and min >= max:
        return (0.0, None, None) if min == max else (0.0, 0.0, 1.0)
    below, above = min is not None and x < min, max is not None and x > max
    return (float(not (below or above)), float(below), float(above))


def _quotient_slopes(x: float, y: float, rounding_mode: str | None = None) -> Slopes:
    if rounding_mode is not None:
        return (0.0, 0.0)
    return (_divide(1.0, y), None if y == 0 or _some_edge(x, y) else -x / y / y)


def _some_edge(*numbers: float) -> bool:
    return not all(map(math.isfinite, numbers))


def _power_slopes(x: float, y: float) -> Slopes:
    """Return ``y·x**(y-1)``, which is 0 for the power 0, and ``x**y·log x``, which is 0 where x is
    0 and y is not negative."""
    if _some_edge(x, y):
        return (None, None)
    by_x = 0.0 if y == 0 else y * _power(x, y - 1)
    if x == 0:
        return (by_x, 0.0 if y >= 0 else None)
    return (by_x, _power(x, y) * math.log(x) if x > 0 else None)


def _hypot_slopes(x: float, y: float) -> Slopes:
    if _some_edge(x, y) or x == y == 0:
        return (None, None)
    size = math.hypot(x, y)
    return (x / size, y / size)


def _angle_slopes(y: float, x: float) -> Slopes:
    """Return the slopes of the angle. At 0 torch gives zeros."""
    if _some_edge(x, y):
        return (None, None)
    square = x * x + y * y
    return (x / square, -y / square) if square else (0.0, 0.0)


def _times_log_slopes(
    x: float, y: float, of: Callable[[float], float], inner: Callable[[float], float]
) -> Slopes:
    """Return ``log y`` and ``x / y``; 0 by x where x is 0 and y is no number."""
    if _some_edge(x, y):
        return (None, None)
    below = inner(y)
    by_x = None if below <= 0 else of(y)
    if x == 0:
        return (by_x, None if below == 0 else 0.0)
    return (by_x, _divide(x, below))


def _modulo_slopes(quotient: Callable[[float, float], Any]) -> Callable[[float, float], Slopes]:
    """Return the slopes of ``x - y·q``, in which the whole number q is fixed."""

    def slopes(x: float, y: float) -> Slopes:
        whole = None if _some_edge(x, y) or y == 0 else quotient(x, y)
        return (1.0, None if whole is None else -whole)

    return slopes


def _copysign_slopes(x: float, y: float) -> Slopes:
    """Return whether the sign changes. At 0 torch gives 0. Other checks have infinities."""
    if _some_edge(x):
        return (None, 0.0)
    return (0.0 if x == 0 else _signed_zero(x) * _signed_zero(y), 0.0)


def _logaddexp_slopes(x: float, y: float, base: float = math.e) -> Slopes:
    if _some_edge(x, y):
        return (None, None)
    share = 1 / (1 + base ** (y - x))
    return (share, 1 - share)


def _lerp_slopes(x: float, y: float, weight: float) -> Slopes:
    if _some_edge(x, y, weight):
        return (None,) * 3
    return (1 - weight, weight, y - x)


def _above_zero(slope: Callable[[float], float]) -> Callable[[float], Slopes]:
    """Return `slope` where a function is defined: above 0, and at 0 from there."""
    return lambda x: (None if _signed_zero(x) < 0 or _some_edge(x) else slope(x),)


def _log_slope(scale: float) -> Callable[[float], Slopes]:
    return _above_zero(lambda x: _divide(1 / scale, x))


def _arc_slope(sign: float) -> Callable[[float], Slopes]:
    """Return the slope of ``asin``, with a sign. It is infinite at the ends of the domain."""
    return lambda x: (sign * _divide(1.0, math.sqrt(1 - x * x)) if abs(x) <= 1 else None,)


def _logit_slope(x: float, eps: float | None = None) -> Slopes:
    """Return ``1 / (x(1 - x))``, and 0 beyond the bounds. At 1 and 0 it is infinite."""
    if eps is not None and not eps <= x <= 1 - eps:
        return (None if x != x else 0.0,)
    return (_divide(1.0, x * (1 - x)) if 0 <= x <= 1 else None,)


def _only_inside(x: float) -> Slopes:
    """Return the slope of ``nan_to_num``, which replaces what is not finite."""
    return (float(math.isfinite(x)),)


def _swap(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` with its arguments in the other order."""
    return lambda x, y: f(y, x)


def _swap_slopes(f: Callable[..., Slopes]) -> Callable[..., Slopes]:
    return lambda x, y: tuple(reversed(f(y, x)))


# --- activations ----------------------------------------------------------------------------------


def _relu6(x: float) -> Any:
    return _clamp(x, 0.0, 6.0)


def _threshold(x: float, threshold: float, value: float) -> float:
    return value if x <= threshold else x


def _elu(x: float, alpha: float = 1.0) -> float:
    return x if x > 0 else alpha * math.expm1(x)


def _elu_slope(x: float, alpha: float = 1.0, scale: float = 1.0) -> Slopes:
    if x != x:
        return (None,)
    return (scale * (1.0 if x > 0 else alpha * math.exp(x)),)


def _celu(x: float, alpha: float = 1.0) -> float:
    return x if x > 0 else alpha * math.expm1(x / alpha)


def _celu_slope(x: float, alpha: float = 1.0) -> Slopes:
    if x != x:
        return (None,)
    return (1.0 if x > 0 else math.exp(x / alpha),)


def _shrink(x: float, lambd: float, pull: float) -> float:
    if x != x:
        return x
    return x - math.copysign(pull, x) if abs(x) > lambd else 0.0


def _shrink_slope(x: float, lambd: float = 0.5) -> Slopes:
    return (None if x != x else float(abs(x) > lambd),)


def _hardtanh(x: float, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    if isinstance(x, int) and (min_val % 1 or max_val % 1):
        return None  # bounds that the dtype does not have
    return _clamp(x, min_val, max_val)


def _hardtanh_slope(x: float, min_val: float = -1.0, max_val: float = 1.0) -> Slopes:
    return (None if x != x else float(min_val < x < max_val),)


def _hardsigmoid(x: float) -> Any:
    return _clamp(x / 6 + 0.5, 0.0, 1.0)


def _hardswish(x: float) -> float:
    """Return 0 for x up to -3, as the documentation has it: for minus infinity too."""
    return 0.0 if x <= -3 else x * _hardsigmoid(x)


def _lerp(x: float, y: float, weight: float) -> float | None:
    """Return ``x + weight·(y - x)``. By infinities nothing is said, as there are two ways to write
    it."""
    if x != x or y != y or weight != weight:
        return NAN
    return None if _some_edge(x, y, weight) else x + weight * (y - x)


def _frac(x: float) -> float:
    """Return what is left without the whole number: NaN of infinities, by the documented formula
    ``x - floor(|x|)·sgn x``."""
    return math.fmod(x, 1.0) if math.isfinite(x) else NAN


def _softplus(x: float, beta: float = 1.0, threshold: float = 20.0) -> float:
    return x if x * beta > threshold else _logaddexp(x * beta, 0.0) / beta


def _softplus_slope(x: float, beta: float = 1.0, threshold: float = 20.0) -> Slopes:
    """Return 1 above the threshold, and the slope of the curve at it and below."""
    if x != x or x == -INF:
        return (None,)
    return (1.0 if x * beta > threshold else 1 / (1 + math.exp(-x * beta)),)


SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

# --- the tables -----------------------------------------------------------------------------------

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge,
}  # fmt: skip
_LOGICAL: dict[str, Callable[..., bool]] = {
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_or": lambda x, y: bool(x) or bool(y),
    "logical_xor": lambda x, y: bool(x) != bool(y),
    "logical_not": lambda x: not x,
    "isnan": lambda x: x != x,
    "isinf": lambda x: abs(x) == INF,
    "isfinite": lambda x: x == x and abs(x) != INF,
    "isposinf": lambda x: x == INF,
    "isneginf": lambda x: x == -INF,
    "isreal": lambda x: True,
    "signbit": lambda x: x < 0 if isinstance(x, int) else _signed_zero(x) < 0,
    "isclose": _isclose,
}
_WHOLE: dict[str, Callable[..., Any]] = {
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "Tensor.__rand__": operator.and_, "Tensor.__ror__": operator.or_,
    "Tensor.__rxor__": operator.xor,
    "bitwise_not": lambda x: not x if isinstance(x, bool) else ~x,
    "gcd": _gcd, "lcm": _lcm,
}  # fmt: skip
_EVEN, _BY_VERSION = (0.5, 0.5), (None, None)
_CHOICES: dict[str, tuple[Callable[..., Any], bool, bool, Slopes]] = {
    "maximum": (_larger, True, False, _EVEN),
    "minimum": (_smaller, False, False, _EVEN),
    "max.binary": (_larger, True, False, _EVEN),
    "min.binary": (_smaller, False, False, _EVEN),
    "clamp_min": (_larger, True, False, _BY_VERSION),
    "clamp_max": (_smaller, False, False, _BY_VERSION),
    "fmax": (_larger, True, True, _BY_VERSION),
    "fmin": (_smaller, False, True, _BY_VERSION),
}
"""Which argument is chosen, whether the larger one, whether a number before NaN, and the slopes at
a tie."""
_ROUNDED: dict[str, Callable[[float], Any]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}
_divided = Pointwise(_rounded_quotient, _quotient_slopes, signed=True)
_swapped_power = Pointwise(_swap(_power), _swap_slopes(_power_slopes), signed=True)

POINTWISE: dict[str, Pointwise] = {
    **{
        f"torch.{name}": Pointwise(f, exact=True)
        for name, f in {**_COMPARISONS, **_LOGICAL, **_WHOLE}.items()
    },
    **{
        f"torch.{name}": Pointwise(
            (_nan_last if nan_last else _nan_first)(choose),
            _choice(larger, tie, nan_last=nan_last),
            exact=True,
        )
        for name, (choose, larger, nan_last, tie) in _CHOICES.items()
    },
    **{
        f"torch.{name}": Pointwise(_where_finite(f), _fixed(0.0), signed=True, exact=True)
        for name, f in _ROUNDED.items()
    },
    "torch.round.decimals_0": Pointwise(
        lambda x, decimals: _where_finite(round)(x), _fixed(0.0), signed=True, exact=True
    ),
    # --- of one number
    "torch.abs": Pointwise(
        lambda x: x if isinstance(x, bool) else abs(x),
        lambda x: _step(x, low=-1.0),
        signed=True,
        exact=True,
    ),
    "torch.neg": Pointwise(operator.neg, _fixed(-1.0), signed=True, exact=True),
    "torch.positive": Pointwise(lambda x: x, _fixed(1.0), signed=True, exact=True),
    "torch.sign": Pointwise(_sign, _fixed(0.0), exact=True),
    "torch.sgn": Pointwise(_sign, _fixed(0.0), exact=True),
    "torch.frac": Pointwise(_frac, _fixed(1.0), exact=True),
    "torch.square": Pointwise(lambda x: x * x, lambda x: (2 * x,)),
    "torch.sqrt": Pointwise(_sqrt, _above_zero(lambda x: _divide(0.5, math.sqrt(x))), signed=True),
    "torch.rsqrt": Pointwise(
        lambda x: _divide(1.0, _sqrt(x)),
        _above_zero(lambda x: _divide(-0.5, x * math.sqrt(x))),
        signed=True,
    ),
    "torch.reciprocal": Pointwise(
        lambda x: _divide(1.0, x), lambda x: (-_divide(1.0, x * x),), signed=True
    ),
    "torch.log": Pointwise(_log, _log_slope(1.0)),
    "torch.log2": Pointwise(lambda x: _log(x, math.log2), _log_slope(math.log(2))),
    "torch.log10": Pointwise(lambda x: _log(x, math.log10), _log_slope(math.log(10))),
    "torch.log1p": Pointwise(_log1p, lambda x: _log_slope(1.0)(1 + x), signed=True),
    "torch.frexp": Pointwise(_frexp, signed=True, exact=True),
    "torch.nan_to_num": Pointwise(
        _nan_to_num, lambda x, *a, **k: _only_inside(x), signed=True, exact=True
    ),
    "torch.angle": Pointwise(_angle, lambda x: (None if x != x else 0.0,)),
    "torch.asin": Pointwise(_inside(-1, 1, math.asin), _arc_slope(1.0), signed=True),
    "torch.acos": Pointwise(_inside(-1, 1, math.acos), _arc_slope(-1.0)),
    "torch.acosh": Pointwise(
        _inside(1, INF, math.acosh),
        lambda x: (None if x < 1 or _some_edge(x) else _divide(1.0, math.sqrt(x * x - 1)),),
    ),
    "torch.atanh": Pointwise(
        _inside(-1, 1, lambda x: math.copysign(INF, x) if abs(x) == 1 else math.atanh(x)),
        lambda x: (None if abs(x) > 1 or x != x else _divide(1.0, 1 - x * x),),
        signed=True,
    ),
    "torch.sinc": Pointwise(
        lambda x: None if math.isinf(x) else _sinc(x),
        lambda x: (None if _some_edge(x) else x and (math.cos(math.pi * x) - _sinc(x)) / x,),
    ),
    "torch.logit": Pointwise(_logit, _logit_slope),
    "torch.special.entr": Pointwise(
        _entropy,
        lambda x: (None if x < 0 or _some_edge(x) else -_log(x) - 1,),
    ),
    # --- activations
    "torch.nn.functional.softplus": Pointwise(_softplus, _softplus_slope),
    "torch.nn.functional.relu": Pointwise(lambda x: _clamp(x, 0.0), _step, exact=True),
    "torch.nn.functional.relu6": Pointwise(
        _relu6, _kinks((0.0, 0.0), (6.0, 0.0), between=lambda x: float(0 < x < 6)), exact=True
    ),
    "torch.nn.functional.hardtanh": Pointwise(_hardtanh, _hardtanh_slope, exact=True),
    "torch.nn.functional.hardsigmoid": Pointwise(
        _hardsigmoid, _kinks((-3.0, 0.0), (3.0, 0.0), between=lambda x: (abs(x) < 3) / 6)
    ),
    "torch.nn.functional.hardswish": Pointwise(
        _hardswish,
        _kinks(
            (-3.0, 0.0), (3.0, 1.0), between=lambda x: float(x > 0) if abs(x) > 3 else x / 3 + 0.5
        ),
    ),
    "torch.nn.functional.leaky_relu": Pointwise(
        lambda x, negative_slope=0.01: x if x > 0 else x * negative_slope,
        lambda x, negative_slope=0.01: _step(x, low=negative_slope, at=negative_slope),
    ),
    "torch.nn.functional.elu": Pointwise(_elu, _elu_slope),
    "torch.nn.functional.celu": Pointwise(_celu, _celu_slope),
    "torch.nn.functional.selu": Pointwise(
        lambda x: SELU[1] * _elu(x, SELU[0]), lambda x: _elu_slope(x, *SELU)
    ),
    "torch.nn.functional.hardshrink": Pointwise(
        lambda x, lambd=0.5: _shrink(x, lambd, 0.0), _shrink_slope, exact=True
    ),
    "torch.nn.functional.softshrink": Pointwise(
        lambda x, lambd=0.5: _shrink(x, lambd, lambd), _shrink_slope
    ),
    "torch.nn.functional.threshold": Pointwise(
        _threshold,
        lambda x, threshold, value: (None if x != x else float(x > threshold),),
        exact=True,
    ),
    # --- arithmetic
    "torch.add": Pointwise(
        lambda x, y, alpha=1: x + alpha * y, lambda x, y, alpha=1: (1.0, alpha), signed=True
    ),
    "torch.Tensor.__radd__": Pointwise(lambda x, y: y + x, _fixed(1.0, 1.0), signed=True),
    "torch.sub": Pointwise(
        lambda x, y, alpha=1: x - alpha * y, lambda x, y, alpha=1: (1.0, -alpha), signed=True
    ),
    "torch.rsub": Pointwise(
        lambda x, y, alpha=1: y - alpha * x, lambda x, y, alpha=1: (-alpha, 1.0), signed=True
    ),
    "torch.Tensor.__rsub__": Pointwise(lambda x, y: y - x, _fixed(-1.0, 1.0), signed=True),
    "torch.mul": Pointwise(operator.mul, lambda x, y: (y, x), signed=True),
    "torch.Tensor.__rmul__": Pointwise(operator.mul, lambda x, y: (y, x), signed=True),
    "torch.true_divide": _divided,
    "torch.div.no_rounding_mode": _divided,
    "torch.div.floor_rounding": Pointwise(_rounded_quotient, _quotient_slopes, signed=True),
    "torch.div.trunc_rounding": Pointwise(_rounded_quotient, _quotient_slopes, signed=True),
    "torch.Tensor.__rdiv__": Pointwise(_swap(_divide), _swap_slopes(_quotient_slopes), signed=True),
    "torch.floor_divide": Pointwise(_floor_divide, signed=True),
    "torch.fmod": Pointwise(_fmod, _modulo_slopes(_trunc_divide), signed=True, exact=True),
    "torch.remainder": Pointwise(_remainder, _modulo_slopes(_floor_divide), signed=True),
    "torch.Tensor.__rmod__": Pointwise(
        _swap(_remainder), _swap_slopes(_modulo_slopes(_floor_divide)), signed=True
    ),
    "torch.addcmul": Pointwise(lambda a, x, y, value=1: a + value * x * y),
    "torch.addcdiv": Pointwise(lambda a, x, y, value=1: a + value * _divide(x, y)),
    "torch.lerp": Pointwise(_lerp, _lerp_slopes),
    # --- powers, angles and logarithms
    "torch.pow": Pointwise(_power, _power_slopes, signed=True),
    "torch.Tensor.__rpow__": _swapped_power,
    "torch.float_power": Pointwise(_float_power, _power_slopes, signed=True),
    "torch.hypot": Pointwise(lambda x, y: math.hypot(x, y), _hypot_slopes),
    "torch.atan2": Pointwise(math.atan2, _angle_slopes, signed=True),
    "torch.xlogy": Pointwise(
        lambda x, y: _times_log(x, y, _log),
        lambda x, y: _times_log_slopes(x, y, math.log, lambda v: v),
    ),
    "torch.special.xlog1py": Pointwise(
        lambda x, y: _times_log(x, y, _log1p),
        lambda x, y: _times_log_slopes(x, y, math.log1p, lambda v: 1 + v),
    ),
    "torch.logaddexp": Pointwise(_logaddexp, _logaddexp_slopes),
    "torch.logaddexp2": Pointwise(
        lambda x, y: _logaddexp(x, y, 2.0), lambda x, y: _logaddexp_slopes(x, y, 2.0)
    ),
    # --- signs, steps and bits
    "torch.copysign": Pointwise(math.copysign, _copysign_slopes, signed=True, exact=True),
    "torch.heaviside": Pointwise(_heaviside, exact=True),
    "torch.nextafter": Pointwise(_nextafter, signed=True, exact=True),
    "torch.ldexp": Pointwise(_ldexp, signed=True, exact=True),
    # --- choices
    "torch.clamp": Pointwise(_clamp, _clamp_slopes, exact=True),
    "torch.where": Pointwise(
        lambda x, condition, y: x if condition else y,  # in the order of its samples
        lambda x, condition, y: (float(condition), 0.0, float(not condition)),
        signed=True,
        exact=True,
    ),
}
NARROW = frozenset(("torch.nextafter", "torch.nan_to_num"))
"""Rules that take the `dtype` of the result, as one of NumPy's."""
