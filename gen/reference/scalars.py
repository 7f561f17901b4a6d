"""Define elementwise ops as scalar functions in arbitrary precision, written with mpmath.

``SCALARS["torch.sigmoid"](mpf("0.5"))`` is the value to the working precision of ``mpmath.mp``. A
function takes the op's arguments in the op's order, with an ``mpf`` in place of each tensor. It
raises :class:`Undefined` outside of its domain.

Functions whose derivatives have a closed form have them in :data:`DERIVATIVES`. Other functions are
differentiated by :mod:`gen.reference.exact`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpmath import mp, mpf

__all__ = ["ACCURATE", "DERIVATIVES", "SCALARS", "Undefined"]

Scalar = Callable[..., Any]


class Undefined(ValueError):
    """The function has no real value at the point, or none that is known. The message says why."""


def _require_above(x: Any, bound: object, what: str) -> None:
    if not x > bound:
        raise Undefined(f"{what} takes arguments above {bound}")


def _sign(x: Any) -> Any:
    return mpf((x > 0) - (x < 0))


def _round(x: object, decimals: int = 0) -> object:
    scale = mpf(10) ** decimals
    return mp.nint(x * scale) / scale  # half to even


def _power(x: Any, y: Any) -> object:
    """Return a power of real numbers. Raises Undefined where it is not real or infinite."""
    if x == 0 and y < 0:
        raise Undefined("a negative power of 0")
    if x < 0 and y != mp.floor(y):
        raise Undefined("a fractional power of a negative number")
    if y == 0:
        return mpf(1)
    return mp.power(x, y)


def _log(x: object) -> Any:
    _require_above(x, 0, "a logarithm")
    return mp.log(x)


def _lgamma(x: Any) -> Any:
    """Return the logarithm of the size of the gamma function."""
    _require_no_pole(x)
    if x > 0:
        return mp.re(mp.loggamma(x))
    # By the reflection formula, which leads back to a positive argument.
    return mp.log(abs(mp.pi / mp.sinpi(x))) - mp.re(mp.loggamma(1 - x))


def _require_no_pole(x: Any) -> None:
    """Raise Undefined at 0 and the negative whole numbers."""
    if x <= 0 and x == mp.floor(x):
        raise Undefined("a pole of the gamma function")


def _psi(n: int, x: object) -> Any:
    _require_no_pole(x)
    return mp.psi(n, x)


def _mvlgamma(x: object, p: int) -> object:
    _require_above(x, mpf(p - 1) / 2, "mvlgamma")
    # The definition of the multivariate gamma function, as a product of gamma functions.
    return mp.log(mp.pi) * p * (p - 1) / 4 + sum(_lgamma(x - mpf(j) / 2) for j in range(p))


def _ndtr(x: Any) -> object:
    # erfc does not cancel in the lower tail, as 1 + erf would.
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _ndtri(p: Any) -> object:
    """Return the quantile of the normal distribution."""
    if not 0 < p < 1:
        raise Undefined("a quantile outside of (0, 1)")
    return _inverse(
        _ndtr,
        lambda x: mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi),
        p,
        mp.sqrt(2) * _erfinv_start(2 * p - 1),
    )


def _erfinv(y: Any) -> object:
    if not -1 < y < 1:
        raise Undefined("erfinv outside of (-1, 1)")
    return _inverse(mp.erf, lambda x: 2 * mp.exp(-x * x) / mp.sqrt(mp.pi), y, _erfinv_start(y))


def _erfinv_start(y: Any) -> object:
    """Return Winitzki's approximation of erfinv, with an error below 1e-2."""
    if y == 0:
        return mpf(0)
    a = mpf("0.147")
    # For a quantile of a number near 0 or 1, y rounds to -1 or 1. Then the logarithm is infinite,
    # and a number that is large enough for Newton's method stands for it.
    tail = mp.log1p(-y * y) if abs(y) < 1 else mpf(-700)
    b = 2 / (mp.pi * a) + tail / 2
    return _sign(y) * mp.sqrt(mp.sqrt(b * b - tail / a) - b)


