"""Scalar-loop references of the custom ops and functions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def shift_scale(x: Tensor, shift: Tensor, scale: float) -> Tensor:
    pairs = zip(x.reshape(-1).tolist(), shift.reshape(-1).tolist(), strict=True)
    return torch.tensor([(a + b) * scale for a, b in pairs], dtype=torch.float64).reshape(x.shape)


def log_cosh(x: Tensor) -> Tensor:
    return torch.tensor(
        [math.log(math.cosh(v)) for v in x.reshape(-1).tolist()], dtype=torch.float64
    ).reshape(x.shape)


def _each(f: Callable[..., float], *xs: Tensor) -> Tensor:
    rows = zip(*(x.reshape(-1).tolist() for x in xs), strict=True)
    return torch.tensor([f(*row) for row in rows], dtype=torch.float64).reshape(xs[0].shape)


def cube(x: Tensor) -> Tensor:
    return _each(lambda a: a * a * a, x)


def square(x: Tensor) -> Tensor:
    return _each(lambda a: a * a, x)


def power(x: Tensor, exponent: int, negate: bool = False) -> Tensor:
    return _each(lambda a: (-1 if negate else 1) * a**exponent, x)


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.reshape(-1, x.shape[-1]).tolist()
    places = torch.tensor([row.index(max(row)) for row in rows]).reshape(*x.shape[:-1], 1)
    return torch.tensor([max(row) for row in rows], dtype=torch.float64).reshape(
        places.shape
    ), places


def second_of_two(x: Tensor, y: Tensor) -> Tensor:
    return _each(lambda a, b: a - b, x, y)


def exp(x: Tensor) -> Tensor:
    return _each(math.exp, x)


def once(x: Tensor) -> Tensor:
    return _each(math.sin, x)


def beside_a_constant(x: Tensor) -> tuple[Tensor, Tensor]:
    return _each(math.sin, x), torch.tensor([0.0, 1.0, 2.0])


def sin_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    return _each(math.sin, x), _each(math.cos, x)
