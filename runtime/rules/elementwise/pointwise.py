"""Register elementwise arithmetic, powers, exponentials, trigonometry, rounding, comparison and
selection."""

from __future__ import annotations

import cmath
import math
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Keywords
from ...seam.levels import Value
from ...torch_private.dispatcher import OpOverload
from ..derive.batch_rules import elementwise as broadcast
from ..derive.families import (
    conj,
    diagonal,
    elementwise,
    flat,
    linear,
    nondifferentiable,
    pointwise,
)
from ..record import register
from .overflow_safe import times as zero_wins
from .series import SINC_SLOPE, polynomial

LN2 = math.log(2.0)


def times(x: Any, factor: object) -> Any:
    """Return ``x * factor``. The number one as factor costs no kernel call."""
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


# sums: linear in both arguments together, which may have different shapes
elementwise(
    "add.Tensor",
    {"self": lambda g: g, "other": lambda g, alpha: times(g, conj(alpha))},
    {"self": lambda self_t: self_t, "other": lambda other_t, alpha: times(other_t, alpha)},
    commutes=True,
)
elementwise(
    "sub.Tensor",
    {"self": lambda g: g, "other": lambda g, alpha: times(-g, conj(alpha))},
    {"self": lambda self_t: self_t, "other": lambda other_t, alpha: times(-other_t, alpha)},
)
elementwise(
    "rsub.Tensor",
    {"self": lambda g, alpha: times(-g, conj(alpha)), "other": lambda g: g},
    {"self": lambda self_t, alpha: times(-self_t, alpha), "other": lambda other_t: other_t},
)
elementwise("add.Scalar sub.Scalar", {"self": lambda g: g}, {"self": lambda self_t: self_t})
pointwise("rsub.Scalar", self=lambda alpha: -alpha)

# products and quotients. The latter are written out, as in torch: `pointwise` would multiply with a
# reciprocal, which rounds once more.
elementwise(
    "mul.Tensor",
    {"self": lambda g, other: g * conj(other), "other": lambda g, self: g * conj(self)},
    {"self": lambda self_t, other: self_t * other, "other": lambda other_t, self: self * other_t},
    commutes=True,
)
pointwise("mul.Scalar", self=lambda other: other)
elementwise(
    # Divided twice, because the square of `other` overflows or vanishes before the quotient does.
    "div.Tensor",
    {
        "self": lambda g, other: g / conj(other),
        "other": lambda g, self, other: -g * conj((self / other) / other),
    },
    {
        "self": lambda self_t, other: self_t / other,
        "other": lambda other_t, other, result: -other_t * (result / other),
    },
)
elementwise(
    "div.Scalar",
    {"self": lambda g, other: g / conj(other)},
    {"self": lambda self_t, other: self_t / other},
)


def _by_mode(t: Any, other: object, rounding_mode: object) -> object:
    """Return ``t / other``, or zeros with a rounding mode: a rounded quotient is a step
    function."""
    return t / other if rounding_mode is None else torch.zeros_like(t)


