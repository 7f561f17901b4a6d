"""Give values and derivatives at infinities, NaN and poles: limits of the definition, or what IEEE
754 and C say of the function.

- An infinite argument stands for ever larger numbers. Where two arguments are infinite, three ways
  of going there must agree.
- At a pole the sign of the zero says from which side the limit comes. A side outside of the domain
  leaves the other one.
- A NaN makes the value NaN. A derivative that does not depend on that argument keeps its value.
- :data:`STANDARD` has the functions of which a standard speaks. Of others, a zero next to an
  infinity has no limit here. Nor have derivatives of functions of several numbers where one is NaN
  or two are infinite.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import cycle

from gen.reference.exact import Function

__all__ = ["SIGNED", "STANDARD", "at_edge"]

FAR = (2.0**300 * 4 / 3, 2.0**600 * 4 / 3)
PROBES = (0.01, 0.3, 0.7, -0.6, 2.3, -2.3, 50.0, -50.0)
VANISHING = 1e-40  # what is smaller far out goes to zero
SAME = 1e-30  # relative difference below which two probes far out have one value


def _ignoring_nan(choose: Callable[..., float]) -> Callable[[float, float], float]:
    """Return a choice between two numbers that leaves out a NaN."""

    def chosen(x: float, y: float) -> float:
        if math.isnan(x):
            return y
        if math.isnan(y):
            return x
        return choose(x, y)

    return chosen


def _quotient(x: float, y: float) -> float:
    if y != 0:
        return x / y
    if x == 0 or math.isnan(x):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1, y)


def _power(x: float, y: float) -> float:
    if x == 0 and y < 0:  # a pole, of which Python makes an error
        odd = y % 2 == 1
        return math.copysign(math.inf, x) if odd else math.inf
    return math.pow(x, y)


STANDARD: dict[str, Callable[..., float]] = {
    "torch.add": lambda x, y, alpha=1: x + alpha * y,
    "torch.sub": lambda x, y, alpha=1: x - alpha * y,
    "torch.rsub": lambda x, y, alpha=1: y - alpha * x,
    "torch.mul": operator.mul,
    "torch.true_divide": _quotient,
    "torch.div.no_rounding_mode": lambda x, y, rounding_mode=None: _quotient(x, y),
    "torch.Tensor.__rdiv__": lambda x, y: _quotient(y, x),
    "torch.addcmul": lambda a, x, y, value=1: a + value * x * y,
    "torch.addcdiv": lambda a, x, y, value=1: a + value * _quotient(x, y),
    "torch.floor_divide": operator.floordiv,
    "torch.div.floor_rounding": lambda x, y, rounding_mode=None: x // y,
    "torch.remainder": operator.mod,
    "torch.Tensor.__rmod__": lambda x, y: y % x,
    "torch.fmod": math.fmod,
    "torch.pow": _power,
    "torch.float_power": _power,
    "torch.Tensor.__rpow__": lambda x, y: _power(y, x),
    "torch.atan2": math.atan2,
    "torch.hypot": math.hypot,
    "torch.copysign": math.copysign,
    "torch.fmax": _ignoring_nan(max),
    "torch.fmin": _ignoring_nan(min),
}
"""Values by IEEE 754, by C or by Python, whose ``//`` and ``%`` torch's documentation names. Errors
of Python are no value."""
SIGNED = frozenset(
    ("torch.add", "torch.sub", "torch.mul", "torch.true_divide", "torch.div.no_rounding_mode")
)
"""Functions the sign of whose zeros IEEE 754 gives."""


def at_edge(function: Function, orders: Sequence[int], point: Sequence[float]) -> float | None:
    """Return the partial derivative, or the value, at a point that may have infinities and NaNs.
    None where there is none.
    """
    is_value = not any(orders)
    # A standard gives more than limits do: signs of zeros, and values that no limit has.
    if is_value and function.name in STANDARD:
        return _standard(function, point)
    if any(map(math.isnan, point)):
        if is_value:
            return math.nan
        if len(point) > 1:
            return None
        return _at_nan(function, orders)
    if any(map(math.isinf, point)):
        return _far_out(function, orders, point)
    if not is_value and _has_negative_zero(point) and len(point) > 1:
        return None  # a definition knows no sign of zero, of which the slope of copysign depends
    number = function.partial(orders, point)
    if number is None and is_value and list(point).count(0.0) == 1:
        return _at_pole(function, point)
    return number


def _has_negative_zero(point: Sequence[float]) -> bool:
    return any(x == 0 and math.copysign(1, x) < 0 for x in point)


def _standard(function: Function, point: Sequence[float]) -> float | None:
    args, kwargs = function.arguments(list(point))
    try:
        return float(STANDARD[function.name](*args, **kwargs))
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        return None


def _at_nan(function: Function, orders: Sequence[int]) -> float | None:
    """Return the derivative of a function of one number at NaN: the same number as everywhere, or
    NaN."""
    probed = {function.partial(orders, (number,)) for number in PROBES} - {None}
    if not probed:
        return None
    if len(probed) > 1:
        return math.nan
    return probed.pop()


def _far_out(function: Function, orders: Sequence[int], point: Sequence[float]) -> float | None:
    """Return the limit where arguments are infinite, if all ways of going there agree."""
    # A zero next to an infinity has no limit here, and neither has a slope at two infinities.
    several = sum(map(math.isinf, point)) > 1
    if 0.0 in point or (several and any(orders)):
        return None
    limits = []
    for way in _ways(point):
        near, far = (function.partial(orders, place) for place in way)
        limits.append(_limit(near, far))
    return _common_limit(limits)


def _ways(point: Sequence[float]) -> list[list[list[float]]]:
    """List ways to the point, each of two places on it."""
    slow, fast = 0.5, 1.0  # powers of the same number
    paces = [(slow, slow)]
    if sum(map(math.isinf, point)) > 1:
        paces += [(slow, fast), (fast, slow)]
    return [[_place_on_way(point, far, pace) for far in FAR] for pace in paces]


def _place_on_way(point: Sequence[float], far: float, pace: tuple[float, float]) -> list[float]:
    """Return the point with finite numbers for its infinities. The powers of `pace` take turns."""
    powers = cycle(pace)
    place = []
    for x in point:
        if math.isinf(x):
            x = math.copysign(far ** next(powers), x)
        place.append(x)
    return place


def _at_pole(function: Function, point: Sequence[float]) -> float | None:
    """Return the limit at a pole: from the side of the zero's sign, else from the other one."""
    for flip in (1, -1):
        near, far = (_value_near_pole(function, point, flip / size) for size in FAR)
        limit = _limit(near, far)
        if limit is not None:
            return limit
    return None


def _value_near_pole(function: Function, point: Sequence[float], shift: float) -> float | None:
    """Return the value with `shift` in place of a zero, on the side that the zero's sign names."""
    place = []
    for x in point:
        if x == 0:
            x = shift * math.copysign(1, x)
        place.append(x)
    return function.partial((0,) * len(point), place)


def _limit(near: float | None, far: float | None) -> float | None:
    """Return where values go that are `near`, and farther on `far`. None if that is unclear."""
    if near is None or far is None:
        return None
    # equal first: of two infinities the difference is NaN
    if near == far or abs(near - far) <= SAME * abs(far):
        return far
    if abs(far) <= VANISHING:
        return 0.0
    # even a logarithm doubles from the one place to the other
    if near * far > 0 and abs(far) >= 1.5 * abs(near):
        return math.copysign(math.inf, far)
    return None


def _common_limit(limits: Sequence[float | None]) -> float | None:
    """Return the one number of all limits. None if they differ or one is None."""
    first = limits[0]
    if all(limit is not None and limit == first for limit in limits):
        return first
    return None