def _inverse(f: Scalar, slope: Scalar, y: object, start: object) -> object:
    """Return the solution x of ``f(x) = y`` by Newton's method, from a start that is near."""
    x = start
    for _ in range(200):
        step = (f(x) - y) / slope(x)
        x -= step
        # All bits agree but the last eight, which rounding may change in every further step.
        if abs(step) <= abs(x) * mpf(2) ** (8 - mp.prec) or step == 0:
            return x
    raise Undefined("Newton's method did not converge")


def _logit(x: Any, eps: float | None = None) -> object:
    if eps is not None:
        x = min(max(x, mpf(eps)), 1 - mpf(eps))
    if not 0 < x < 1:
        raise Undefined("logit outside of (0, 1)")
    return mp.log(x / (1 - x))


def _entr(x: Any) -> object:
    if x < 0:
        raise Undefined("entr of a negative number is -inf")
    if x == 0:
        return mpf(0)
    return -x * mp.log(x)


def _times_log(x: object, y: object) -> object:
    """Return ``x·log y``, which is 0 where x is 0, whatever y is."""
    if x == 0:
        return mpf(0)
    return x * _log(y)


def _sigmoid(x: Any) -> object:
    # The form for each sign has an exponential of a negative number. That of a large one would have
    # more digits than any working precision.
    if x >= 0:
        return 1 / (1 + mp.exp(-x))
    return mp.exp(x) / (1 + mp.exp(x))


def _log1pexp(x: Any) -> Any:
    # For the same reason the exponential is that of a negative number.
    if x > 0:
        return x + mp.log1p(mp.exp(-x))
    return mp.log1p(mp.exp(x))


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> object:
    if x * beta > threshold:
        return x
    return _log1pexp(x * beta) / mpf(beta)


def _gelu(x: Any, approximate: str = "none") -> object:
    if approximate == "none":
        return x * _ndtr(x)
    return x * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3))) / 2


def _elu(x: Any, alpha: float = 1.0, scale: Any = 1, inside: object = 1) -> object:
    if x > 0:
        return scale * x
    return scale * (alpha * mp.expm1(x * inside))


def _leaky_relu(x: Any, negative_slope: float = 0.01) -> object:
    if x > 0:
        return x
    return x * negative_slope


def _threshold(x: Any, threshold: float, value: float) -> object:
    if x > threshold:
        return x
    return mpf(value)


def _selu(x: object) -> object:
    # the constants of the paper on self-normalizing networks (Klambauer et al., 2017)
    return _elu(
        x, mpf("1.6732632423543772848170429916717"), mpf("1.0507009873554804934193349852946")
    )


def _shrink(x: Any, lambd: float, pull: float) -> object:
    if abs(x) == lambd:
        raise Undefined("a jump")
    if abs(x) < lambd:
        return mpf(0)
    return x - _sign(x) * pull


def _divide(x: Any, y: object, rounding_mode: str | None = None) -> object:
    """Return the quotient, rounded by the mode. Raises Undefined where rounding decides the
    result.
    """
    if y == 0:
        raise Undefined("a division by 0")
    exact = x / y
    if rounding_mode is not None:
        _require_clear_quotient(exact)
    return {None: lambda q: q, "floor": mp.floor, "trunc": _trunc}[rounding_mode](exact)


def _require_clear_quotient(quotient: Any) -> None:
    """Raise Undefined for a quotient that a floating-point division may round to a whole number."""
    distance = abs(quotient - mp.nint(quotient))
    if 0 < distance < abs(quotient) * mpf(2) ** -20:
        raise Undefined("a quotient next to a whole number")


def _trunc(x: Any) -> object:
    if x >= 0:
        return mp.floor(x)
    return mp.ceil(x)


