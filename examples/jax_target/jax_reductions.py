"""Ops of torch that reduce or sort along dimensions, in jax.

An array without dimensions has the dimension 0 for torch. An empty list of dimensions is all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import torch
from jax_dtypes import as_counted, in_dtype

__all__ = ["REDUCTIONS"]

Op = Callable[..., Any]
Dim = int | Sequence[int] | None


def _axis(x: Any, dim: Dim) -> Any:
    """Return the dimensions of jax for those of torch."""
    if not x.ndim or dim is None or isinstance(dim, int):
        return dim if x.ndim else None
    return tuple(dim) or None


def _counting(
    f: Op, x: Any, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    numbers = as_counted(x) if dtype is None else in_dtype(x, dtype)
    return f(numbers, axis=_axis(x, dim), keepdims=keepdim, dtype=numbers.dtype)


def _mean(
    x: Any, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return jnp.mean(in_dtype(x, dtype), axis=_axis(x, dim), keepdims=keepdim)


def _extreme(f: Op, x: Any, dim: Dim = None, keepdim: bool = False) -> Any:
    return f(x, axis=_axis(x, dim), keepdims=keepdim)


def _truth(f: Op, x: Any, dim: Dim = None, keepdim: bool = False) -> Any:
    truths = f(x, axis=_axis(x, dim), keepdims=keepdim)
    # torch keeps bytes, which were its truths once
    return truths.astype(x.dtype) if x.dtype == jnp.uint8 else truths


def _place(f: Op, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return f(x, axis=_axis(x, dim), keepdims=keepdim)


def _extreme_and_place(f: Op, x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    rows = jnp.atleast_1d(x)
    places = f(rows, axis=dim, keepdims=True)
    results = jnp.take_along_axis(rows, places, dim), places
    if not x.ndim:
        return results[0].reshape(()), places.reshape(())
    return results if keepdim else (results[0].squeeze(dim), places.squeeze(dim))


def _spread(
    f: Op,
    x: Any,
    dim: Dim | bool = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    if isinstance(dim, bool):  # var(x, unbiased)
        return _spread(f, x, None, dim, keepdim, correction=correction)
    less = int(unbiased) if correction is None else correction
    return f(x, axis=_axis(x, dim), ddof=less, keepdims=keepdim)


def _sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> tuple[Any, Any]:
    rows = jnp.atleast_1d(x)
    places = jnp.argsort(rows, dim, stable=True, descending=descending)
    return jnp.take_along_axis(rows, places, dim).reshape(x.shape), places.reshape(x.shape)


def _topk(
    x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Any, Any]:
    values, places = _sort(x, dim, largest)
    if not x.ndim:
        return values, places
    kept = jnp.arange(k)
    return jnp.take(values, kept, dim), jnp.take(places, kept, dim)


REDUCTIONS: dict[str, Op] = {
    "torch.sum": partial(_counting, jnp.sum),
    "torch.prod": partial(_counting, jnp.prod),
    "torch.mean": _mean,
    "torch.amax": partial(_extreme, jnp.amax),
    "torch.amin": partial(_extreme, jnp.amin),
    "torch.all": partial(_truth, jnp.all),
    "torch.any": partial(_truth, jnp.any),
    "torch.argmax": partial(_place, jnp.argmax),
    "torch.argmin": partial(_place, jnp.argmin),
    "torch.max.reduction_with_dim": partial(_extreme_and_place, jnp.argmax),
    "torch.min.reduction_with_dim": partial(_extreme_and_place, jnp.argmin),
    "torch.var": partial(_spread, jnp.var),
    "torch.std": partial(_spread, jnp.std),
    "torch.sort": _sort,
    "torch.topk": _topk,
}
"""By the name of an op in the matrix."""
