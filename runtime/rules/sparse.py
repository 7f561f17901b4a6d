"""Sparse tensors: conversions and products. The gradient of a sparse tensor is a dense one, zero where the tensor specifies nothing."""

from __future__ import annotations

from typing import Any

import torch

from .derive import conj, linear
from .record import register

aten = torch.ops.aten


def _at_pattern(g: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """The part of a dense cotangent that a sparse tensor specifies."""
    specified = torch.ones(pattern.shape, device=pattern.device).sparse_mask(pattern.detach()).to_dense()
    return torch.where(specified != 0, g, 0)


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


def _mm_reduce_back(g: Any, self: Any, other: Any, reduce: str, result1: Any, needs: Any) -> tuple[Any, Any]:
    wanted = ["self" in needs, "other" in needs]
    grad_self, grad_other = aten._sparse_mm_reduce_impl_backward(self, g, other, reduce, result1, wanted)
    return grad_self.to_dense() if wanted[0] else None, grad_other if wanted[1] else None


register("_sparse_mm_reduce_impl", vjp={("self", "other"): _mm_reduce_back}, nondiff=(1,))
