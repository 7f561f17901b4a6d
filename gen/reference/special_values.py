"""Give results of elementwise ops in Python's numbers, for :mod:`gen.reference.special_numbers`.

They are what IEEE 754, C, Python or torch's documentation says of infinities, NaN and zeros of
either sign: ``sqrt(-0.0)`` is -0.0, and ``divide(1.0, -0.0)`` is -inf. A function takes the op's
arguments in the op's order and by the op's names. None is a result of which nothing is said. An
error of Python says that the op refuses the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

INF, NAN = math.inf, math.nan
# alpha and scale, from the paper on self-normalizing networks (Klambauer et al., 2017)
SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


class Near(float):
    """A result of an exact op that is rounded all the same."""


def some_edge(*numbers: float) -> bool:
    """Return whether one of the numbers is infinite or NaN."""
    return not all(map(math.isfinite, numbers))


def some_nan(*numbers: float) -> bool:
    """Return whether one of the numbers is NaN."""
    return any(map(math.isnan, numbers))


def sign_of_zero(x: float) -> float:
    """Return 1 or -1, by the bit of the sign. A zero has one too."""
    return math.copysign(1.0, x)


def swap(f: Callable[..., object]) -> Callable[..., Any]:
    """Return `f` with its arguments in the other order."""
    return lambda x, y: f(y, x)


# --- quotients and remainders ---------------------------------------------------------------------


def divide(x: float, y: float) -> float:
    """Return the quotient of two floats by IEEE 754. Integers are divided as floats."""
    # Python divides as IEEE 754 says, but raises an error for a divisor of 0.
    if y != 0:
        return x / y
    # An integer zero has no sign, and counts as +0.0.
    if isinstance(y, int):
        x, y = float(x), float(y)
    if x == 0 or math.isnan(x):
        return NAN
    return math.copysign(INF, x) * sign_of_zero(y)


def where_finite(f: Callable[[float], Any]) -> Callable[[float], Any]:
    """Return `f` at finite floats. NaN, infinities, integers and the sign of zero stay as they
    are.
    """

    def g(x: float) -> Any:
        if isinstance(x, int) or not math.isfinite(x):
            return x
        # Python rounds to an int, which has no -0.0. But trunc(-0.5) is -0.0 in torch.
        return math.copysign(float(f(x)), x)

    return g


def floor_divide(x: float, y: float) -> float:
    """Return Python's ``//``, which the documentation names, and a quotient of IEEE 754 by 0."""
    if y == 0 and not isinstance(y, int):
        return divide(x, y)
    return x // y


def trunc_divide(x: float, y: float) -> Any:
    """Return the quotient without its fraction, as C divides integers. Python refuses an integer
    over zero."""
    if not (isinstance(x, int) and isinstance(y, int)):
        return where_finite(math.trunc)(divide(x, y))
    quotient = abs(x) // abs(y)
    if (x < 0) == (y < 0):
        return quotient
    return -quotient


_QUOTIENTS = {None: divide, "floor": floor_divide, "trunc": trunc_divide}


def rounded_quotient(x: float, y: float, rounding_mode: str | None = None) -> Any:
    """Return ``torch.div`` in each rounding mode."""
    return _QUOTIENTS[rounding_mode](x, y)


def size(x: int) -> int:
    """Return the size of an integer, if 64 bits have it. C defines nothing by others."""
    if abs(x) >= 1 << 63:
        raise OverflowError("the size of the least integer")
    return abs(x)


def gcd(x: int, y: int) -> int:
    """Return the greatest common divisor of integers that 64 bits have."""
    return math.gcd(size(x), size(y))


def lcm(x: int, y: int) -> int:
    """Return the least common multiple, which is 0 if a number is."""
    if x == 0 or y == 0:
        return 0
    # Python's integers have no bounds, so the product does not wrap around.
    return size(x) * size(y) // gcd(x, y)


def _has_no_remainder(x: float, y: float) -> bool:
    """Return whether IEEE 754 makes the remainder of floats NaN."""
    return some_nan(x, y) or math.isinf(x) or y == 0