elementwise(
    "div.Tensor_mode",
    {
        "self": lambda g, other, rounding_mode: _by_mode(g, conj(other), rounding_mode),
        "other": lambda g, self, other, rounding_mode: _by_mode(
            -g * conj(self / other), conj(other), rounding_mode
        ),
    },
    {
        "self": lambda self_t, other, rounding_mode: _by_mode(self_t, other, rounding_mode),
        "other": lambda other_t, self, other, rounding_mode: _by_mode(
            -other_t * (self / other), other, rounding_mode
        ),
    },
)
elementwise(
    "div.Scalar_mode",
    {"self": lambda g, other, rounding_mode: _by_mode(g, conj(other), rounding_mode)},
    {"self": lambda self_t, other, rounding_mode: _by_mode(self_t, other, rounding_mode)},
)
pointwise("neg", self=lambda: -1)
pointwise("reciprocal", self=lambda result: -(result * result))
pointwise(
    "addcmul",
    self=lambda: 1,
    tensor1=lambda tensor2, value: times(tensor2, value),
    tensor2=lambda tensor1, value: times(tensor1, value),
)
pointwise(
    "addcdiv",
    self=lambda: 1,
    tensor1=lambda tensor2, value: value / tensor2,
    tensor2=lambda tensor1, tensor2, value: -value * (tensor1 / tensor2) / tensor2,
)
pointwise("lerp.Scalar", self=lambda weight: 1 - weight, end=lambda weight: weight)
pointwise(
    "lerp.Tensor",
    self=lambda weight: 1 - weight,
    end=lambda weight: weight,
    weight=lambda self, end: end - self,
)
# A remainder is `self - other·n`, where n is a rounded quotient and so has no slope.
pointwise("fmod.Scalar", self=lambda: 1)
pointwise(
    "fmod.Tensor",
    self=lambda: 1,
    other=lambda self, other: -torch.div(self, other, rounding_mode="trunc"),
)
pointwise("remainder.Scalar", self=lambda: 1)
pointwise(
    "remainder.Tensor",
    self=lambda: 1,
    other=lambda self, other: -torch.div(self, other, rounding_mode="floor"),
)


