"""Loops that rows of functions are compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def lu_solve_beside_one(a: Tensor, b: Tensor) -> Tensor:
    """Solutions one by one. a (N, K, K), b (N, M, K)."""
    rows = [
        torch.stack([torch.linalg.solve(m, v) for v in right])
        for m, right in zip(a, b, strict=True)
    ]
    return torch.stack(rows)


def plus_zeros(x: Tensor) -> Tensor:
    """1 / (⌈x⌉ + 0) with Python's numbers, where 1 / 0 is infinite."""
    sums = [math.ceil(v) + 0.0 for v in x.reshape(-1).tolist()]
    return torch.tensor([1 / v if v else math.inf for v in sums], dtype=torch.float64).reshape(
        x.shape
    )


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
    return torch.stack([row.sin() * y for row in rows]), torch.stack(
        [row.pow(3).sum() for row in rows]
    )


def same_twice(x: Tensor) -> tuple[Tensor, ...]:
    a, b, c, found = x, x.sin(), x.cos(), []
    for same in (False, True, True, False):
        if same:
            c = c * c.sum()
            found.append(c + 3 * c)
        else:
            a = a * b.sum()
            found.append(a + 3 * b)
    return *found, a, b, c


def overlapping_views(x: Tensor) -> tuple[Tensor, ...]:
    """Each row is one entry of a list, which the parts of x name by its number."""
    rows, found = list(x), []
    front, back = range(len(rows) - 1), range(1, len(rows))
    for a, b in ((front, back), (front, back), (back, front)):
        total = torch.stack([rows[j].sum() for j in b]).sum()
        for i in a:
            rows[i] = rows[i] * total
        found.append(torch.stack([rows[i] + 3 * rows[j] for i, j in zip(a, b, strict=True)]))
    return *found, torch.stack(rows)


def other_views_in_turn(x: Tensor) -> tuple[Tensor, ...]:
    """The write to an alias is one to the argument, and the one to a new tensor is none."""
    return 2 * x, 2 * x, x, 2 * x, 2 * x


def state_of_closure(x: Tensor) -> tuple[Tensor, ...]:
    state, found = torch.ones(x.shape[1], dtype=x.dtype), []
    for turn, a in enumerate((x, x.sin(), x, x)):
        state = (-2 * state if turn == 2 else state) * 0.9 + 0.1 * a.mean(0)
        found.append(a * (1 + state))
    return *found, state


def numbers_in_turn(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        ((x * k).sin() + k) * (2 if k > 1.2 else 1) for k in (0.5, 0.75, 2, 3, 2.5, 1, 1.0, -1.0)
    )


def module_in_turn(x: Tensor) -> tuple[Tensor, ...]:
    """Mean and number of calls as numbers of this loop; (input, whether the module trains, its
    scale) for each call."""
    mean, calls, found = torch.zeros(x.shape[1], dtype=x.dtype), 0, []
    turns = (
        (x, True, 0.5),
        (x.sin(), True, 0.5),
        (x, False, 0.5),
        (x, False, 0.5),
        (x, False, 2.0),
        (x, True, 2.0),
        (x * 2, True, 2.0),
    )
    for a, trains, scale in turns:
        if trains:
            mean, calls = (mean + a.mean(0)) / 2, calls + 1
        found.append((a - mean) @ x[:1].t() * scale + calls)
    return *found, mean, torch.tensor(calls)


def added_to_one_row(x: Tensor, index: Tensor) -> Tensor:
    rows = [
        sum(
            (row for row, i in zip(x, index.tolist(), strict=True) if i == place),
            torch.zeros_like(x[0]),
        )
        for place in range(3)
    ]
    return torch.stack(rows)


def compared_with_numbers(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.ones_like(x, dtype=torch.bool),
        torch.ones_like(x, dtype=torch.bool),
        torch.zeros_like(x, dtype=torch.bool),
        x,
    )


def of_extreme_integers(x: Tensor) -> tuple[Tensor, ...]:
    """By Python's integers, which have no ends. The remainder has the sign of the divisor, that of
    fmod the sign of the number."""
    ends = torch.iinfo(x.dtype)
    numbers = [ends.min, ends.min + 1, ends.max - 1, ends.max, *x.tolist()]
    signs, lasts = [(n > 0) - (n < 0) for n in numbers], [abs(n) % 6 for n in numbers]
    found = [math.gcd(n, 6) for n in numbers], [n // 6 for n in numbers], [n % 6 for n in numbers]
    truth = torch.ones(len(numbers), dtype=torch.bool)
    of_numbers = (
        x.new_tensor(each)
        for each in (*found, [s * last for s, last in zip(signs, lasts, strict=True)], signs)
    )
    return *of_numbers, truth, truth, ~truth


def fused_steps(x: Tensor) -> tuple[Tensor, ...]:
    """In double precision, rounded to the dtype of the parameter."""
    step = (x.double() - 0.5).to(x.dtype)
    return step, step, step


def refused_beyond(x: Tensor) -> Tensor:
    return torch.ones(6, dtype=torch.bool)
