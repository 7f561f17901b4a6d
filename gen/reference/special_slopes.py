"""Give slopes of elementwise ops in Python's numbers, for :mod:`gen.reference.special_numbers`: the
derivatives by each parameter.

They are one-sided at the edge of a domain. At a tie or a kink they are the choice that torch's
formulas make. A slope of which nothing is said is None. ``power(2.0, 3.0)`` is ``(12.0, 8.0 *
log(2.0))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gen.reference import special_values as values
from gen.reference.special_values import INF, divide, sign_of_zero, some_edge, some_nan

Slopes = tuple[float | None, ...]


def fixed(*slopes: float) -> Callable[..., Slopes]:
    """Return slopes that do not depend on the numbers."""
    return lambda *args, **kwargs: slopes


def step(x: float, *, low: float = 0.0, at: float = 0.0, high: float = 1.0) -> Slopes:
    """Return the slope of a function with one kink, at 0. At NaN the slope is not compared."""
    if x != x:
        return (None,)
    if x == 0:
        return (at,)
    if x > 0:
        return (high,)
    return (low,)


def kinks(
    *kinks: tuple[float, float], between: Callable[[float], float]
) -> Callable[[float], Slopes]:
    """Return slopes that are `between` outside of `kinks`, which are pairs of a place and the slope
    there.
    """
    at = dict(kinks)

    def slope(x: float) -> Slopes:
        if x != x:
            return (None,)
        if x in at:
            return (at[x],)
        return (between(x),)

    return slope


def choice(larger: bool, tie: Slopes, *, nan_last: bool) -> Callable[[float, float], Slopes]:
    """Return the slopes of a choice between two numbers: 1 of what is chosen, and `tie` where they
    are equal.

    With a NaN, ``fmax`` and ``fmin`` choose the number. Of others the slopes are a convention.
    """

    def slopes(x: float, y: float) -> Slopes:
        if x != x and y != y:
            return (None, None)
        if some_nan(x, y):
            if nan_last:
                # 1 for the one that is a number
                return (float(x == x), float(y == y))
            return (None, None)
        if x == y:
            return tie
        if (x > y) == larger:
            return (1.0, 0.0)
        return (0.0, 1.0)

    return slopes


def clamp(x: float, min: Any = None, max: Any = None) -> Slopes:
    """Return slopes within and outside of the bounds. At a bound the versions of torch differ."""
    bounds = [bound for bound in (min, max) if bound is not None]
    if x in bounds or some_nan(x, *bounds):
        return (None,) * 3
    if len(bounds) == 2 and min == max:
        return (0.0, None, None)  # which of the two is the result is a convention
    # With bounds in the wrong order the upper one is the result.
    if len(bounds) == 2 and min > max:
        return (0.0, 0.0, 1.0)
    below = min is not None and x < min
    above = max is not None and x > max
    return (float(not (below or above)), float(below), float(above))


def quotient(x: float, y: float, rounding_mode: str | None = None) -> Slopes:
    """Return ``1 / y`` and ``-x / y²``. A rounded quotient is flat."""
    if rounding_mode is not None:
        return (0.0, 0.0)
    if y == 0 or some_edge(x, y):
        return (divide(1.0, y), None)
    # divided twice, since the square of a small `y` is 0
    return (divide(1.0, y), -x / y / y)


def power(x: float, y: float) -> Slopes:
    """Return ``y·x**(y-1)``, which is 0 for the power 0, and ``x**y·log x``, which is 0 where x is
    0 and y is not negative."""
    if some_edge(x, y):
        return (None, None)
    by_x = 0.0
    if y != 0:
        by_x = y * values.power(x, y - 1)
    if x > 0:
        return (by_x, values.power(x, y) * math.log(x))
    if x == 0 and y >= 0:
        return (by_x, 0.0)
    return (by_x, None)


def hypot(x: float, y: float) -> Slopes:
    """Return ``x / size`` and ``y / size``. At 0 nothing is said."""
    if some_edge(x, y) or x == y == 0:
        return (None, None)
    size = math.hypot(x, y)
    return (x / size, y / size)


def atan2(y: float, x: float) -> Slopes:
    """Return the slopes of the angle. At 0 torch gives zeros."""
    if some_edge(x, y):
        return (None, None)
    square = x * x + y * y
    if square == 0:
        return (0.0, 0.0)
    return (x / square, -y / square)


def times_log(
    x: float, y: float, of: Callable[[float], float], inner: Callable[[float], float]
) -> Slopes:
    """Return the slopes of ``x·log(inner(y))``, where ``of(y)`` is that logarithm.

    `inner` is ``y`` for ``xlogy`` and ``1 + y`` for ``xlog1py``.
    """
    if some_edge(x, y):
        return (None, None)
    logarithm_of = inner(y)
    by_x = None
    if logarithm_of > 0:
        by_x = of(y)
    if x != 0:
        return (by_x, divide(x, logarithm_of))
    # 0 / 0 by y
    if logarithm_of == 0:
        return (by_x, None)
    return (by_x, 0.0)


def modulo(quotient: Callable[[float, float], Any]) -> Callable[[float, float], Slopes]:
    """Return the slopes of ``x - y·q``, in which the whole number q is fixed."""

    def slopes(x: float, y: float) -> Slopes:
        if some_edge(x, y) or y == 0:
            return (1.0, None)
        return (1.0, -quotient(x, y))

    return slopes


def copysign(x: float, y: float) -> Slopes:
    """Return 1 by `x` if the result has its sign, else -1. At an `x` of 0 torch gives 0.

    The slope at an infinite `x` is None here: other checks have it.
    """
    if some_edge(x):
        return (None, 0.0)
    if x == 0:
        return (0.0, 0.0)
    return (sign_of_zero(x) * sign_of_zero(y), 0.0)


def logaddexp(x: float, y: float, base: float = math.e) -> Slopes:
    """Return the share of each of two exponentials in their sum."""
    if some_edge(x, y):
        return (None, None)
    share = 1 / (1 + base ** (y - x))
    return (share, 1 - share)


def lerp(x: float, y: float, weight: float) -> Slopes:
    """Return the slopes of ``x + weight·(y - x)``."""
    if some_edge(x, y, weight):
        return (None,) * 3
    return (1 - weight, weight, y - x)


def above_zero(slope: Callable[[float], float]) -> Callable[[float], Slopes]:
    """Return `slope` where a function is defined: above 0, and at 0 from there."""

    def slopes(x: float) -> Slopes:
        if sign_of_zero(x) < 0 or some_edge(x):
            return (None,)
        return (slope(x),)

    return slopes


def log(scale: float) -> Callable[[float], Slopes]:
    """Return the slope of a logarithm, ``1 / (scale·x)``."""
    return above_zero(lambda x: divide(1 / scale, x))


def arc(sign: float) -> Callable[[float], Slopes]:
    """Return the slope of ``asin``, with a sign. It is infinite at the ends of the domain."""

    def slopes(x: float) -> Slopes:
        if abs(x) <= 1:
            return (sign * divide(1.0, math.sqrt(1 - x * x)),)
        return (None,)

    return slopes


def acosh(x: float) -> Slopes:
    """Return ``1 / sqrt(x² - 1)``, which is infinite at 1."""
    if x < 1 or some_edge(x):
        return (None,)
    return (divide(1.0, math.sqrt(x * x - 1)),)


def atanh(x: float) -> Slopes:
    """Return ``1 / (1 - x²)``, which is infinite at the ends of the domain."""
    if abs(x) <= 1:
        return (divide(1.0, 1 - x * x),)
    return (None,)


def sinc(x: float) -> Slopes:
    """Return ``(cos(πx) - sinc x) / x``, which is 0 at 0."""
    if some_edge(x):
        return (None,)
    if x == 0:
        return (x,)
    return ((math.cos(math.pi * x) - values.sinc_of_finite(x)) / x,)


def logit(x: float, eps: float | None = None) -> Slopes:
    """Return ``1 / (x(1 - x))``, and 0 beyond the bounds. At 1 and 0 it is infinite."""
    if x != x:
        return (None,)
    if eps is not None and not eps <= x <= 1 - eps:
        return (0.0,)
    if 0 <= x <= 1:
        return (divide(1.0, x * (1 - x)),)
    return (None,)


def entropy(x: float) -> Slopes:
    """Return ``-log x - 1``."""
    if x < 0 or some_edge(x):
        return (None,)
    return (-values.log(x) - 1,)


def nan_to_num(x: float, *others: float, **bounds: float) -> Slopes:
    """Return 1 by a finite number, and 0 by one that is replaced."""
    return (float(math.isfinite(x)),)


def angle(x: float) -> Slopes:
    """Return 0: the angle of a real number jumps, and is flat elsewhere."""
    if x != x:
        return (None,)
    return (0.0,)


# --- activations ----------------------------------------------------------------------------------


def elu(x: float, alpha: float = 1.0, scale: float = 1.0) -> Slopes:
    """Return 1 above 0, and the slope of the exponential at 0 and below, both scaled."""
    if x != x:
        return (None,)
    if x > 0:
        return (scale * 1.0,)
    return (scale * (alpha * math.exp(x)),)


def celu(x: float, alpha: float = 1.0) -> Slopes:
    """Return 1 above 0, and the slope of the exponential at 0 and below."""
    if x != x:
        return (None,)
    if x > 0:
        return (1.0,)
    return (math.exp(x / alpha),)


def shrink(x: float, lambd: float = 0.5) -> Slopes:
    """Return 1 outside of ``[-lambd, lambd]``, and 0 inside."""
    if x != x:
        return (None,)
    return (float(abs(x) > lambd),)


def threshold(x: float, threshold: float, value: float) -> Slopes:
    """Return 1 above the threshold, and 0 at it and below."""
    if x != x:
        return (None,)
    return (float(x > threshold),)


def hardtanh(x: float, min_val: float = -1.0, max_val: float = 1.0) -> Slopes:
    """Return 1 between the bounds, and 0 at them and outside."""
    if x != x:
        return (None,)
    return (float(min_val < x < max_val),)


def hardswish_between_kinks(x: float) -> float:
    """Return ``x / 3 + 0.5`` between -3 and 3, 0 below and 1 above."""
    if abs(x) > 3:
        return float(x > 0)
    return x / 3 + 0.5


def softplus(x: float, beta: float = 1.0, threshold: float = 20.0) -> Slopes:
    """Return 1 above the threshold, and the slope of the curve at it and below."""
    if x != x or x == -INF:
        return (None,)
    if x * beta > threshold:
        return (1.0,)
    return (1 / (1 + math.exp(-x * beta)),)


# --- of other functions ---------------------------------------------------------------------------


def swap(f: Callable[..., Slopes]) -> Callable[..., Slopes]:
    """Return the slopes of a function with its two arguments in the other order."""
    return lambda x, y: tuple(reversed(f(y, x)))