def _remainder(x: Any, y: object, rounding: Scalar = mp.floor) -> object:
    if y == 0:
        raise Undefined("a division by 0")
    _require_clear_quotient(x / y)
    return x - y * rounding(x / y)


def _logaddexp(x: Any, y: Any) -> object:
    return max(x, y) + mp.log1p(mp.exp(-abs(x - y)))


def _logaddexp2(x: Any, y: Any) -> object:
    return max(x, y) + mp.log1p(mpf(2) ** (-abs(x - y))) / mp.log(2)


def _atan2(y: object, x: object) -> object:
    if x == 0 and y == 0:
        raise Undefined("the angle of 0")
    return mp.atan2(y, x)


def _clamp(
    x: Any, low: object = None, high: object = None, *, min: object = None, max: object = None
) -> object:
    """Return `x` within the bounds, by torch's positional or keyword names."""
    if low is None:
        low = min
    if high is None:
        high = max
    if x in (low, high):
        raise Undefined("a tie: derivatives there are a convention")
    if low is not None and x < low:
        x = low
    if high is not None and x > high:
        x = high
    return x


def _sinc(x: Any) -> object:
    # Larger numbers stand for infinity, where the limit 0 is known.
    if 2**20 < abs(x) < 2**120:
        raise Undefined("neighbouring numbers are whole periods apart")
    return mp.sincpi(x)


def _floor_divide(x: Any, y: object) -> object:
    if y == 0:
        raise Undefined("a division by 0")
    if abs(x / y) > 2**20:
        raise Undefined("a quotient whose unit may not be a number of the dtype")
    return mp.floor(x / y)


def _zeta(s: Any, q: Any) -> object:
    """Return the Hurwitz zeta function for s above 1."""
    _require_above(s, 1, "zeta")
    _require_above(q, 0, "the shift of zeta")
    # For such a large s, all terms of the series but the first one round away.
    if s > 2**10:
        return mp.power(q, -s)
    return mp.zeta(s, q)


def _gamma_share(a: Any, x: Any, *ends: object) -> object:
    """Return a part of the regularized incomplete gamma function, between `ends`."""
    _require_above(a, 0, "the incomplete gamma function")
    if x < 0:
        raise Undefined("the incomplete gamma function below 0")
    if max(a, x) > 2**10 or a < mpf(2) ** -64:
        raise Undefined("too far for the series of the incomplete gamma function")
    return mp.gammainc(a, *ends, regularized=True)


def _cross_entropy(p: Any, t: Any, weight: Any = None) -> object:
    if weight is not None or not (0 < p < 1 and 0 <= t <= 1):
        raise Undefined("a weight, a probability outside of (0, 1), or a target outside of [0, 1]")
    return -(t * mp.log(p) + (1 - t) * mp.log(1 - p))


def _cross_entropy_of_logit(
    x: Any, t: Any, weight: object = None, pos_weight: object = None
) -> object:
    if weight is not None or pos_weight is not None:
        raise Undefined("a weight")
    return t * _log1pexp(-x) + (1 - t) * _log1pexp(x)


def _bessel(f: Scalar, order: int) -> Scalar:
    return lambda x: f(order, x)


def _scaled(f: Scalar) -> Scalar:
    return lambda x: f(x) * mp.exp(-abs(x))


def _positive(f: Scalar) -> Scalar:
    def g(x: object) -> Any:
        _require_above(x, 0, "the function")
        return f(x)

    return g


def _unreduced(f: Scalar) -> Scalar:
    """Return a loss as a function of its elements. Other reductions are no scalar functions."""

    def g(*args: object, reduction: str = "mean", **kwargs: object) -> Any:
        if reduction != "none":
            raise Undefined(f"reduction {reduction}")
        return f(*args, **kwargs)

    return g


def _huber(x: Any, y: object, delta: float = 1.0) -> object:
    gap = abs(x - y)
    if gap <= delta:
        return gap * gap / 2
    return delta * (gap - mpf(delta) / 2)


