"""Register conversions and products of sparse tensors.

The cotangent of a sparse tensor is dense, with zeros at unspecified elements. A leaf gets its
gradient in its own layout (:func:`in_layout`).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...seam.keys import uncounted
from ...torch_private.native_tensors import mkldnn_layout
from ..derive.families import conj, linear, nondifferentiable
from ..record import Meta, register
from .core import spread


def _dense(t: torch.Tensor) -> torch.Tensor:
    """Return ``t`` in the strided layout.

    Below autograd the kernel for compressed layouts counts versions of its argument, though it
    writes nothing there.
    """
    if t.layout is torch.strided:
        return t
    return uncounted(t.to_dense)  # type: ignore[no-any-return]


def _mask_of(pattern: torch.Tensor) -> torch.Tensor:
    """Return a dense mask of the specified elements of a sparse tensor."""
    # ones, since an element that is specified may be zero
    pattern = pattern.detach()
    ones = _dense(pattern).new_ones(pattern.shape)
    return _dense(ones.sparse_mask(pattern)) != 0


def _at_pattern(g: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """Return a dense cotangent, with zeros at elements that the sparse tensor does not specify."""
    return torch.where(_mask_of(pattern), g, 0)


def in_layout(g: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return the dense gradient ``g`` in the layout of a sparse leaf.

    It specifies the elements that the leaf specifies. If any other element is not zero, it
    specifies all nonzero elements instead. For layouts other than COO and CSR it stays dense, since
    torch has no gradient in them.
    """
    if g.layout is not torch.strided or leaf.layout not in (torch.sparse_coo, torch.sparse_csr):
        return g
    # an element that is specified twice is one of its sum
    pattern = leaf
    if leaf.layout is torch.sparse_coo:
        pattern = leaf.coalesce()
    if not bool(torch.where(_mask_of(pattern), 0, g.detach()).any()):
        return g.sparse_mask(pattern)
    if leaf.layout is torch.sparse_csr:
        return g.to_sparse(layout=leaf.layout)
    return g.to_sparse(leaf.sparse_dim())


def _to_dense_back(g: torch.Tensor, self: torch.Tensor, masked_grad: bool | None) -> torch.Tensor:
    # as in torch, unspecified elements count as variables only if the caller says so
    if self.layout in (torch.strided, mkldnn_layout) or masked_grad is False:
        return g
    return _at_pattern(g, self)


def _elements(g: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense tensor at the indices of a sparse one."""
    g = _dense(g)
    if not len(indices):  # no sparse dimension: each element has all of the values
        return g.expand(indices.shape[1], *g.shape)
    return g[tuple(indices.unbind(0))]


def _values_back(g: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """Return the dense cotangent of a sparse tensor, from that of its values."""
    if self.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            self.indices(), g, self.shape, is_coalesced=True, check_invariants=False
        ).to_dense()
    if self.layout in (torch.sparse_csr, torch.sparse_bsr):
        compressed, plain = self.crow_indices(), self.col_indices()
    else:
        compressed, plain = self.ccol_indices(), self.row_indices()
    return torch.sparse_compressed_tensor(
        compressed, plain, g, self.shape, layout=self.layout, check_invariants=False
    ).to_dense()


linear("_sparse_coo_tensor_with_dims_and_tensors", {"values": _elements})
linear("_coalesce", {"self": lambda g: g})
linear("values", {"self": _values_back})
linear("sparse_mask", {"self": lambda g, mask: _at_pattern(g, mask)})
# as in torch; `values` of a coalesced tensor has a gradient
nondifferentiable("_values _indices", batch=None)


def _to_sparse_back(g: torch.Tensor, self_meta: Meta, self_blocksize: Any) -> torch.Tensor:
    """Return the cotangent in the layout of the converted tensor. Only a caller passes a sparse
    cotangent."""
    if g.layout in (self_meta.layout, torch.strided):
        return g
    if self_meta.layout is torch.strided:
        return g.to_dense()
    return g.to_sparse(layout=self_meta.layout, blocksize=self_blocksize)


linear(
    "_to_sparse _to_sparse.sparse_dim _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc",
    {"self": _to_sparse_back},
)
linear("_to_dense", {"self": _to_dense_back})
linear("to_mkldnn", {"self": lambda g: _dense(g)})
register(
    "sparse_sampled_addmm",
    cost="high",
    abstract=lambda self: self.clone(),
    vjp={
        "self": lambda g, self, beta: _at_pattern(g, self) * conj(beta),
        "mat1": lambda g, self, mat2, alpha: (_at_pattern(g, self) @ mat2.mH) * conj(alpha),
        "mat2": lambda g, self, mat1, alpha: (mat1.mH @ _at_pattern(g, self)) * conj(alpha),
    },
)
register(
    "_sparse_addmm",
    cost="high",
    vjp={
        "self": lambda g, beta: g * conj(beta),
        "mat1": lambda g, mat1, mat2, alpha: _at_pattern(g @ _dense(mat2).mH, mat1) * conj(alpha),
        "mat2": lambda g, mat1, alpha: (mat1.mH @ g) * conj(alpha),
    },
)
register(
    "_sparse_sparse_matmul",
    cost="high",
    vjp={
        "self": lambda g, self, other: _at_pattern(_dense(g) @ _dense(other).mH, self),
        "other": lambda g, self, other: _at_pattern(_dense(self).mH @ _dense(g), other),
    },
)
linear(
    "_sparse_sum.dim",
    {"self": lambda g, self, dim: _at_pattern(spread(_dense(g), self.shape, dim, False), self)},
)


def _softmax_back(g: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the formula for dense tensors. Unspecified elements have a probability of zero."""
    p = result.to_dense()
    gp = _dense(g) * p
    return gp - p * gp.sum(dim, keepdim=True)


def _log_softmax_back(g: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    g = _at_pattern(_dense(g), result)
    return g - _at_pattern(result.to_dense().exp(), result) * g.sum(dim, keepdim=True)


register("_sparse_softmax", vjp={"self": _softmax_back})
register("_sparse_log_softmax", vjp={"self": _log_softmax_back})


def _mm_reduce(
    self: torch.Tensor, other: torch.Tensor, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reduce the products of each row's specified elements with a column. A row without specified
    elements gives zero.

    ATen's backward kernel is not used. It reads the positions of the extrema, which the forward
    kernel stores only if torch's autograd records.
    """
    dense, specified = _dense(self), _mask_of(self)
    count = specified.sum(1, keepdim=True)
    # the second result is for that kernel alone
    out = _reduce_products(dense, other, specified, count, reduce)
    return out, count.new_empty(0)


def _reduce_products(
    dense: torch.Tensor,
    other: torch.Tensor,
    specified: torch.Tensor,
    count: torch.Tensor,
    reduce: str,
) -> torch.Tensor:
    """Return the first result of :func:`_mm_reduce`. ``count``: the specified elements per row."""
    if reduce == "sum":
        return dense @ other
    if reduce == "mean":
        return (dense @ other) / count.clamp(min=1)
    # unspecified elements are no zeros for an extreme
    each = dense.unsqueeze(2) * other
    if reduce == "amax":
        extreme = torch.where(specified.unsqueeze(2), each, -math.inf).amax(1)
    else:
        extreme = torch.where(specified.unsqueeze(2), each, math.inf).amin(1)
    return torch.where(count > 0, extreme, 0)


register("_sparse_mm_reduce_impl", decomposition=_mm_reduce, cost="high")
