"""Register special functions. Derivatives as in the Digital Library of Mathematical Functions
(chapters 5, 6, 7, 8, 10, 25).

A closed form of a slope may be a difference of terms that cancel, far out or near a zero of its
denominator. There a series has its place (:mod:`.series`), chosen element by element by
``torch.where``. Each of the two branches gets harmless numbers where the other one counts. Without
that, a NaN of the branch that does not count would be in the derivative of the slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...facts.derivatives import has_formula
from ..derive.families import diagonal, nondifferentiable, pointwise
from ..record import Formula
from .series import ERFCX_SLOPE_FAR, I0E_SLOPE_FAR, I1_OVER_X, I1E_SLOPE_FAR, J1_OVER_X, polynomial

special = torch.special
SQRT_PI = math.sqrt(math.pi)

pointwise("erf", self=lambda self: 2 / SQRT_PI * (-self * self).exp())
pointwise("erfc", self=lambda self: -2 / SQRT_PI * (-self * self).exp())


def _erfcx_slope(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return ``2x·erfcx(x) - 2/√π``. Far out the two terms cancel, and it is computed from its
    asymptotic series."""
    far = self > 10  # from here on the series is exact to double precision
    inverse = torch.where(far, self, 1.0).reciprocal()
    square = inverse * inverse
    series = -square * polynomial(square, ERFCX_SLOPE_FAR) / SQRT_PI
    return torch.where(
        far, series, 2 * torch.where(far, 0.0, self) * torch.where(far, 0.0, result) - 2 / SQRT_PI
    )


pointwise("special_erfcx", self=_erfcx_slope)
pointwise("erfinv", self=lambda result: 0.5 * SQRT_PI * result.square().exp())
pointwise("lgamma", self=lambda self: self.digamma())
pointwise("digamma", self=lambda self: torch.polygamma(1, self))
# polygamma_ takes its arguments in the reverse order
pointwise("polygamma polygamma_", self=lambda n, self: torch.polygamma(n + 1, self))


def _mvlgamma_slope(self: torch.Tensor, p: int) -> torch.Tensor:
    """Return the sum of ψ(x - j/2) over j from 0 to p - 1 (DLMF 35.3.4)."""
    shifts = torch.arange((1 - p) / 2, 0.5, 0.5, dtype=self.dtype, device=self.device)
    return (self.unsqueeze(-1) + shifts).digamma().sum(-1)


pointwise("mvlgamma", self=_mvlgamma_slope)
pointwise("i0", self=lambda self: special.i1(self))


