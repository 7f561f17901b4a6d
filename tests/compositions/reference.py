"""Loops that compositions are compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def lu_solve_beside_one(a: Tensor, b: Tensor) -> Tensor:
    """Solutions one by one. a (N, K, K), b (N, M, K)."""
    rows = [torch.stack([torch.linalg.solve(m, v) for v in right]) for m, right in zip(a, b, strict=True)]
    return torch.stack(rows)


def plus_zeros(x: Tensor) -> Tensor:
    """1 / (⌈x⌉ + 0) with Python's numbers, where 1 / 0 is infinite."""
    sums = [math.ceil(v) + 0.0 for v in x.reshape(-1).tolist()]
    return torch.tensor([1 / v if v else math.inf for v in sums], dtype=torch.float64).reshape(x.shape)
