"""Define elementwise ops where two arguments tie, at kinks, zeros of either sign, infinities and
NaN.

The rules are in Python's numbers, and have what IEEE 754, C, Python or torch's documentation says
of each op. ``POINTWISE["torch.fmax"].value(nan, 1.0)`` is 1.0. A rule takes the op's arguments in
the op's order, with one number in place of each tensor. A value of None is one of which nothing is
said. An error of Python says that the op refuses the numbers.

``slopes`` are the derivatives by each parameter, one-sided at the edge of a domain. At a tie or a
kink they are the choice that torch's formulas make. Where versions of torch choose differently on
purpose, the slope is None.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gen.reference import special_slopes as slopes
from gen.reference import special_values as values
from gen.reference.special_slopes import Slopes
from gen.reference.special_values import INF, Near

__all__ = ["NARROW", "POINTWISE", "Near", "Pointwise"]


@dataclass(frozen=True)
class Pointwise:
    """The definition of an op on single numbers."""

    value: Callable[..., Any]
    slopes: Callable[..., Slopes] | None = None
    # Whether a zero that the op returns has the sign that `value` gives.
    signed: bool = False
    # Whether nothing is rounded. Then a result is a number of `value`, or one that `value` says is
    # :class:`Near` it.
    exact: bool = False


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
    "signbit": values.signbit,
    "isclose": values.isclose,
}
_WHOLE: dict[str, Callable[..., Any]] = {
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "Tensor.__rand__": operator.and_, "Tensor.__ror__": operator.or_,
    "Tensor.__rxor__": operator.xor,
    "bitwise_not": values.bitwise_not,
    "gcd": values.gcd, "lcm": values.lcm,
}  # fmt: skip
_EVEN, _BY_VERSION = (0.5, 0.5), (None, None)
_Order = Callable[[Callable[..., Any]], Callable[[Any, Any], Any]]
_CHOICES: dict[str, tuple[Callable[..., Any], bool, _Order, Slopes]] = {
    "maximum": (values.larger, True, values.nan_first, _EVEN),
    "minimum": (values.smaller, False, values.nan_first, _EVEN),
    "max.binary": (values.larger, True, values.nan_first, _EVEN),
    "min.binary": (values.smaller, False, values.nan_first, _EVEN),
    "clamp_min": (values.larger, True, values.nan_first, _BY_VERSION),
    "clamp_max": (values.smaller, False, values.nan_first, _BY_VERSION),
    "fmax": (values.larger, True, values.nan_last, _BY_VERSION),
    "fmin": (values.smaller, False, values.nan_last, _BY_VERSION),
}
"""Which argument is chosen, whether the larger one, whether NaN or a number comes first, and the
slopes at a tie."""
_ROUNDED: dict[str, Callable[[float], Any]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}
_division = Pointwise(values.rounded_quotient, slopes.quotient, signed=True)
_swapped_power = Pointwise(values.swap(values.power), slopes.swap(slopes.power), signed=True)

POINTWISE: dict[str, Pointwise] = {
    **{
        f"torch.{name}": Pointwise(f, exact=True)
        for name, f in {**_COMPARISONS, **_LOGICAL, **_WHOLE}.items()
    },
    **{
        f"torch.{name}": Pointwise(
            order(choose),
            slopes.choice(larger, tie, nan_last=order is values.nan_last),
            exact=True,
        )
        for name, (choose, larger, order, tie) in _CHOICES.items()
    },
    **{
        f"torch.{name}": Pointwise(
            values.where_finite(f), slopes.fixed(0.0), signed=True, exact=True
        )
        for name, f in _ROUNDED.items()
    },
    "torch.round.decimals_0": Pointwise(
        lambda x, decimals: values.where_finite(round)(x),
        slopes.fixed(0.0),
        signed=True,
        exact=True,
    ),
    # --- of one number
    "torch.abs": Pointwise(
        values.absolute,
        lambda x: slopes.step(x, low=-1.0),
        signed=True,
        exact=True,
    ),
    "torch.neg": Pointwise(operator.neg, slopes.fixed(-1.0), signed=True, exact=True),
    "torch.positive": Pointwise(lambda x: x, slopes.fixed(1.0), signed=True, exact=True),
    "torch.sign": Pointwise(values.sign, slopes.fixed(0.0), exact=True),
    "torch.sgn": Pointwise(values.sign, slopes.fixed(0.0), exact=True),
    "torch.frac": Pointwise(values.frac, slopes.fixed(1.0), exact=True),
    "torch.square": Pointwise(lambda x: x * x, lambda x: (2 * x,)),
    "torch.sqrt": Pointwise(
        values.sqrt, slopes.above_zero(lambda x: values.divide(0.5, math.sqrt(x))), signed=True
    ),
    "torch.rsqrt": Pointwise(
        lambda x: values.divide(1.0, values.sqrt(x)),
        slopes.above_zero(lambda x: values.divide(-0.5, x * math.sqrt(x))),
        signed=True,
    ),
    "torch.reciprocal": Pointwise(
        lambda x: values.divide(1.0, x), lambda x: (-values.divide(1.0, x * x),), signed=True
    ),
    "torch.log": Pointwise(values.log, slopes.log(1.0)),
    "torch.log2": Pointwise(lambda x: values.log(x, math.log2), slopes.log(math.log(2))),
    "torch.log10": Pointwise(lambda x: values.log(x, math.log10), slopes.log(math.log(10))),
    "torch.log1p": Pointwise(values.log1p, lambda x: slopes.log(1.0)(1 + x), signed=True),
    "torch.frexp": Pointwise(values.frexp, signed=True, exact=True),
    "torch.nan_to_num": Pointwise(values.nan_to_num, slopes.nan_to_num, signed=True, exact=True),
    "torch.angle": Pointwise(values.angle, slopes.angle),
    "torch.asin": Pointwise(values.inside(-1, 1, math.asin), slopes.arc(1.0), signed=True),
    "torch.acos": Pointwise(values.inside(-1, 1, math.acos), slopes.arc(-1.0)),
    "torch.acosh": Pointwise(
        values.inside(1, INF, math.acosh),
        slopes.acosh,
    ),
    "torch.atanh": Pointwise(
        values.inside(-1, 1, values.atanh),
        slopes.atanh,
        signed=True,
    ),
    "torch.sinc": Pointwise(
        values.sinc,
        slopes.sinc,
    ),
    "torch.logit": Pointwise(values.logit, slopes.logit),
    "torch.special.entr": Pointwise(
        values.entropy,
        slopes.entropy,
    ),
    # --- activations
    "torch.nn.functional.softplus": Pointwise(values.softplus, slopes.softplus),
    "torch.nn.functional.relu": Pointwise(lambda x: values.clamp(x, 0.0), slopes.step, exact=True),
    "torch.nn.functional.relu6": Pointwise(
        values.relu6,
        slopes.kinks((0.0, 0.0), (6.0, 0.0), between=lambda x: float(0 < x < 6)),
        exact=True,
    ),
    "torch.nn.functional.hardtanh": Pointwise(values.hardtanh, slopes.hardtanh, exact=True),
    "torch.nn.functional.hardsigmoid": Pointwise(
        values.hardsigmoid,
        slopes.kinks((-3.0, 0.0), (3.0, 0.0), between=lambda x: (abs(x) < 3) / 6),
    ),
    "torch.nn.functional.hardswish": Pointwise(
        values.hardswish,
        slopes.kinks((-3.0, 0.0), (3.0, 1.0), between=slopes.hardswish_between_kinks),
    ),
    "torch.nn.functional.leaky_relu": Pointwise(
        values.leaky_relu,
        lambda x, negative_slope=0.01: slopes.step(x, low=negative_slope, at=negative_slope),
    ),
    "torch.nn.functional.elu": Pointwise(values.elu, slopes.elu),
    "torch.nn.functional.celu": Pointwise(values.celu, slopes.celu),
    "torch.nn.functional.selu": Pointwise(values.selu, lambda x: slopes.elu(x, *values.SELU)),
    "torch.nn.functional.hardshrink": Pointwise(
        lambda x, lambd=0.5: values.shrink(x, lambd, 0.0), slopes.shrink, exact=True
    ),
    "torch.nn.functional.softshrink": Pointwise(
        lambda x, lambd=0.5: values.shrink(x, lambd, lambd), slopes.shrink
    ),
    "torch.nn.functional.threshold": Pointwise(
        values.threshold,
        slopes.threshold,
        exact=True,
    ),
    # --- arithmetic
    "torch.add": Pointwise(
        lambda x, y, alpha=1: x + alpha * y, lambda x, y, alpha=1: (1.0, alpha), signed=True
    ),
    "torch.Tensor.__radd__": Pointwise(lambda x, y: y + x, slopes.fixed(1.0, 1.0), signed=True),
    "torch.sub": Pointwise(
        lambda x, y, alpha=1: x - alpha * y, lambda x, y, alpha=1: (1.0, -alpha), signed=True
    ),
    "torch.rsub": Pointwise(
        lambda x, y, alpha=1: y - alpha * x, lambda x, y, alpha=1: (-alpha, 1.0), signed=True
    ),
    "torch.Tensor.__rsub__": Pointwise(lambda x, y: y - x, slopes.fixed(-1.0, 1.0), signed=True),
    "torch.mul": Pointwise(operator.mul, lambda x, y: (y, x), signed=True),
    "torch.Tensor.__rmul__": Pointwise(operator.mul, lambda x, y: (y, x), signed=True),
    "torch.true_divide": _division,
    "torch.div.no_rounding_mode": _division,
    "torch.div.floor_rounding": Pointwise(values.rounded_quotient, slopes.quotient, signed=True),
    "torch.div.trunc_rounding": Pointwise(values.rounded_quotient, slopes.quotient, signed=True),
    "torch.Tensor.__rdiv__": Pointwise(
        values.swap(values.divide), slopes.swap(slopes.quotient), signed=True
    ),
    "torch.floor_divide": Pointwise(values.floor_divide, signed=True),
    "torch.fmod": Pointwise(
        values.fmod, slopes.modulo(values.trunc_divide), signed=True, exact=True
    ),
    "torch.remainder": Pointwise(values.remainder, slopes.modulo(values.floor_divide), signed=True),
    "torch.Tensor.__rmod__": Pointwise(
        values.swap(values.remainder), slopes.swap(slopes.modulo(values.floor_divide)), signed=True
    ),
    "torch.addcmul": Pointwise(lambda a, x, y, value=1: a + value * x * y),
    "torch.addcdiv": Pointwise(lambda a, x, y, value=1: a + value * values.divide(x, y)),
    "torch.lerp": Pointwise(values.lerp, slopes.lerp),
    # --- powers, angles and logarithms
    "torch.pow": Pointwise(values.power, slopes.power, signed=True),
    "torch.Tensor.__rpow__": _swapped_power,
    "torch.float_power": Pointwise(values.float_power, slopes.power, signed=True),
    "torch.hypot": Pointwise(lambda x, y: math.hypot(x, y), slopes.hypot),
    "torch.atan2": Pointwise(math.atan2, slopes.atan2, signed=True),
    "torch.xlogy": Pointwise(
        lambda x, y: values.times_log(x, y, values.log),
        lambda x, y: slopes.times_log(x, y, math.log, lambda y: y),
    ),
    "torch.special.xlog1py": Pointwise(
        lambda x, y: values.times_log(x, y, values.log1p),
        lambda x, y: slopes.times_log(x, y, math.log1p, lambda y: 1 + y),
    ),
    "torch.logaddexp": Pointwise(values.logaddexp, slopes.logaddexp),
    "torch.logaddexp2": Pointwise(
        lambda x, y: values.logaddexp(x, y, 2.0), lambda x, y: slopes.logaddexp(x, y, 2.0)
    ),
    # --- signs, steps and bits
    "torch.copysign": Pointwise(math.copysign, slopes.copysign, signed=True, exact=True),
    "torch.heaviside": Pointwise(values.heaviside, exact=True),
    "torch.nextafter": Pointwise(values.nextafter, signed=True, exact=True),
    "torch.ldexp": Pointwise(values.ldexp, signed=True, exact=True),
    # --- choices
    "torch.clamp": Pointwise(values.clamp, slopes.clamp, exact=True),
    "torch.where": Pointwise(
        values.where,
        lambda x, condition, y: (float(condition), 0.0, float(not condition)),
        signed=True,
        exact=True,
    ),
}
NARROW = frozenset(("torch.nextafter", "torch.nan_to_num"))
"""Rules that take the `dtype` of the result, as one of NumPy's."""