def _smooth_l1(x: Any, y: object, beta: float = 1.0) -> object:
    gap = abs(x - y)
    if gap < beta:
        return gap * gap / (2 * mpf(beta))
    return gap - mpf(beta) / 2


SCALARS: dict[str, Scalar] = {
    # --- of one tensor
    "torch.abs": abs,
    "torch.acos": lambda x: mp.acos(x),
    "torch.acosh": lambda x: mp.acosh(x),
    "torch.asin": lambda x: mp.asin(x),
    "torch.asinh": lambda x: _sign(x) * mp.asinh(abs(x)),
    "torch.atan": lambda x: mp.atan(x),
    "torch.atanh": lambda x: mp.atanh(x),
    "torch.ceil": lambda x: mp.ceil(x),
    "torch.cos": lambda x: mp.cos(x),
    "torch.cosh": lambda x: mp.cosh(x),
    "torch.deg2rad": lambda x: x * mp.pi / 180,
    "torch.exp": lambda x: mp.exp(x),
    "torch.exp2": lambda x: mp.exp(x * mp.log(2)),
    "torch.expm1": lambda x: mp.expm1(x),
    "torch.floor": lambda x: mp.floor(x),
    "torch.frac": lambda x: x - _trunc(x),
    "torch.log": _log,
    "torch.log10": lambda x: _log(x) / mp.log(10),
    "torch.log1p": lambda x: _log(1 + x),
    "torch.log2": lambda x: _log(x) / mp.log(2),
    "torch.neg": lambda x: -x,
    "torch.positive": lambda x: x,
    "torch.rad2deg": lambda x: x * 180 / mp.pi,
    "torch.reciprocal": lambda x: _divide(mpf(1), x),
    "torch.round": _round,
    "torch.round.decimals_0": _round,
    "torch.round.decimals_3": _round,
    "torch.round.decimals_neg_3": _round,
    "torch.rsqrt": _positive(lambda x: 1 / mp.sqrt(x)),
    "torch.sgn": _sign,
    "torch.sign": _sign,
    "torch.sin": lambda x: mp.sin(x),
    "torch.sinh": lambda x: mp.sinh(x),
    "torch.sqrt": lambda x: mp.sqrt(x),
    "torch.square": lambda x: x * x,
    "torch.tan": lambda x: mp.tan(x),
    "torch.tanh": lambda x: mp.tanh(x),
    "torch.trunc": _trunc,
    # --- special functions
    "torch.digamma": lambda x: _psi(0, x),
    "torch.erf": lambda x: mp.erf(x),
    "torch.erfc": lambda x: mp.erfc(x),
    "torch.erfinv": _erfinv,
    "torch.i0": lambda x: mp.besseli(0, x),
    "torch.lgamma": _lgamma,
    "torch.logit": _logit,
    "torch.mvlgamma.mvlgamma_p_1": _mvlgamma,
    "torch.mvlgamma.mvlgamma_p_3": _mvlgamma,
    "torch.mvlgamma.mvlgamma_p_5": _mvlgamma,
    **{f"torch.polygamma.polygamma_n_{n}": lambda x, n: _psi(n, x) for n in range(5)},
    "torch.special.polygamma.special_polygamma_n_0": lambda x, n: _psi(n, x),
    "torch.sigmoid": _sigmoid,
    "torch.sinc": _sinc,
    "torch.special.airy_ai": lambda x: mp.airyai(x),
    "torch.special.bessel_j0": _bessel(mp.besselj, 0),
    "torch.special.bessel_j1": _bessel(mp.besselj, 1),
    "torch.special.bessel_y0": _positive(_bessel(mp.bessely, 0)),
    "torch.special.bessel_y1": _positive(_bessel(mp.bessely, 1)),
    "torch.special.entr": _entr,
    "torch.special.erfcx": lambda x: mp.exp(x * x) * mp.erfc(x),
    "torch.special.i0e": _scaled(_bessel(mp.besseli, 0)),
    "torch.special.i1": _bessel(mp.besseli, 1),
    "torch.special.i1e": _scaled(_bessel(mp.besseli, 1)),
    "torch.special.log_ndtr": lambda x: mp.log(_ndtr(x)),
    "torch.special.modified_bessel_i0": _bessel(mp.besseli, 0),
    "torch.special.modified_bessel_i1": _bessel(mp.besseli, 1),
    "torch.special.modified_bessel_k0": _positive(_bessel(mp.besselk, 0)),
    "torch.special.modified_bessel_k1": _positive(_bessel(mp.besselk, 1)),
    "torch.special.ndtr": _ndtr,
    "torch.special.ndtri": _ndtri,
    "torch.special.scaled_modified_bessel_k0": _positive(lambda x: mp.besselk(0, x) * mp.exp(x)),
    "torch.special.scaled_modified_bessel_k1": _positive(lambda x: mp.besselk(1, x) * mp.exp(x)),
    "torch.special.spherical_bessel_j0": lambda x: mp.sinc(x),
    # --- activations
    "torch.nn.functional.celu": lambda x, alpha=1.0: _elu(x, mpf(alpha), 1, 1 / mpf(alpha)),
    "torch.nn.functional.elu": _elu,
    "torch.nn.functional.gelu": _gelu,
    "torch.nn.functional.hardshrink": lambda x, lambd=0.5: _shrink(x, lambd, 0),
    "torch.nn.functional.hardsigmoid": lambda x: min(max(x + 3, mpf(0)), mpf(6)) / 6,
    "torch.nn.functional.hardswish": lambda x: x * min(max(x + 3, mpf(0)), mpf(6)) / 6,
    "torch.nn.functional.hardtanh": lambda x, min_val=-1.0, max_val=1.0: _clamp(
        x, mpf(min_val), mpf(max_val)
    ),
    "torch.nn.functional.leaky_relu": _leaky_relu,
    "torch.nn.functional.logsigmoid": lambda x: -_log1pexp(-x),
    "torch.nn.functional.mish": lambda x: x * mp.tanh(_log1pexp(x)),
    "torch.nn.functional.relu": lambda x: max(x, mpf(0)),
    "torch.nn.functional.relu6": lambda x: min(max(x, mpf(0)), mpf(6)),
    "torch.nn.functional.selu": _selu,
    "torch.nn.functional.silu": lambda x: x * _sigmoid(x),
    "torch.nn.functional.softplus": _softplus,
    "torch.nn.functional.softshrink": lambda x, lambd=0.5: _shrink(x, lambd, lambd),
    "torch.nn.functional.softsign": lambda x: x / (1 + abs(x)),
    "torch.nn.functional.tanhshrink": lambda x: x - mp.tanh(x),
    "torch.nn.functional.threshold": _threshold,
    # --- of two and three tensors
    "torch.add": lambda x, y, alpha=1: x + mpf(alpha) * y,
    "torch.sub": lambda x, y, alpha=1: x - mpf(alpha) * y,
    "torch.rsub": lambda x, y, alpha=1: y - mpf(alpha) * x,
    "torch.mul": lambda x, y: x * y,
    "torch.addcdiv": lambda a, x, y, value=1: a + mpf(value) * _divide(x, y),
    "torch.addcmul": lambda a, x, y, value=1: a + mpf(value) * x * y,
    "torch.atan2": _atan2,
    "torch.clamp": _clamp,
    "torch.clamp_max": min,
    "torch.clamp_min": max,
    "torch.copysign": lambda x, y: abs(x) * (-1 if y < 0 else 1),
    "torch.div.no_rounding_mode": _divide,
    "torch.div.floor_rounding": _divide,
    "torch.div.trunc_rounding": _divide,
    "torch.true_divide": _divide,
    "torch.Tensor.__rdiv__": lambda x, y: _divide(y, x),
    "torch.Tensor.__rpow__": lambda x, y: _power(y, x),
    "torch.float_power": _power,
    "torch.pow": _power,
    "torch.fmax": max,
    "torch.fmin": min,
    "torch.max.binary": max,
    "torch.min.binary": min,
    "torch.maximum": max,
    "torch.minimum": min,
    "torch.fmod": lambda x, y: _remainder(x, y, _trunc),
    "torch.remainder": _remainder,
    "torch.Tensor.__rmod__": lambda x, y: _remainder(y, x),
    "torch.hypot": lambda x, y: mp.sqrt(x * x + y * y),
    "torch.lerp": lambda x, y, weight: x + mpf(weight) * (y - x),
    "torch.logaddexp": _logaddexp,
    "torch.logaddexp2": _logaddexp2,
    "torch.special.xlog1py": lambda x, y: _times_log(x, 1 + y),
    "torch.xlogy": _times_log,
    "torch.floor_divide": _floor_divide,
    "torch.special.zeta": _zeta,
    "torch.igamma": lambda a, x: _gamma_share(a, x, 0, x),
    "torch.igammac": lambda a, x: _gamma_share(a, x, x, mp.inf),
    # --- losses without a reduction
    "torch.nn.functional.binary_cross_entropy": _unreduced(_cross_entropy),
    "torch.nn.functional.binary_cross_entropy_with_logits": _unreduced(_cross_entropy_of_logit),
    "torch.nn.functional.mse_loss": _unreduced(lambda x, y: (x - y) ** 2),
    "torch.nn.functional.l1_loss": _unreduced(lambda x, y: abs(x - y)),
    "torch.nn.functional.huber_loss": _unreduced(_huber),
    "torch.nn.functional.smooth_l1_loss": _unreduced(_smooth_l1),
    "torch.nn.functional.soft_margin_loss": _unreduced(lambda x, y: _log1pexp(-x * y)),
}


