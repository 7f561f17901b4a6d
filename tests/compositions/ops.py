"""Ops made of several, for rules that a row of the matrix reaches in no other way: behind a sparse tensor, or in an in-place form.

Each takes and gives dense tensors; those that take no pattern have one of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ctc_of_log_softmax(x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """CTC of normalized probabilities, of which alone its gradient is that of the loss. x (T, N, C), targets (N, S); results (N,), by
    ATen's overload for lengths (N,) and by the one for numbers, where all of T and S counts."""
    log_probs, (steps, count, _), longest = x.log_softmax(-1), x.shape, targets.shape[1]
    by_tensors = torch.ops.aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths)[0]
    return by_tensors, torch.ops.aten._ctc_loss.default(log_probs, targets, [steps] * count, [longest] * count)[0]


def coalesced_values(values: Tensor) -> Tensor:
    """What a sparse tensor of `values` (4,), of which two share a place, holds after adding these up: (3,)."""
    indices = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 1]], device=values.device)
    return torch.sparse_coo_tensor(indices, values, (3, 4), check_invariants=True).coalesce().values()


def sparse_product(values: Tensor, dense: Tensor) -> Tensor:
    """A sparse 3 × 4 matrix of four `values` times a dense one (4, K): (3, K)."""
    indices = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 3]], device=values.device)
    return torch.sparse_coo_tensor(indices, values, (3, 4), check_invariants=True) @ dense


def masked_by_sparse(x: Tensor) -> Tensor:
    """The diagonal of x (N, M), zero elsewhere."""
    pattern = torch.eye(*x.shape, dtype=x.dtype, device=x.device).to_sparse()
    return x.sparse_mask(pattern).to_dense()


def sampled_product(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x / 2 + a @ b where the lower triangle of x (N, N) is, zero elsewhere."""
    product: Tensor = torch.sparse.sampled_addmm(x.tril().to_sparse_csr(), a, b, beta=0.5)
    return product.to_dense()


def overwritten_by_coins(x: Tensor) -> Tensor:
    """x plus a draw of zeros and ones, which forgets what it is written over."""
    return x.mul(2).bernoulli_(0.25) + x


def overwritten_by_normal(x: Tensor) -> Tensor:
    """x plus a normal draw, which forgets what it is written over."""
    return x.mul(2).normal_() + x
