"""Draw tensors whose values are of a domain, and keep them in it when they are moved.

    domain = DOMAINS["symmetric"]
    x = domain.draw((3, 3), torch.float64, {})
    domain.near(x + noise)              # a symmetric matrix again, and x itself without noise

A derivative by differences moves one element after the other, and so leaves the domain. For
example, a matrix is no longer symmetric, and the op may read one half of it or refuse it. So checks
of derivatives differentiate `f(near(x))`, in the target and in the reference alike. Torch's own
gradcheck does so for symmetric matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DOMAINS", "Domain", "is_inexact"]

Tensor = torch.Tensor
Shape = tuple[int, ...]
Draw = Callable[[Shape, torch.dtype, Mapping[str, Any]], Tensor]
_BOUNDS = {"any": (-2.0, 2.0), "positive": (0.1, 2.0), "unit": (0.05, 0.95)}
_INTEGER_BOUNDS = {"any": (-9, 10), "positive": (1, 10), "unit": (0, 2)}
_ROUNDS = 3  # of Newton and Schulz: an error of 1e-3 becomes one of 1e-24


@dataclass(frozen=True)
class Domain:
    """Values that a tensor of a sample may have."""

    # Takes the shape, the dtype and the description.
    draw: Draw
    # Returns values of the domain near others, and those of the domain as they are. None if small
    # moves do not leave the domain.
    near: Callable[[Tensor], Tensor] | None = None
    # How many of the last dimensions a condition ties together.
    dims: int = 0
    # The dtype of its tensors, unless the description has one.
    dtype: torch.dtype | None = None
    # Whether derivatives by it have a meaning.
    moves: bool = True


def is_inexact(dtype: torch.dtype) -> bool:
    """Return whether numbers of a dtype are rounded."""
    return dtype.is_floating_point or dtype.is_complex


# --- numbers between bounds -----------------------------------------------------------------------


def _between(bounds: str) -> Draw:
    """Return a function that draws between the bounds of a domain, or those of the description."""

    def draw(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
        if not is_inexact(dtype):
            return _integers(bounds, shape, dtype, described)
        least, most = _BOUNDS[bounds]
        low, high = described.get("low", least), described.get("high", most)
        real = _real(shape, low, high)
        if dtype.is_complex:
            real = torch.complex(real, _real(shape, low, high))
        return real.to(dtype)

    return draw


def _integers(
    bounds: str, shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]
) -> Tensor:
    """Draw integers from the lower bound up to the upper one, which is left out."""
    lowest, highest = _INTEGER_BOUNDS[bounds]
    if not dtype.is_signed:
        lowest = max(lowest, 0)
    low, high = int(described.get("low", lowest)), int(described.get("high", highest))
    return torch.randint(low, high, shape, dtype=dtype)


def _real(shape: Shape, low: float, high: float) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) * (high - low) + low


def _nonzero(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    """Draw numbers that are not near zero. A number near zero is made larger."""
    drawn = _between("any")(shape, dtype, described)
    if not is_inexact(dtype):
        return torch.where(drawn == 0, torch.ones_like(drawn), drawn)
    return torch.where(drawn.abs() < 0.1, drawn + 0.25, drawn)


def _whole(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    """Draw whole numbers, also in a floating dtype: counts and labels."""
    return _integers("any", shape, torch.int64, described).to(dtype)


def _bool(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    return torch.rand(shape) < 0.5


def _index(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    if "size" not in described:
        raise ValueError("domain index needs `size`: indices are drawn from 0 … size − 1")
    return torch.randint(0, described["size"], shape).to(dtype)


# --- conditions on several elements ---------------------------------------------------------------


def _permutation(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    rows = [torch.randperm(shape[-1]) for _ in range(math.prod(shape[:-1]))]
    return torch.stack(rows).reshape(shape).to(dtype)


def _distinct(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    count = math.prod(shape)
    values = torch.randperm(count).to(torch.float64)
    # Even steps from -2 to 2 are as large as they can be, so small moves keep the order.
    if is_inexact(dtype):
        values = values * (4.0 / max(count, 1)) - 2.0
    return values.reshape(shape).to(dtype)


def _sorted(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    """Draw rows that increase along the last dimension, by steps that differences do not undo."""
    if dtype.is_complex:
        raise ValueError("domain sorted has no complex numbers")
    steps = _real(shape, 0.2, 1.0)
    if not is_inexact(dtype):
        steps = torch.randint(1, 3, shape).to(torch.float64)
    start = _real((*shape[:-1], 1), -2.0, 0.0).round()
    return (start + steps.cumsum(-1)).to(dtype)


def _probabilities(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    """Draw rows of positive numbers whose sum is 1."""
    _require("probabilities", dtype.is_floating_point, shape, dtype, "rows of a floating dtype")
    return _with_sum_of_one(_real(shape, 0.2, 1.0)).to(dtype)


def _with_sum_of_one(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


def _unit_vectors(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    _require("unit_vectors", is_inexact(dtype), shape, dtype, "a floating or complex dtype")
    return _with_norm_of_one(torch.randn(shape, dtype=_wide(dtype))).to(dtype)


def _with_norm_of_one(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norms


# --- matrices -------------------------------------------------------------------------------------


def _symmetric(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    return _symmetric_part(_square("symmetric", shape, dtype)).to(dtype)


def _symmetric_part(x: Tensor) -> Tensor:
    return (x + x.mH) / 2


def _spd(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    """Draw Hermitian matrices whose eigenvalues are at least 1."""
    factor = _square("spd", shape, dtype)
    size = shape[-1]
    # The division by the size keeps eigenvalues from growing with it.
    product = factor @ factor.mH / max(size, 1)
    return (product + torch.eye(size, dtype=factor.dtype)).to(dtype)


def _unitary(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    factor: Tensor = torch.linalg.qr(_square("unitary", shape, dtype)).Q
    return factor.to(dtype)


def _nearly_unitary(x: Tensor) -> Tensor:
    """Return the unitary matrix near `x`, the first factor of its polar decomposition.

    By the iteration of Newton and Schulz (Higham, Functions of Matrices, 2008, section 8.3), which
    is a polynomial and so has derivatives of every order.
    """
    for _ in range(_ROUNDS):
        x = 1.5 * x - 0.5 * (x @ (x.mH @ x))
    return x


def _rotation(shape: Shape, dtype: torch.dtype, described: Mapping[str, Any]) -> Tensor:
    """Draw orthogonal matrices of determinant 1."""
    if dtype.is_complex:
        raise ValueError("domain rotation has no complex numbers")
    factor = torch.linalg.qr(_square("rotation", shape, dtype)).Q
    # A reflection becomes a rotation if one column gets the other sign.
    signs = torch.linalg.det(factor).sign()[..., None, None]
    return torch.cat([factor[..., :1] * signs, factor[..., 1:]], -1).to(dtype)


def _square(domain: str, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Draw square matrices of double precision. ``ValueError`` for another shape or dtype."""
    is_square = len(shape) >= 2 and shape[-1] == shape[-2]
    wanted = "square matrices of a floating or complex dtype"
    _require(domain, is_square and is_inexact(dtype), shape, dtype, wanted)
    return torch.randn(shape, dtype=_wide(dtype))