def fmod(x: float, y: float) -> float:
    """Return C's remainder, which has the sign of `x`."""
    if isinstance(x, int) and isinstance(y, int):
        rest = size(x) % abs(y)
        return -rest if x < 0 else rest
    if _has_no_remainder(x, y):
        return NAN
    return math.fmod(x, y)


def remainder(x: float, y: float) -> Any:
    """Return Python's ``%``, which the documentation names."""
    if isinstance(x, int) and isinstance(y, int):
        return x % y
    if _has_no_remainder(x, y):
        return NAN
    if math.isinf(y) and (x < 0) != (y < 0):
        return None  # Python gives y, and C's fmod, which kernels call, lets x stay
    return x % y


def frac(x: float) -> float:
    """Return what is left without the whole number.

    It is NaN of infinities, by the documented formula ``x - floor(|x|)·sgn x``.
    """
    if not math.isfinite(x):
        return NAN
    return math.fmod(x, 1.0)


# --- powers and logarithms ------------------------------------------------------------------------


def power(x: float, y: float) -> Any:
    """Return C's ``pow``. An integer to a negative power is refused."""
    if isinstance(x, int) and isinstance(y, int):
        if y < 0:
            raise ValueError("an integer to a negative power")
        return x**y
    if x == 0 and y < 0:
        # math.pow raises an error at a pole, where C returns an infinity.
        return _power_at_pole(x, y)
    # It also raises an error for a fractional power of a negative number, where C returns NaN.
    if x < 0 and not some_edge(x, y) and y != math.floor(y):
        return NAN
    return math.pow(x, y)


def _power_at_pole(zero: float, y: float) -> float:
    """Return a negative power of zero. Only an odd one has the sign of the zero."""
    if math.isfinite(y) and y % 2 == 1:
        return math.copysign(INF, zero)
    return INF


def float_power(x: float, y: float) -> Any:
    """Return the power of the numbers as floats, whatever they are."""
    return power(float(x), float(y))


def log(x: float, of: Callable[[float], float] = math.log) -> float:
    """Return a logarithm: -inf of 0, and NaN of what is below."""
    if x == 0:
        return -INF
    if x < 0:
        return NAN
    return of(x)


def times_log(x: float, y: float, of: Callable[[float], float]) -> float:
    """Return x·log y as the documentation has it: 0 where x is 0, except that NaN in y stays."""
    if math.isnan(y):
        return NAN
    if x == 0:
        return 0.0
    return x * of(y)


def entropy(x: float) -> float:
    """Return -x·log x, which has no value below 0 and vanishes at 0."""
    if x != x:
        return x
    if x < 0 or x == INF:
        return -INF
    return -times_log(x, x, log)


def log1p(y: float) -> float:
    """Return ``log(1 + y)``: -inf at -1, and NaN below."""
    if y == -1:
        return -INF
    if y < -1:
        return NAN
    return math.log1p(y)


def logaddexp(x: float, y: float, base: float = math.e) -> float:
    """Return the logarithm of the sum of two exponentials, without overflow."""
    if some_nan(x, y):
        return NAN
    if math.isfinite(x) and x == y:
        return max(x, y) + math.log(2) / math.log(base)
    if some_edge(x, y):
        # The logarithm of 1 is a zero without a minus, and adding 0 takes the minus away.
        return max(x, y) + 0
    return max(x, y) + math.log1p(base ** -abs(x - y)) / math.log(base)


def sqrt(x: float) -> float:
    """Return the root, and NaN below 0. The root of -0.0 is -0.0."""
    if x < 0:
        return NAN
    return math.sqrt(x)


def ldexp(x: float, y: float) -> Any:
    """Return ``x·2**y``, as the documentation has it.

    `y` may be no whole number, and the power is rounded then.
    """
    product = x * power(2.0, float(y))
    if math.isfinite(y) and y != int(y):
        return Near(product)
    return product


def frexp(x: float) -> tuple[float, int | None]:
    """Return C's ``frexp``, which gives no exponent for infinities and NaN."""
    if not math.isfinite(x):
        return x, None
    return math.frexp(x)


# --- other functions of one number ----------------------------------------------------------------


