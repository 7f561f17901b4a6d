"""Values and derivatives at infinities, NaN and poles: limits of the definition, or what IEEE 754
and C say of the function.

- An infinite argument stands for ever larger numbers. Where two arguments are infinite, three ways
  of going there must agree.
- At a pole the sign of the zero says from which side the limit comes. A side outside of the domain
  leaves the other one.
- A NaN makes the value NaN. A derivative that does not depend on that argument keeps its value.
- :data:`STANDARD` has the functions of which a standard speaks. Of others, a zero beside an
  infinity has no limit here. Nor have derivatives of functions of several numbers where one is NaN
  or two are infinite.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from gen.reference.exact import Function

__all__ = ["SIGNED", "STANDARD", "at_edge"]

FAR = (2.0**300 * 4 / 3, 2.0**600 * 4 / 3)
PROBES = (0.01, 0.3, 0.7, -0.6, 2.3, -2.3, 50.0, -50.0)
VANISHING = 1e-40  # what is smaller far out goes to zero
SAME = 1e-30


def _ignoring_nan(choose: Callable[..., float]) -> Callable[[float, float], float]:
    def chosen(x: float, y: float) -> float:
        if math.isnan(x):
            return y
        return x if math.isnan(y) else choose(x, y)

    return chosen


def _quotient(x: float, y: float) -> float:
    if y != 0:
        return x / y
    if x == 0 or math.isnan(x):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1, y)


def _power(x: float, y: float) -> float:
    if x == 0 and y < 0:  # a pole, of which Python makes an error
        return math.copysign(math.inf, x) if y % 2 == 1 else math.inf
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
    """Return the partial derivative, or the value, at a point that may have infinities and NaNs;
    None where there is none."""
    is_value = not any(orders)
    if is_value and function.name in STANDARD:
        return _standard(function, point)
    if any(map(math.isnan, point)):
        if is_value:
            return math.nan
        return _at_nan(function, orders) if len(point) == 1 else None
    if any(map(math.isinf, point)):
        return _far_out(function, orders, point)
    if not is_value and _has_negative_zero(point) and len(point) > 1:
        return None  # a definition knows no sign of zero, of which the slope of copysign depends
    found = function.partial(orders, point)
    if found is None and is_value and list(point).count(0.0) == 1:
        return _at_pole(function, point)
    return found


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
    probed = {
        found for number in PROBES if (found := function.partial(orders, (number,))) is not None
    }
    if not probed:
        return None
    return probed.pop() if len(probed) == 1 else math.nan


def _far_out(function: Function, orders: Sequence[int], point: Sequence[float]) -> float | None:
    """Return the limit where arguments are infinite, if all ways of going there agree."""
    several = sum(map(math.isinf, point)) > 1
    if 0.0 in point or (several and any(orders)):
        return None
    return _agreed([_limit([function.partial(orders, x) for x in way]) for way in _ways(point)])


def _ways(point: Sequence[float]) -> list[list[list[float]]]:
    """Ways to the point, each of two places on it."""
    count = sum(map(math.isinf, point))
    paces = [(0, 0)] if count == 1 else [(0, 0), (0, 1), (1, 0)]
    found = []
    for pace in paces:
        way = []
        for step in (0, 1):
            sizes = iter(
                [FAR[step] ** 0.5 if pace[k % 2] == 0 else FAR[step] for k in range(count)]
            )
            way.append([math.copysign(next(sizes), x) if math.isinf(x) else x for x in point])
        found.append(way)
    return found


def _at_pole(function: Function, point: Sequence[float]) -> float | None:
    for flip in (1, -1):
        way = [[math.copysign(1 / far, x) * flip if x == 0 else x for x in point] for far in FAR]
        if (found := _limit([function.partial((0,) * len(point), x) for x in way])) is not None:
            return found
    return None


def _limit(values: Sequence[float | None]) -> float | None:
    near, far = values
    if near is None or far is None:
        return None
    if near == far or abs(near - far) <= SAME * abs(far):
        return far
    if abs(far) <= VANISHING:
        return 0.0
    if near * far > 0 and abs(far) >= 1.5 * abs(near):
        return math.copysign(math.inf, far)
    return None


def _agreed(found: Sequence[float | None]) -> float | None:
    return found[0] if all(x is not None and x == found[0] for x in found) else None