def _mask_far(
    self: torch.Tensor, result: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a mask of large x, at which the terms of a closed form cancel, and x and the result
    with zeros at these places."""
    far = self.abs() > 60  # from here on the series is exact to double precision
    return far, torch.where(far, 0.0, self), torch.where(far, 0.0, result)


def _far_slope(x: torch.Tensor, far: torch.Tensor, coefficients: list[float]) -> torch.Tensor:
    """Return the derivative of a scaled Bessel function, from its asymptotic series in 1/|x|. Its
    coefficients overflow in half precision."""
    inverse = (
        torch.where(far, x.abs(), 1.0).to(torch.promote_types(x.dtype, torch.float32)).reciprocal()
    )
    return -inverse * inverse.sqrt() * polynomial(inverse, coefficients) / math.sqrt(2 * math.pi)


def _i0e_slope(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return ``i1e(x) - sgn(x)·i0e(x)``."""
    far, x, result = _mask_far(self, result)
    return torch.where(
        far, self.sgn() * _far_slope(self, far, I0E_SLOPE_FAR), special.i1e(x) - x.sgn() * result
    )


pointwise("special_i0e", self=_i0e_slope)


def _over_argument(
    y: torch.Tensor,
    x: torch.Tensor,
    scale: torch.Tensor | int = 1,
    series: Sequence[float] = I1_OVER_X,
) -> torch.Tensor:
    """Return ``y / x`` for ``y = I1(x)·scale``, or another function with a ``series`` for the
    quotient in x². Near 0 the quotient has no derivatives, so it is computed from the series."""
    near = x.abs() < 1
    small = torch.where(near, x, 0.0)
    return torch.where(
        near, polynomial(small * small, series) * scale, y / torch.where(near, 1.0, x)
    )


def _i1_slope(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return I1' = I0 - I1/x. It is I0 if both terms overflow."""
    return torch.i0(self) - _over_argument(torch.where(result.isinf(), 0.0, result), self)


def _i1e_slope(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return ``i0e(x) - sgn(x)·i1e(x) - i1e(x)/x``."""
    far, x, result = _mask_far(self, result)
    near = special.i0e(x) - result * x.sgn() - _over_argument(result, x, (-x.abs()).exp())
    return torch.where(far, _far_slope(self, far, I1E_SLOPE_FAR), near)


pointwise("special_i1", self=_i1_slope)
pointwise("special_i1e", self=_i1e_slope)


def _gamma_density(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return ``x^(a-1)·exp(-x)/Γ(a)`` for a = ``self`` and x = ``other``."""
    # by logarithms, as Γ overflows long before the quotient does
    return torch.exp(torch.xlogy(self - 1, other) - other - self.lgamma())


# torch has no derivative by the first argument either; a gradient raises MissingRule.
pointwise("igamma", other=_gamma_density)
pointwise("igammac", other=lambda self, other: -_gamma_density(self, other))
pointwise("special_entr", self=lambda self: -(1 + self.log()))
pointwise("special_ndtri", self=lambda result: math.sqrt(2 * math.pi) * (result.square() / 2).exp())


def _log_ndtr_slope(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return φ(x)/Φ(x). For negative x, where both vanish, it is computed from the scaled error
    function."""
    # for positive x by the logarithm of Φ itself, which is the result
    below = self < 0
    low, high = torch.where(below, self, 0.0), torch.where(below, 0.0, self)
    tail = math.sqrt(2 / math.pi) / special.erfcx(low * -math.sqrt(0.5))
    return torch.where(
        below,
        tail,
        (-(torch.where(below, 0.0, result) + high * high / 2)).exp() / math.sqrt(2 * math.pi),
    )


pointwise("special_log_ndtr", self=_log_ndtr_slope)


def _logit_slope(
    self: torch.Tensor, eps: float | None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return 1/x + 1/(1-x), NaN outside of (0, 1). With ``eps``: a pair, as ``scaled`` of
    :mod:`..derive.families` takes it, zero where x is clamped."""
    if eps is None:
        return torch.where((self < 0) | (self > 1), math.nan, 1 / self + 1 / (1 - self))
    clamped = (self < eps) | (self > 1 - eps)
    # derivatives of the slope are finite where it is not used
    inside = torch.where(clamped, 0.5, self)
    return ~clamped, 1 / inside + 1 / (1 - inside)


pointwise("logit", self=_logit_slope)


# The functions self·log(other) and self·log(1 + other) are zero by definition where ``self`` is
# zero, also where the logarithm is infinite. In a vjp ``t`` is a cotangent, in a jvp a tangent.


def _derivative_by_factor(log: Callable[..., torch.Tensor], pole: float) -> Formula:
    """Return the derivative by ``self`` as a function of ``t``: ``t·log(other)``.

    ``log`` is ``torch.xlogy`` or ``torch.special.xlog1py``. ``pole`` is the value of ``other`` at
    which its logarithm is infinite.
    """

    def scaled(t: object, self: Any, other: Any) -> torch.Tensor:
        """Return the product of tensors or numbers."""
        if isinstance(other, torch.Tensor):
            zero = (self == 0) & (other <= pole)
        elif other <= pole:
            zero = self == 0
        else:
            return log(t, other)
        return torch.where(zero, 0.0, log(t, other))

    return scaled


def _derivative_by_argument(shift: float) -> Formula:
    """Return the derivative by ``other`` as a function of ``t``: ``t·self/(other + shift)``, and
    zero where ``self`` and the denominator are zero."""

    def scaled(t: Any, self: torch.Tensor, other: Any) -> torch.Tensor:
        """Return the quotient of tensors or numbers."""
        argument = other
        if shift:
            argument = other + shift
        zero = (argument == 0) & (self == 0)
        return torch.where(zero, 0.0, t * self / torch.where(zero, 1.0, argument))

    return scaled


diagonal(
    "xlogy.Tensor", self=_derivative_by_factor(torch.xlogy, 0.0), other=_derivative_by_argument(0.0)
)
diagonal("xlogy.Scalar_Self", other=_derivative_by_argument(0.0))
diagonal("xlogy.Scalar_Other", self=_derivative_by_factor(torch.xlogy, 0.0))
diagonal(
    "special_xlog1py",
    self=_derivative_by_factor(special.xlog1py, -1.0),
    other=_derivative_by_argument(1.0),
)
diagonal("special_xlog1py.self_scalar", other=_derivative_by_argument(1.0))
diagonal("special_xlog1py.other_scalar", self=_derivative_by_factor(special.xlog1py, -1.0))
# DLMF 25.11.17. For the exponent torch has no derivative either; a gradient raises MissingRule.
pointwise("special_zeta", other=lambda self, other: -self * special.zeta(self + 1, other))
pointwise(
    "special_zeta.self_scalar", other=lambda self, other: -self * special.zeta(self + 1.0, other)
)

# Bessel functions (DLMF 10.6.3, 10.29.3), which torch differentiates from 2.15 on
BESSEL: dict[str, Callable[..., torch.Tensor]] = {
    "special_bessel_j0": lambda self: -special.bessel_j1(self),
    "special_bessel_j1": lambda self, result: (
        special.bessel_j0(self) - _over_argument(result, self, series=J1_OVER_X)
    ),
    "special_bessel_y0": lambda self: -special.bessel_y1(self),
    # At zero both terms are infinite, and their difference would be NaN.
    "special_bessel_y1": lambda self, result: torch.where(
        self == 0, math.inf, special.bessel_y0(self) - result / self
    ),
    "special_modified_bessel_i0": lambda self: special.modified_bessel_i1(self),
    "special_modified_bessel_i1": lambda self, result: (
        special.modified_bessel_i0(self)
        - _over_argument(torch.where(result.isinf(), 0.0, result), self)
    ),
    "special_modified_bessel_k0": lambda self: -special.modified_bessel_k1(self),
    "special_modified_bessel_k1": lambda self, result: (
        -special.modified_bessel_k0(self) - result / self
    ),
}
for _name, _slope in BESSEL.items():
    if has_formula(f"{_name}.default"):
        pointwise(_name, self=_slope)
    else:
        nondifferentiable(_name)

# Functions for which torch declares no derivative
nondifferentiable("special_airy_ai special_spherical_bessel_j0")
nondifferentiable("special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1")
for _family in (
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p",
):  # fmt: skip
    nondifferentiable(f"special_{_family} special_{_family}.x_scalar special_{_family}.n_scalar")