def absolute(x: float) -> float:
    """Return the size. That of a boolean is a boolean."""
    if isinstance(x, bool):
        return x
    return abs(x)


def bitwise_not(x: int) -> int:
    """Return the complement of an integer, or the opposite of a boolean."""
    if isinstance(x, bool):
        return not x
    return ~x


def signbit(x: float) -> bool:
    """Return whether the bit of the sign is set."""
    if isinstance(x, int):
        return x < 0
    return sign_of_zero(x) < 0


def sign(x: float) -> Any:
    """Return the sign. Of NaN the documentation says nothing."""
    if x != x:
        return None
    # a zero keeps its sign
    if x == 0:
        return x
    return type(x)(math.copysign(1, x))


def angle(x: float) -> float:
    """Return the angle of a real number, which is π for a negative one and 0 for others."""
    if x != x:
        return x
    if x < 0:
        return math.pi
    return 0.0


def inside(low: float, high: float, f: Callable[[float], float]) -> Callable[[float], float]:
    """Return `f` in its domain, and NaN outside of it."""

    def g(x: float) -> float:
        if not low <= x <= high:
            return NAN
        if x == INF:
            return INF
        return f(x)

    return g


def atanh(x: float) -> float:
    """Return the value in ``[-1, 1]``. At the ends Python refuses what C makes infinite."""
    if abs(x) == 1:
        return math.copysign(INF, x)
    return math.atanh(x)


def sinc(x: float) -> float | None:
    """Return the function of the documentation. Of infinities it says nothing."""
    if math.isinf(x):
        return None
    if x != x:
        return x
    return sinc_of_finite(x)


def sinc_of_finite(x: float) -> float:
    """Return ``sin(πx) / (πx)``, which is 1 at 0 and 0 at other whole numbers."""
    if x == 0:
        return x + 1
    if x == int(x):
        return 0.0
    # This formula is not for whole numbers, whose sine is not 0 here, because math.pi is rounded.
    return math.sin(math.pi * x) / (math.pi * x)


def logit(x: float, eps: float | None = None) -> float | None:
    """Return ``log(x / (1 - x))``, with `x` moved into ``[eps, 1 - eps]``.

    It is NaN outside of ``[0, 1]``.
    """
    if eps is not None and eps > 0.5:
        return None  # bounds that cross
    y = x
    if eps is not None and x == x:
        y = min(max(x, eps), 1 - eps)
    # NaN is within no bounds, so it leaves here too.
    if not 0 <= y <= 1:
        return NAN
    if y == 1:
        return INF
    return log(y / (1 - y))


def nextafter(x: float, y: float, dtype: type) -> float:
    """Return the next number of the dtype towards `y`."""
    # NumPy warns at the ends of the dtype, where the next number is infinite or 0.
    with numpy.errstate(over="ignore", under="ignore"):
        return float(numpy.nextafter(dtype(x), dtype(y)))


def nan_to_num(
    x: float, nan: float | None = None, posinf: float | None = None, neginf: float | None = None,
    *, dtype: type,
) -> float:  # fmt: skip
    """Return the number, or the replacement of a NaN or an infinity.

    By default these are 0 and the ends of the dtype.
    """
    if isinstance(x, int) or math.isfinite(x):
        return x
    largest = float(numpy.finfo(dtype).max)
    if x != x:
        replacement, default = nan, 0.0
    elif x > 0:
        replacement, default = posinf, largest
    else:
        replacement, default = neginf, -largest
    if replacement is None:
        return default
    return replacement


# --- order and comparisons ------------------------------------------------------------------------


def larger(x: Any, y: object) -> Any:
    """Return the larger number, the first one of equals."""
    if x >= y:
        return x
    return y


def smaller(x: Any, y: object) -> Any:
    """Return the smaller number, the first one of equals."""
    if x <= y:
        return x
    return y


def nan_first(choose: Callable[..., object]) -> Callable[[Any, Any], Any]:
    """Return the larger or smaller argument, or NaN if one is NaN."""

    def chosen(x: object, y: object) -> Any:
        if x != x or y != y:
            return NAN
        return choose(x, y)

    return chosen


