"""Register norms, distances between tensors and between rows, and ``renorm``.

ATen's backward kernels of distances take the rows and the distances, so the differences of all
pairs are never saved.
"""

from __future__ import annotations

from typing import Any

import torch

from ...seam.call_types import Arguments, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.families import conj, conj_of, real, scaled
from ..derive.matrix_rules import leading
from ..derive.reduction_records import reduction, summed
from ..record import register

aten = torch.ops.aten

# ---- norms


def over_root(a: Any, root: torch.Tensor) -> Any:
    """Return ``a / root``, and zero where the root is zero. Its derivatives are zero there, too:
    they must not divide by it."""
    # the divisor is masked too: its derivative would be zero times infinity
    zero = root == 0
    return (a / root.masked_fill(zero, 1)).masked_fill(zero, 0)


def _norm_partial(self: torch.Tensor, result: torch.Tensor, ord: Any, dim: Any) -> Any:
    """Return the conjugate of the gradient of a p-norm. Zero where the norm is not differentiable.
    Ties of the maximum share it."""
    p = float(ord)
    # these p have a formula without powers; the number of nonzero elements has no slope
    if p == 0:
        return torch.zeros_like(self)
    sgn = conj(self.sgn())
    if p == 1:
        return sgn
    if p == 2:
        return over_root(conj(self), result)
    magnitude = self.abs()
    if p in (float("inf"), float("-inf")):
        mask = (magnitude == result) | (magnitude.isnan() & result.isnan())
        return sgn * (mask.to(result.dtype) / summed(mask, dim, True))
    # Powers of the quotient, because powers of its parts overflow. At zero |x|^(p-1) or its
    # derivative may be infinite; zero is used.
    zero = self == 0
    size = torch.where(result == 0, 1.0, result)
    ratio = torch.where(zero, 1.0, magnitude) / size
    if p < 2:
        return sgn * torch.where(zero, 0.0, ratio.pow(p - 1))
    if p < 4:  # not sgn·|x|^(p-1), whose derivative at zero would be infinite times zero
        return conj(self) / size * torch.where(zero, 0.0, ratio.pow(p - 2))
    return conj(self) / size * (magnitude / size).pow(p - 2)


def _norm_slope(
    self: torch.Tensor, result: torch.Tensor, ord: Any, dim: object
) -> tuple[object, object]:
    """Return where the norm can be differentiated, and :func:`_norm_partial`. The derivative is
    zero elsewhere."""
    return float(ord) != 0 and result != 0, _norm_partial(self, result, ord, dim)


def _vector_norm_batch(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords
) -> object:
    """Run the op on a batch. The dimensions stand behind the order, which a call may leave out."""
    if len(args) == 1:
        args = [*args, 2]  # the schema's default order
    return batch.along(2)(func, size, batched, args, kwargs)


