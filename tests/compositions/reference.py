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


def chosen(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() * y if (x * y).sum() > 0 else x * y.cos()


def doubled(x: Tensor) -> tuple[Tensor, Tensor]:
    steps = 0
    while x.abs().sum() < 20 and steps < 4:
        steps, x = steps + 1, 2 * x + x.sin()
    return x, torch.tensor(steps, dtype=x.dtype)


def filtered(rows: Tensor, state: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    each = []
    for row in rows:
        state = weight * state * row.cos() + row
        each.append(state.sin())
    return state, torch.stack(each)


def mapped(rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.stack([row.sin() * y for row in rows]), torch.stack([row.pow(3).sum() for row in rows])
