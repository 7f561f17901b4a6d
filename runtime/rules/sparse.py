"""Sparse tensors: conversions and products. The gradient of a sparse tensor is a dense one, zero where the tensor specifies nothing."""

from __future__ import annotations

import math

import torch

from .derive import conj, linear
from .record import register


def _specified(pattern: torch.Tensor) -> torch.Tensor:
    """A dense mask of the elements that a sparse tensor specifies."""
    return torch.ones(pattern.shape, device=pattern.device).sparse_mask(pattern.detach()).to_dense() != 0


def _at_pattern(g: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """The part of a dense cotangent that a sparse tensor specifies."""
    return torch.where(_specified(pattern), g, 0)


def _to_dense_back(g: torch.Tensor, self: torch.Tensor, masked_grad: bool | None) -> torch.Tensor:
    return g if self.layout is torch.strided or masked_grad is False else _at_pattern(g, self)


linear("_to_sparse _to_sparse.sparse_dim", {"self": lambda g: g})
linear("_to_dense", {"self": _to_dense_back})
register(
    "sparse_sampled_addmm",
    vjp={
        "self": lambda g, self, beta: _at_pattern(g, self) * conj(beta),
        "mat1": lambda g, self, mat2, alpha: (_at_pattern(g, self) @ mat2.mH) * conj(alpha),
        "mat2": lambda g, self, mat1, alpha: (mat1.mH @ _at_pattern(g, self)) * conj(alpha),
    },
)


def _mm_reduce(self: torch.Tensor, other: torch.Tensor, reduce: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Each result is a reduction over the specified elements of a row times those of a column; none of them: zero.

    ATen's own backward kernel reads the places of the extrema, which the forward one writes for tensors of torch's engine only.
    """
    dense, specified = self.to_dense(), _specified(self)
    count = specified.sum(1, keepdim=True)
    if reduce in ("sum", "mean"):
        out = dense @ other
        out = out / count.clamp(min=1) if reduce == "mean" else out
    else:
        each = dense.unsqueeze(2) * other
        none = -math.inf if reduce == "amax" else math.inf
        each = torch.where(specified.unsqueeze(2), each, none)
        out = torch.where(count > 0, each.amax(1) if reduce == "amax" else each.amin(1), 0)
    return out, count.new_empty(0)


register("_sparse_mm_reduce_impl", decomposition=_mm_reduce)