def _norm(
    self: torch.Tensor,
    p: object = None,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> object:
    """Return the norm of any of the overloads of ``norm``. None as ``p``: 2."""
    if p is None:
        p = 2
    return aten.linalg_vector_norm(self, p, dim, keepdim, dtype=dtype)


reduction(
    "linalg_vector_norm",
    # a wider ``dtype=`` is also the dtype of the computation
    lambda self, result, ord, dim: _norm_slope(
        self.to(torch.promote_types(self.dtype, result.dtype)), result, ord, dim
    ),
    _vector_norm_batch,
)
for _name in ("norm.Scalar", "norm.ScalarOpt_dim"):
    register(_name, decomposition=_norm, family="reduction")
register(
    "norm.ScalarOpt_dtype",
    decomposition=lambda self, p, *, dtype: _norm(self, p, dtype=dtype),
    family="reduction",
)
register("norm.ScalarOpt_dim_dtype", decomposition=_norm, family="reduction")


def _dist(self: torch.Tensor, other: torch.Tensor, p: object = 2) -> object:
    return aten.linalg_vector_norm(self - other, p)


def _dist_vjp(
    g: torch.Tensor, self: torch.Tensor, other: torch.Tensor, p: object, result: torch.Tensor
) -> object:
    # the norm of self - other: the gradients are opposite
    part = scaled(g, conj_of(_norm_slope(self - other, result, p, None)))
    return part, -part


register("dist", vjp={("self", "other"): _dist_vjp}, decomposition=_dist, family="reduction")


# ---- norms that are limited


def _renorm(self: torch.Tensor, p: object, dim: int, maxnorm: object) -> object:
    return self * _renorm_scale(self, p, dim, maxnorm)[0]


def _renorm_scale(
    self: torch.Tensor, p: object, dim: int, maxnorm: Any
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return the scale of each slice along ``dim`` that limits its norm to ``maxnorm``, its
    derivative, and the dimensions of a slice.

    The derivative is by each element, conjugated. ATen, too, adds 1e-7 to the norm.
    """
    # a slice is all of the tensor at one index of `dim`
    dims = [other for other in range(self.dim()) if other != dim % self.dim()]
    norm = aten.linalg_vector_norm(self, p, dims, True)
    over = norm > maxnorm
    # of maxnorm / (norm + 1e-7); a slice that is short enough has the constant scale 1
    by_norm = torch.where(over, -maxnorm / (norm + 1e-7).square(), 0)
    slope = by_norm * _norm_partial(self, norm, p, dims)
    return torch.where(over, maxnorm / (norm + 1e-7), 1), slope, dims


def _renorm_vjp(
    g: torch.Tensor, self: torch.Tensor, p: object, dim: int, maxnorm: object
) -> object:
    """Return the gradient by the slices: that of the scaled slice, and that through its norm."""
    scale, slope, dims = _renorm_scale(self, p, dim, maxnorm)
    # each element of a slice moves the norm, which scales the whole slice
    through = conj(slope) * real(g * conj(self)).sum(dims, keepdim=True)
    return g * scale + torch.where(scale == 1, 0, through)


def _renorm_jvp(
    self_t: torch.Tensor, self: torch.Tensor, p: object, dim: int, maxnorm: object
) -> object:
    scale, slope, dims = _renorm_scale(self, p, dim, maxnorm)
    return self_t * scale + self * real(self_t * slope).sum(dims, keepdim=True)


register(
    "renorm",
    vjp={"self": _renorm_vjp},
    jvp={"self": _renorm_jvp},
    decomposition=_renorm,
    cost="high",
    family="reduction",
)


# ---- distances between rows


def _cdist_backward(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, cdist: torch.Tensor
) -> object:
    """Return the backward in plain ops. It recomputes the distances from the rows, so that
    derivatives go through them."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    distance = aten.linalg_vector_norm(apart, p, [-1], True)
    return (grad.unsqueeze(-1) * _norm_partial(apart, distance, p, [-1])).sum(-2)


def _cdist_vjp(
    g: torch.Tensor,
    x1: torch.Tensor,
    x2: torch.Tensor,
    p: float,
    result: torch.Tensor,
    needs: frozenset[str],
) -> object:
    """Return the gradients by the rows of both matrices, by ATen's backward kernel."""
    first = second = None
    if "x1" in needs:
        first = aten._cdist_backward(g.contiguous(), x1, x2, p, result)
    if "x2" in needs:
        second = aten._cdist_backward(g.mT.contiguous(), x2, x1, p, result.mT.contiguous())
    return first, second


def _euclidean_vjp(
    g: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, result: torch.Tensor
) -> Any:
    """Return the gradients by the rows of both matrices, as two products: no differences of all
    pairs."""
    # row i of x1 gets sum_j ratio_ij·(x1_i - x2_j), whose two terms are summed apart
    ratio = over_root(g, result)
    turned = ratio.mT
    first = x1 * ratio.sum(-1, keepdim=True) - ratio @ x2
    second = x2 * turned.sum(-1, keepdim=True) - turned @ x1
    return first, second


def _pairs(self: torch.Tensor) -> torch.Tensor:
    """Return the numbers of both rows of each pair, in the order of ATen's result."""
    return torch.triu_indices(self.shape[0], self.shape[0], 1, device=self.device)


def _pdist(self: torch.Tensor, p: float = 2.0) -> object:
    i, j = _pairs(self)
    return aten.linalg_vector_norm(self.index_select(0, i) - self.index_select(0, j), p, [-1])


def _pdist_backward(
    grad: torch.Tensor, self: torch.Tensor, p: float, pdist: torch.Tensor
) -> object:
    """Return the backward in plain ops. It recomputes the distances from the rows, so that
    derivatives go through them."""
    i, j = _pairs(self)
    apart = self.index_select(0, i) - self.index_select(0, j)
    by_distance = grad.unsqueeze(-1)
    distance = aten.linalg_vector_norm(apart, p, [-1], True)
    part = by_distance * _norm_partial(apart, distance, p, [-1])
    return torch.zeros_like(self).index_add(0, i, part).index_add(0, j, -part)


register(
    "_cdist_forward",
    vjp={("x1", "x2"): _cdist_vjp},
    batch=leading(2, 2),
    cost="high",
    family="reduction",
)
register("_cdist_backward", decomposition=_cdist_backward, cost="high", family="reduction")
register(
    "_euclidean_dist",
    cost="high",
    vjp={("x1", "x2"): _euclidean_vjp},
    batch=leading(2, 2),
    family="reduction",
)
register(
    "_pdist_forward",
    vjp={"self": lambda g, self, p, result: aten._pdist_backward(g.contiguous(), self, p, result)},
    decomposition=_pdist,
    cost="high",
    family="reduction",
)
register("_pdist_backward", decomposition=_pdist_backward, cost="high", family="reduction")
