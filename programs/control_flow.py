"""Control flow by the value of a tensor, in the operators that torch captures as one call:
``cond``, ``map``, ``scan``, ``while_loop``.

They are called as a graph calls them. ``torch.cond`` itself would first compile the program.
"""

from __future__ import annotations

import torch
from torch import Tensor

_operators = torch.ops.higher_order


def chosen(x: Tensor, y: Tensor) -> Tensor:
    """sin(x) y where the sum of x y is positive, else x cos(y); both of one shape."""
    found: tuple[Tensor] = _operators.cond(
        (x * y).sum() > 0, lambda x, y: (x.sin() * y,), lambda x, y: (x * y.cos(),), (x, y)
    )
    return found[0]


def doubled(x: Tensor) -> tuple[Tensor, Tensor]:
    """x ← 2 x + sin(x) until its absolute values add up to 20 or more, at most four times; and the
    number of steps, as x's dtype."""

    def small(steps: Tensor, x: Tensor) -> Tensor:
        return (x.abs().sum() < 20) & (steps < 4)

    def step(steps: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return steps + 1, 2 * x + x.sin()

    steps, last = _operators.while_loop(
        small, step, (torch.zeros((), dtype=torch.int64, device=x.device), x), ()
    )
    return last, steps.to(x.dtype)


def filtered(rows: Tensor, state: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """state ← weight state cos(row) + row for each row (T, n); the last state (n,) and sin of every
    new one: (T, n)."""

    def step(state: Tensor, row: Tensor, weight: Tensor) -> list[Tensor]:
        new = weight * state * row.cos() + row
        return [new, new.sin()]

    last, each = _operators.scan(step, [state], [rows], (weight,))
    return last, each


def mapped(rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For each row (T, n): sin(row) y (T, n), and the sum of row³ (T,)."""
    products, sums = _operators.map_impl(
        lambda row, y: (row.sin() * y, row.pow(3).sum()), (rows,), (y,)
    )
    return products, sums