def _hypot_slope(self: torch.Tensor, other: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return ``x / r``. Where x is the larger, it is ``±1 / √(1 + (y/x)²)``, whose derivatives do
    not subtract ``x²/r³`` from ``1/r``."""
    larger = (self.abs() > other.abs()) & self.isfinite()
    quotient = torch.where(larger, other, 0.0) / torch.where(larger, self, 1.0)
    # At the origin 0/0 is NaN, as in torch.
    return torch.where(larger, self.sgn() * (1 + quotient * quotient).rsqrt(), self / result)


pointwise(
    "hypot",
    self=lambda self, other, result: _hypot_slope(self, other, result),
    other=lambda self, other, result: _hypot_slope(other, self, result),
)
pointwise("deg2rad", self=lambda: math.pi / 180)
pointwise("rad2deg", self=lambda: 180 / math.pi)


def _in_session(t: object) -> bool:
    """Return whether ``t`` is a tensor of the eager session. There the third derivative of a square
    is zeros, and a product ``2 * t`` has none."""
    return isinstance(t, Value) and not t._level.number


# powers. The guards avoid 0·inf if a base or an exponent is zero.
def _power_by_base(self: torch.Tensor, exponent: Any) -> object:
    """Return ``n·x^(n-1)``, and zero for n = 0."""
    if not isinstance(exponent, torch.Tensor):
        if exponent == 2 and not _in_session(self):  # squares are frequent; this is one kernel less
            return 2 * self
        if exponent == 0:
            return False, None
        return exponent * self.pow(exponent - 1)
    power = self.pow(exponent - 1)
    # elsewhere the slope at exponent 0 has a derivative by the exponent, 1 / self
    vanishes = (exponent == 0) & ~power.isfinite()
    return ~vanishes, exponent * torch.where(vanishes, 1.0, power)


def _power_by_exponent(
    self: torch.Tensor | complex | float, exponent: torch.Tensor, result: torch.Tensor
) -> object:
    """Return ``x^n·log(x)``, and zero where x is zero and the exponent is not negative."""
    if not isinstance(self, torch.Tensor) and self != 0:
        if isinstance(self, complex) or exponent.is_complex():
            return result * cmath.log(self)
        # Python's log raises for a negative number, where torch's is NaN.
        return result * (math.log(self) if self > 0 else math.nan)
    # Complex numbers have no order. The masks below negate `>=`, which is false for NaN, so that
    # the gradient of a NaN exponent stays NaN.
    real = exponent.real if exponent.is_complex() else exponent
    # a base of zero for all elements
    if not isinstance(self, torch.Tensor):
        return ~(real >= 0), result * -math.inf
    vanishes = (self == 0) & (real >= 0)
    # whose logarithm is finite, as it is multiplied by zero in derivatives of higher order
    base = torch.where(vanishes, 1.0, self)
    return ~vanishes, result * base.to(result.dtype).log()  # a complex log if the power is complex


pointwise("pow.Tensor_Scalar", self=_power_by_base)
pointwise("pow.Tensor_Tensor", self=_power_by_base, exponent=_power_by_exponent)
pointwise("pow.Scalar", exponent=_power_by_exponent)
elementwise(
    "sqrt",
    {"self": lambda g, result: g / (2 * conj(result))},
    {"self": lambda self_t, result: self_t / (2 * result)},
)
pointwise("rsqrt", self=lambda result: -0.5 * result.pow(3))
pointwise("exp", self=lambda result: result)


def _exp2_slope(self: torch.Tensor) -> torch.Tensor:
    """Return ln 2 · 2^x. For x >= 2 it is computed as ln 4 · 2^(x-1), because 2^x may overflow
    where its derivative does not.

    In single precision 2^128.2 is infinite but its derivative is not.
    """
    real = self.real if self.is_complex() else self
    high = (real >= 2).to(real.dtype)
    return (self - high).exp2() * ((1 + high) * LN2)


pointwise("exp2", self=_exp2_slope)
# not result + 1, which cancels if the result is almost -1
pointwise("expm1", self=lambda self: self.exp())
elementwise(
    "log", {"self": lambda g, self: g / conj(self)}, {"self": lambda self_t, self: self_t / self}
)
pointwise("log2", self=lambda self: 1 / (self * LN2))
pointwise("log10", self=lambda self: 1 / (self * math.log(10)))
pointwise("log1p", self=lambda self: 1 / (self + 1))


def _share_of_sum(self: torch.Tensor, other: torch.Tensor, log: float = 1.0) -> torch.Tensor:
    """Return ``e^x / (e^x + e^y)``, computed as a sigmoid, which cannot overflow. If both are +inf
    it is 1/2, if both are -inf it is 0."""
    same = (self == other) & self.isinf()
    apart = torch.where(same, 0.0, self) - torch.where(same, 0.0, other)
    return torch.where(same & (self.real < 0), 0.0, times(apart, log).sigmoid())


pointwise(
    "logaddexp",
    self=lambda self, other: _share_of_sum(self, other),
    other=lambda self, other: _share_of_sum(other, self),
)
pointwise(
    "logaddexp2",
    self=lambda self, other: _share_of_sum(self, other, LN2),
    other=lambda self, other: _share_of_sum(other, self, LN2),
)
pointwise(
    "ldexp.Tensor", self=lambda other: torch.pow(2.0, other), other=lambda result: result * LN2
)

# trigonometry
pointwise("sin", self=lambda self: self.cos())
pointwise("cos", self=lambda self: -self.sin())
pointwise("tan", self=lambda result: 1 + result.square())


def _one_minus_square(x: torch.Tensor) -> torch.Tensor:
    """Return ``1 - x²``, computed as (1 - x)(1 + x) unless ``|x| < 1/2``, because the difference
    cancels near 1.

    Its derivative is that of the difference unless ``|x| >= 2``, where squares may overflow. That
    of the product would make ∞·0 of the second derivative of ``asin``.
    """
    size = x.abs()
    near, far = size < 0.5, size >= 2
    low, high = torch.where(near, x, 0.0), torch.where(near, 0.0, x)
    product = (1 - low * low) * ((1 - high) * (1 + high))
    # the value of the product, with the derivative -2x: what is added is zero
    bounded = torch.where(far, 0.0, x)
    change = bounded * bounded
    return torch.where(far, product, product.detach() + (change.detach() - change))


pointwise("asin", self=lambda self: _one_minus_square(self).rsqrt())
pointwise("acos", self=lambda self: -_one_minus_square(self).rsqrt())
pointwise("atan", self=lambda self: 1 / (self * self + 1))
pointwise("sinh", self=lambda self: self.cosh())
pointwise("cosh", self=lambda self: self.sinh())
# hypot, and a root of each factor, because squares overflow
pointwise(
    "asinh",
    self=lambda self: (
        (self * self + 1).rsqrt()
        if self.is_complex()
        else torch.hypot(self, torch.ones_like(self)).reciprocal()
    ),
)


def _acosh_slope(self: torch.Tensor) -> torch.Tensor:
    # The product of two roots is on the principal branch. A real x below -1 has no result, but
    # torch gives it the slope of |x|.
    size = self if self.is_complex() else self.abs()
    return (size + 1).rsqrt() * (size - 1).rsqrt()


pointwise("acosh", self=_acosh_slope)
pointwise("atanh", self=lambda self: 1 / _one_minus_square(self))


def _over_square(t: torch.Tensor, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return ``t / |z|²`` for z = other + i·self, computed without squares, which overflow. 0 if z
    is 0."""
    zero = (self == 0) & (other == 0)
    size = torch.hypot(torch.where(zero, 1.0, self), other)
    return torch.where(zero, 0.0, t / size / size)


pointwise(
    "atan2",
    self=lambda self, other: _over_square(other, self, other),
    other=lambda self, other: _over_square(-self, self, other),
)


def _sinc_slope(self: torch.Tensor) -> torch.Tensor:
    """Return d/dx sin(πx)/(πx) = (πx·cos πx - sin πx)/(πx²). Near 0 it is computed from its series,
    because the difference cancels there."""
    near = self.abs() < 0.5
    x = torch.where(near, 1.0, self)
    angle = x * math.pi
    small = torch.where(near, self, 0.0)
    series = small * polynomial(small * small, SINC_SLOPE)
    return torch.where(near, series, (angle * angle.cos() - angle.sin()) / (angle * x))


elementwise(
    "sinc",  # the slope at zero is zero, and its own derivative is not
    {"self": lambda g, self: zero_wins(g, conj(_sinc_slope(self)))},
    {"self": lambda self_t, self: zero_wins(self_t, _sinc_slope(self))},
)

# Magnitudes and phases: real-linear, not holomorphic. Where the result is real, the dual level
# takes the real part of the tangent.
elementwise(
    "abs",
    {"self": lambda g, self: g * self.sgn()},
    {"self": lambda self_t, self: self_t.conj() * self.sgn()},
)
elementwise("_conj_physical", {"self": lambda g: g.conj()}, {"self": lambda self_t: self_t.conj()})


def _phase_slope(g: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """Return ``g·i·z/|z|²``: the partial derivatives of the phase are -y/|z|² by x and x/|z|² by y.
    Zero for real arguments."""
    if not self.is_complex():
        return torch.zeros_like(g)
    size = self.abs()
    zero = size == 0
    size = torch.where(zero, 1.0, size)
    return g * torch.where(zero, 0.0, 1j * self / size / size)


elementwise(
    "angle",
    {"self": _phase_slope},
    {"self": lambda self_t, self: _phase_slope(self_t.conj(), self) if self.is_complex() else None},
)


def _unit(t: torch.Tensor, self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return d(z/|z|): the part of ``t`` that is orthogonal to z, divided by |z|. It is
    self-adjoint as a real-linear map."""
    if not self.is_complex():
        return torch.zeros_like(t)
    size = self.abs()
    radial = (result.conj() * t).real
    return torch.where(size == 0, 0.0, (t - radial * result) / torch.where(size == 0, 1.0, size))


elementwise(
    "sgn",
    {"self": lambda g, self, result: _unit(g, self, result)},
    {"self": lambda self_t, self, result: _unit(self_t, self, result)},
)
linear(
    "complex", {"real": lambda g: g.real, "imag": lambda g: g.imag}, broadcast, family="pointwise"
)
elementwise(
    "polar",
    {
        "abs": lambda g, angle: (g * torch.polar(torch.ones_like(angle), -angle)).real,
        "angle": lambda g, result: (g * (1j * result).conj()).real,
    },
    {
        "abs": lambda abs_t, angle: abs_t * torch.polar(torch.ones_like(angle), angle),
        "angle": lambda angle_t, result: angle_t * 1j * result,
    },
)


def copysign_slope(t: torch.Tensor, self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return ``t`` times the sign of the result relative to that of ``self``. 0 if ``self`` is
    0."""
    return torch.where(self == 0, 0.0, t * (result.sign() * self.sign()))


# steps
flat("ceil floor round trunc sign", "self")
flat("round.decimals", "self")
flat("heaviside", "self", "values")
diagonal("frac", self=lambda g: g)
diagonal("nan_to_num", self=lambda g, self: g * torch.isfinite(self))
register(
    "copysign.Tensor",
    vjp={
        "self": lambda g, self, result: copysign_slope(g, self, result),
        "other": lambda g: torch.zeros_like(g),
    },
    jvp={
        "self": lambda self_t, self, result: copysign_slope(self_t, self, result),
        "other": lambda other_t: torch.zeros_like(other_t),
    },
    batch=broadcast,
    in_place=True,
    family="pointwise",
)
diagonal("copysign.Scalar", self=lambda g, self, result: copysign_slope(g, self, result))
elementwise(
    "nextafter",
    {
        "self": lambda g, self, other: torch.where(self != other, g, 0.0),
        "other": lambda g: torch.zeros_like(g),
    },
    {
        "self": lambda self_t, self, other: torch.where(self != other, self_t, 0.0),
        "other": lambda other_t: torch.zeros_like(other_t),
    },
)
elementwise(
    "frexp.Tensor",
    {"self": lambda gs, result1: None if gs[0] is None else gs[0] / result1.exp2()},
    lambda self_t, result1: (self_t / result1.exp2(), None),
)

# selection: by `where`, because in a product with the mask an infinite cotangent would become NaN
elementwise(
    "where.self",
    {
        "self": lambda g, condition: torch.where(condition, g, 0),
        "other": lambda g, condition: torch.where(condition, 0, g),
    },
    {
        "self": lambda self_t, condition: torch.where(condition, self_t, 0),
        "other": lambda other_t, condition: torch.where(condition, 0, other_t),
    },
)
diagonal("masked_fill.Scalar", self=lambda g, mask: g.masked_fill(mask, 0))


def _fill_batch(
    func: OpOverload, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``masked_fill`` on a batch. The kernel takes only a 0-d value, so a batch of values is
    put in by ``where``."""
    self, mask, value = args
    if not batched[2] and batched[0]:
        if self.dim() == 1 and mask.dim() == int(batched[1]):
            return func(self, mask, value, **kwargs)  # a batch of 0-d tensors
        return broadcast(func, size, batched, args, kwargs)
    # `where` promotes dtypes, but `masked_fill` keeps that of `self`.
    out = broadcast(
        torch.where, size, (batched[1], batched[2], batched[0]), (mask, value, self), {}
    ).to(self.dtype)
    if func._schema.is_mutable:
        return self.copy_(out)
    return out


register(
    "masked_fill.Tensor",
    batch=_fill_batch,
    in_place=True,
    family="pointwise",
    vjp={
        "self": lambda g, mask: g.masked_fill(mask, 0),
        "value": lambda g, mask: torch.where(mask, g, 0).sum(),
    },
    jvp={
        "self": lambda self_t, mask: self_t.masked_fill(mask, 0),
        "value": lambda value_t, mask: torch.where(mask, value_t, 0),
    },
)


# no gradient
for _c in ("eq", "ne", "lt", "le", "gt", "ge"):
    nondifferentiable(f"{_c}.Tensor {_c}.Scalar")
nondifferentiable(
    "isnan isinf isposinf isneginf signbit logical_not logical_and logical_or logical_xor"
)
nondifferentiable(
    "bitwise_not bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar "
    "bitwise_xor.Tensor bitwise_xor.Scalar"
)
nondifferentiable(
    "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor "
    "bitwise_right_shift.Tensor_Scalar"
)
nondifferentiable("__lshift__.Tensor __lshift__.Scalar __rshift__.Tensor __rshift__.Scalar")
nondifferentiable("bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor")
nondifferentiable("bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor")
nondifferentiable("floor_divide floor_divide.Scalar gcd lcm")
