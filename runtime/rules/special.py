"""Special functions, elementwise. Derivatives as in the Digital Library of Mathematical Functions (chapters 5, 6, 7, 8, 10, 25)."""

from __future__ import annotations

import math
from typing import Any

import torch

from .derive import diagonal, nondifferentiable, pointwise

special = torch.special
SQRT_PI = math.sqrt(math.pi)

pointwise("erf", self=lambda self: 2 / SQRT_PI * (-self * self).exp())
pointwise("erfc", self=lambda self: -2 / SQRT_PI * (-self * self).exp())
pointwise("special_erfcx", self=lambda self, result: 2 * self * result - 2 / SQRT_PI)
pointwise("erfinv", self=lambda result: 0.5 * SQRT_PI * result.square().exp())
pointwise("lgamma", self=lambda self: self.digamma())
pointwise("digamma", self=lambda self: torch.polygamma(1, self))
pointwise("polygamma polygamma_", self=lambda n, self: torch.polygamma(n + 1, self))  # polygamma_ has its arguments the other way round


def _mvlgamma_slope(self: torch.Tensor, p: int) -> torch.Tensor:
    shifts = torch.arange((1 - p) / 2, 0.5, 0.5, dtype=self.dtype, device=self.device)
    return (self.unsqueeze(-1) + shifts).digamma().sum(-1)


pointwise("mvlgamma", self=_mvlgamma_slope)
pointwise("i0", self=lambda self: special.i1(self))
pointwise("special_i0e", self=lambda self, result: special.i1e(self) - self.sgn() * result)


def _i1_slope(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """I1' = I0 - I1/x, 1/2 at 0."""
    zero = self == 0
    return torch.where(zero, 0.5, torch.i0(self) - result / torch.where(zero, 1.0, self))


def _i1e_slope(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    zero = self == 0
    x = torch.where(zero, 1.0, self)
    return torch.where(zero, 0.5, special.i0e(x) - result * (x.sgn() + 1 / x))


pointwise("special_i1", self=_i1_slope)
pointwise("special_i1e", self=_i1e_slope)


def _gamma_density(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.exp((self - 1) * other.log() - other - self.lgamma())


pointwise("igamma", other=_gamma_density)
pointwise("igammac", other=lambda self, other: -_gamma_density(self, other))
pointwise("special_entr", self=lambda self: -(1 + self.log()))
pointwise("special_ndtri", self=lambda result: math.sqrt(2 * math.pi) * (result.square() / 2).exp())
pointwise("special_log_ndtr", self=lambda self, result: (-(result + self * self / 2)).exp() / math.sqrt(2 * math.pi))


def _logit_slope(self: torch.Tensor, eps: float | None) -> torch.Tensor:
    slope = 1 / (self * (1 - self))
    if eps is None:
        return torch.where((self < 0) | (self > 1), math.nan, slope)
    return torch.where((self < eps) | (self > 1 - eps), 0.0, slope)


pointwise("logit", self=_logit_slope)


def _by_factor(log: Any, pole: float) -> Any:
    """``t·log(other)``, zero where the function itself is defined as zero."""

    def scaled(t: Any, self: Any, other: Any) -> Any:
        zero = (self == 0) & (other <= pole) if isinstance(other, torch.Tensor) else (self == 0) if other <= pole else None
        return log(t, other) if zero is None else torch.where(zero, 0.0, log(t, other))

    return scaled


def _by_log(shift: float) -> Any:
    return lambda t, self, other: t * self / (other + shift)


diagonal("xlogy.Tensor", self=_by_factor(torch.xlogy, 0.0), other=_by_log(0.0))
diagonal("xlogy.Scalar_Self", other=_by_log(0.0))
diagonal("xlogy.Scalar_Other", self=_by_factor(torch.xlogy, 0.0))
diagonal("special_xlog1py", self=_by_factor(special.xlog1py, -1.0), other=_by_log(1.0))
diagonal("special_xlog1py.self_scalar", other=_by_log(1.0))
diagonal("special_xlog1py.other_scalar", self=_by_factor(special.xlog1py, -1.0))
pointwise("special_zeta", other=lambda self, other: -self * special.zeta(self + 1, other))
pointwise("special_zeta.self_scalar", other=lambda self, other: -self * special.zeta(self + 1.0, other))

# Functions for which torch declares no derivative
nondifferentiable("special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_spherical_bessel_j0")
nondifferentiable("special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1")
nondifferentiable("special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1")
for _family in (
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
):  # fmt: skip
    nondifferentiable(f"special_{_family} special_{_family}.x_scalar special_{_family}.n_scalar")