def _derivative_of_mvlgamma(n: int, x: object, p: int) -> object:
    """Return the n-th derivative of the multivariate logarithm of gamma."""
    derivative = sum((_psi(n - 1, x - mpf(j) / 2) for j in range(p)), mpf(0))
    # Only the function itself refuses an argument outside of its domain.
    _mvlgamma(x, p)
    return derivative


def _derivative_of_rounded_quotient(_order: int, x: Any, y: object, rounding_mode: str) -> object:
    """Return 0. Raises Undefined where the quotient jumps.

    Differences do not see the jumps of a quotient so large that each step passes many.
    """
    quotient = x / y
    _require_clear_quotient(quotient)
    # Truncation has no jump at 0, because it takes the numbers on both sides to 0.
    if quotient == mp.nint(quotient) and (quotient != 0 or rounding_mode == "floor"):
        raise Undefined("a jump of the rounded quotient")
    return mpf(0)


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "torch.lgamma": lambda n, x: _psi(n - 1, x),
    "torch.digamma": lambda n, x: _psi(n, x),
    **{name: lambda n, x, m: _psi(n + m, x) for name in SCALARS if "polygamma" in name},
    **{f"torch.mvlgamma.mvlgamma_p_{p}": _derivative_of_mvlgamma for p in (1, 3, 5)},
    "torch.div.floor_rounding": _derivative_of_rounded_quotient,
    "torch.div.trunc_rounding": _derivative_of_rounded_quotient,
}
"""The n-th derivative (n ≥ 1) of functions, as ``d(n, x, …)`` with the function's other arguments.
Those of two numbers have one derivative of each order, whatever the arguments it is by."""


_ACCURATE_FAMILIES = ("bessel", "airy", "gamma", "i0", "i1")
ACCURATE = frozenset(
    name for name in SCALARS if any(family in name for family in _ACCURATE_FAMILIES)
)
"""Functions whose values have no cancellation at any working precision."""
