"""Define the kinds of fault, as functions of a tuple of tensors.

They use only arithmetic and views, so they work on the values that a target nests (batched,
recorded, traced). If a kind does not apply, the function returns its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch

__all__ = ["KINDS", "differs"]

Tensors = tuple[Any, ...]


def _is_inexact(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _each(change: Callable[[Any], object]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tuple(
        change(tensor) if _is_inexact(tensor) else tensor for tensor in tensors
    )


def _factor(value: Any) -> Any:
    """Make a number of double precision larger by a thousandth.

    In smaller dtypes that may be less than what rounding is allowed to change.
    """
    return value * 1.001 if value.dtype in (torch.float64, torch.complex128) else value


def _drop(tensors: Tensors) -> Tensors:
    """Zero one of several tensors, or the first slice of a single one."""
    places = [place for place, tensor in enumerate(tensors) if _is_inexact(tensor)]
    if not places:
        return tensors
    place = places[-1]
    x = tensors[place]
    if len(places) > 1:
        return _with(tensors, place, x * 0)
    dim = next((dim for dim, size in enumerate(x.shape) if size > 1), None)
    if dim is None:
        return tensors
    # A product, since kinds use only arithmetic and views (see above).
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    factors = torch.ones(shape, dtype=x.dtype, device=x.device)
    factors.select(dim, 0).zero_()
    return _with(tensors, place, x * factors)


def _swap(tensors: Tensors) -> Tensors:
    """Exchange two tensors of equal shape and dtype."""
    for place, other_place in combinations(range(len(tensors)), 2):
        first, second = tensors[place], tensors[other_place]
        are_inexact = _is_inexact(first) and _is_inexact(second)
        if are_inexact and (first.shape, first.dtype) == (second.shape, second.dtype):
            return _with(_with(tensors, place, second), other_place, first)
    return tensors


def _transpose(tensors: Tensors) -> Tensors:
    """Exchange two dimensions of equal size in the first tensor that has them."""
    for place, tensor in enumerate(tensors):
        if _is_inexact(tensor):
            for dim, other_dim in combinations(range(tensor.ndim), 2):
                if tensor.shape[dim] == tensor.shape[other_dim] > 1:
                    return _with(tensors, place, tensor.transpose(dim, other_dim))
    return tensors


def _with(tensors: Tensors, place: int, value: object) -> Tensors:
    return (*tensors[:place], value, *tensors[place + 1 :])


KINDS: dict[str, Callable[[Tensors], Tensors]] = {
    "sign": _each(lambda x: -x),
    "factor": _each(_factor),
    "dropped": _drop,
    "swapped": _swap,
    "transposed": _transpose,
    "conjugate": _each(lambda x: x.conj() if x.is_complex() else x),
    "zero": _each(lambda x: x * 0),
}


def differs(result: Any, other: Any) -> bool:
    """Return whether two results, tuples of plain tensors, differ in any element. NaN equals
    NaN.
    """
    if isinstance(result, tuple | list):
        if len(result) != len(other):
            return True
        return any(map(differs, result, other))
    if not isinstance(result, torch.Tensor):
        return False
    if (result.shape, result.dtype) != (other.shape, other.dtype):
        return True
    return not torch.allclose(result.detach(), other.detach(), rtol=0.0, atol=0.0, equal_nan=True)
