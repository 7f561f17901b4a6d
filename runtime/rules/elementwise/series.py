"""Compute polynomials for arguments at which a closed form cancels: near a zero of its denominator,
or far out.

Their derivatives are right to every order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Return ``c[0] + c[1]·x + c[2]·x² + …``, computed by Horner's rule."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


# d/dx sin(πx)/(πx) = x · sum over k >= 1 of c[k]·x^(2k-2)
SINC_SLOPE = [
    (-1) ** k * 2 * k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(1, 16)
]
# I1(x)/x as a series in x², for |x| < 1 (DLMF 10.25.2)
I1_OVER_X = [1 / (2 * 4**k * math.factorial(k) * math.factorial(k + 1)) for k in range(12)]
J1_OVER_X = [
    (-1) ** index * term for index, term in enumerate(I1_OVER_X)
]  # the same of J1(x)/x (10.2.2)


def _erfcx_terms() -> list[float]:
    """Return the coefficients of ``erfcx(x)·x·√π`` in 1/x² (DLMF 7.12.1): 1 - 1/2x² + 3/4x⁴ - …"""
    terms = [1.0]
    for k in range(1, 12):
        terms.append(-terms[-1] * (2 * k - 1) / 2)
    return terms


ERFCX_FAR = _erfcx_terms()
# d/dx of (c[0]/x + c[1]/x³ + …)/√π, as -1/(x²·√π) times this in 1/x²
ERFCX_SLOPE_FAR = [c * (2 * index + 1) for index, c in enumerate(ERFCX_FAR)]


def _bessel_terms(order: int) -> list[float]:
    """Return the coefficients of ``I(x)·exp(-x)·sqrt(2πx)`` in 1/x (DLMF 10.40.1). For order 0: 1 +
    1/8x + 9/128x² + …"""
    terms = [1.0]
    for k in range(1, 14):
        terms.append(-terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return terms


def _slope_terms(order: int) -> list[float]:
    """Return the coefficients of d/dx of x^(-1/2)·(c[0] + c[1]/x + …), as -x^(-3/2) times these in
    1/x."""
    return [term * (index + 0.5) for index, term in enumerate(_bessel_terms(order))]


I0E_SLOPE_FAR, I1E_SLOPE_FAR = _slope_terms(0), _slope_terms(1)