def _require(domain: str, holds: bool, shape: Shape, dtype: torch.dtype, wanted: str) -> None:
    if not holds:
        raise ValueError(f"domain {domain} needs {wanted}, not {list(shape)} of {dtype}")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


DOMAINS: dict[str, Domain] = {
    "any": Domain(_between("any")),
    "positive": Domain(_between("positive")),
    "unit": Domain(_between("unit")),
    "nonzero": Domain(_nonzero),
    "whole": Domain(_whole, moves=False),
    "spd": Domain(_spd, _symmetric_part, dims=2),
    "symmetric": Domain(_symmetric, _symmetric_part, dims=2),
    "unitary": Domain(_unitary, _nearly_unitary, dims=2),
    "rotation": Domain(_rotation, _nearly_unitary, dims=2),
    "unit_vectors": Domain(_unit_vectors, _with_norm_of_one, dims=1),
    "probabilities": Domain(_probabilities, _with_sum_of_one, dims=1),
    "sorted": Domain(_sorted, dims=1),
    "permutation": Domain(_permutation, dims=1, dtype=torch.int64),
    "index": Domain(_index, dtype=torch.int64),
    "bool": Domain(_bool, dtype=torch.bool),
    "distinct": Domain(_distinct),
}
"""The domains of a description, by the words of the language."""