def nan_last(choose: Callable[..., object]) -> Callable[[Any, Any], Any]:
    """Return the larger or smaller number, or NaN if both are NaN."""

    def chosen(x: object, y: object) -> Any:
        if x != x:
            return y
        if y != y:
            return x
        return choose(x, y)

    return chosen


def clamp(x: float, min: object = None, max: object = None) -> Any:
    """Return ``min(max(x, lower), upper)``, and NaN if an argument is NaN."""
    if min is not None:
        x = nan_first(larger)(x, min)
    if max is not None:
        x = nan_first(smaller)(x, max)
    return x


def isclose(
    x: float, y: float, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether numbers are close by torch's formula. An infinity is close to itself alone."""
    if some_nan(x, y):
        return equal_nan and math.isnan(x) and math.isnan(y)
    # Equal numbers come first, because the difference of two infinities is NaN.
    if x == y or some_edge(x, y):
        return x == y
    return abs(x - y) <= atol + abs(rtol * y)


def heaviside(x: float, at_zero: float) -> float | None:
    """Return the step of the documentation, which has no case for NaN."""
    if x != x:
        return None
    if x == 0:
        return at_zero
    return int(x > 0)


def where(x: object, condition: object, y: object) -> Any:
    """Return the choice. Samples have the condition in the middle."""
    if condition:
        return x
    return y


def lerp(x: float, y: float, weight: float) -> float | None:
    """Return ``x + weight·(y - x)``.

    By infinities nothing is said, as there are two ways to write it.
    """
    if some_nan(x, y, weight):
        return NAN
    if some_edge(x, y, weight):
        return None
    return x + weight * (y - x)


# --- activations ----------------------------------------------------------------------------------


def relu6(x: float) -> Any:
    """Return `x` within ``[0, 6]``."""
    return clamp(x, 0.0, 6.0)


def threshold(x: float, threshold: float, value: float) -> float:
    """Return `value` up to the threshold, and `x` above."""
    if x <= threshold:
        return value
    return x


def leaky_relu(x: float, negative_slope: float = 0.01) -> float:
    """Return `x` above 0, and a part of it below."""
    if x > 0:
        return x
    return x * negative_slope


def elu(x: float, alpha: float = 1.0) -> float:
    """Return `x` above 0, and ``alpha·(exp x - 1)`` below."""
    if x > 0:
        return x
    # Near 0 the digits of ``exp x - 1`` would cancel.
    return alpha * math.expm1(x)


def selu(x: float) -> float:
    """Return the scaled elu of the paper on self-normalizing networks (Klambauer et al., 2017)."""
    return SELU[1] * elu(x, SELU[0])


def celu(x: float, alpha: float = 1.0) -> float:
    """Return `x` above 0, and ``alpha·(exp(x / alpha) - 1)`` below."""
    if x > 0:
        return x
    return alpha * math.expm1(x / alpha)


def shrink(x: float, lambd: float, pull: float) -> float:
    """Return 0 in ``[-lambd, lambd]``, and `x` nearer to 0 by `pull` outside."""
    if x != x:
        return x
    if abs(x) <= lambd:
        return 0.0
    return x - math.copysign(pull, x)


def hardtanh(x: float, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Return `x` within the bounds."""
    if isinstance(x, int) and (min_val % 1 or max_val % 1):
        return None  # bounds that the dtype does not have
    return clamp(x, min_val, max_val)


def hardsigmoid(x: float) -> Any:
    """Return ``x / 6 + 0.5`` within ``[0, 1]``."""
    return clamp(x / 6 + 0.5, 0.0, 1.0)


def hardswish(x: float) -> Any:
    """Return ``x·hardsigmoid(x)``, which is 0 for x up to -3."""
    # The documentation has this case. The product would be NaN for minus infinity.
    if x <= -3:
        return 0.0
    return x * hardsigmoid(x)


def softplus(x: float, beta: float = 1.0, threshold: float = 20.0) -> float:
    """Return ``log(1 + exp(beta·x)) / beta``, and `x` above the threshold."""
    if x * beta > threshold:
        return x
    return logaddexp(x * beta, 0.0) / beta
