"""Ops of torch that make, cast, cut and index arrays, in jax.

A view is an array of its own, since arrays of jax are never written to. There is no
`torch.as_strided`: it reads memory, which an array does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax_dtypes import in_dtype, of_torch, together

__all__ = ["ARRAY_OPS"]

Op = Callable[..., Any]
Size = Sequence[int]

# --- arrays that are made -----------------------------------------------------------------------
# `**_` takes what says nothing of numbers: the device, the layout, and the like.


def _dtype(dtype: torch.dtype | None, otherwise: Any = None) -> Any:
    """Return the dtype that is asked for, or another one, or that of torch by default."""
    if dtype is not None:
        return of_torch(dtype)
    return of_torch(torch.get_default_dtype()) if otherwise is None else otherwise


def _filled(size: Size, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return jnp.full(size, value, _dtype(dtype, jnp.bool_ if isinstance(value, bool) else None))


def _of_ones(value: int, *size: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    (shape,) = size if isinstance(size[0], Sequence) else (size,)
    return jnp.full(shape, value, _dtype(dtype))


def _arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any
) -> Any:
    ends = (0, start) if end is None else (start, end)
    whole = all(isinstance(x, int) for x in (*ends, step))
    return jnp.arange(*ends, step, _dtype(dtype, jnp.int64 if whole else None))


def _eye(
    rows: int, columns: int | None = None, *, dtype: torch.dtype | None = None, **_: Any
) -> Any:
    return jnp.eye(rows, columns, dtype=_dtype(dtype))


def _linspace(
    start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **_: Any
) -> Any:
    return jnp.linspace(start, end, steps, dtype=_dtype(dtype))


def _full_like(x: Any, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return jnp.full(x.shape, value, _dtype(dtype, x.dtype))


def _like(value: int, x: Any, **options: Any) -> Any:
    return _full_like(x, value, **options)


def _new_full(x: Any, size: Size, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return jnp.full(size, value, _dtype(dtype, x.dtype))


def _new(value: int, x: Any, size: Size, **options: Any) -> Any:
    return _new_full(x, size, value, **options)


def _fill(x: Any, value: Any) -> Any:
    return jnp.full(x.shape, value, x.dtype)


# --- copies -------------------------------------------------------------------------------------


def _copy(x: Any, **_: Any) -> Any:
    return jnp.array(x)


def _to(x: Any, *args: Any, **options: Any) -> Any:
    """Return ``x`` in the dtype among the arguments, or in that of another array."""
    for arg in (*args, *options.values()):
        if isinstance(arg, torch.dtype):
            return in_dtype(x, arg)
        if isinstance(arg, jax.Array):
            return in_dtype(x, getattr(torch, arg.dtype.name))
    return x


def _cast(dtype: torch.dtype, x: Any, **_: Any) -> Any:
    return in_dtype(x, dtype)


# --- views --------------------------------------------------------------------------------------


def _transpose(x: Any, first: int, second: int) -> Any:
    return jnp.swapaxes(x, first, second) if x.ndim else x


def _narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    first = jnp.where(start < 0, start + x.shape[dim], start)
    return jax.lax.dynamic_slice_in_dim(x, first, length, dim)


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    index: list[Any] = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def _squeeze(x: Any, dim: int | Size | None = None) -> Any:
    if not x.ndim:
        return x
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(k for k in dims if x.shape[k] == 1))


def _expand(x: Any, size: Size) -> Any:
    added = len(size) - x.ndim
    sizes = [x.shape[k - added] if n == -1 else n for k, n in enumerate(size)]
    return jnp.broadcast_to(x, sizes)


def _unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    return tuple(jnp.moveaxis(x, dim, 0))


def _split(x: Any, sizes: int | Size, dim: int = 0) -> tuple[Any, ...]:
    if isinstance(sizes, int):
        ends = list(range(sizes, x.shape[dim], sizes))
    else:
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]
    return tuple(jnp.split(x, ends, dim))


def _chunk(x: Any, count: int, dim: int = 0) -> tuple[Any, ...]:
    return _split(x, max(1, -(-x.shape[dim] // count)), dim)


def _unfold(x: Any, dim: int, size: int, step: int) -> Any:
    rows = x if x.ndim else x.reshape(1)
    starts = jnp.arange(0, rows.shape[dim] - size + 1, step)
    places = starts[:, None] + jnp.arange(size)
    parts = jnp.moveaxis(rows, dim, -1)[..., places]
    parts = jnp.moveaxis(parts, -2, dim % rows.ndim)
    return parts if x.ndim else parts.reshape(size)


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if not x.ndim:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return jnp.diagonal(x, offset, dim1, dim2)


def _as_real(x: Any) -> Any:
    return jnp.stack([x.real, x.imag], -1)


def _as_complex(x: Any) -> Any:
    return jax.lax.complex(x[..., 0], x[..., 1])


def _item(x: Any, index: Any) -> Any:
    def of_jax(part: Any) -> Any:
        return jnp.array(part) if isinstance(part, list) else part

    return x[tuple(map(of_jax, index))] if isinstance(index, tuple) else x[of_jax(index)]


# --- indices ------------------------------------------------------------------------------------


def _index_select(x: Any, dim: int, index: Any) -> Any:
    if not x.ndim:
        return x
    return jnp.take(x, jnp.atleast_1d(index), dim)


def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if not index.size:  # its number of dimensions may be another one
        return jnp.empty(index.shape, x.dtype)
    rows, places = jnp.atleast_1d(x), jnp.atleast_1d(index)
    taken = jnp.take_along_axis(_cut(rows, places, dim), places, dim)
    return taken.reshape(index.shape)


def _cut(x: Any, like: Any, dim: int) -> Any:
    """Return the part of ``x`` that has the sizes of another array in each dimension but one."""
    cuts = [slice(n) for n in like.shape]
    cuts[dim] = slice(None)
    return x[tuple(cuts)]


def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    rows, places = jnp.atleast_1d(x), jnp.atleast_1d(index)
    grid = list(jnp.indices(places.shape, sparse=True))
    grid[dim] = places
    added = jnp.atleast_1d(source)[tuple(slice(n) for n in places.shape)]
    return rows.at[tuple(grid)].add(added).reshape(x.shape)


def _where(x: Any, condition: Any, other: Any) -> Any:
    return jnp.where(condition, *together(x, other))


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


ARRAY_OPS: dict[str, Op] = {
    "torch.zeros": partial(_of_ones, 0),
    "torch.ones": partial(_of_ones, 1),
    "torch.full": _filled,
    "torch.arange": _arange,
    "torch.eye": _eye,
    "torch.linspace": _linspace,
    "torch.zeros_like": partial(_like, 0),
    "torch.ones_like": partial(_like, 1),
    "torch.full_like": _full_like,
    "torch.Tensor.new_zeros": partial(_new, 0),
    "torch.Tensor.new_ones": partial(_new, 1),
    "torch.Tensor.new_full": _new_full,
    "torch.fill": _fill,
    "torch.clone": _copy,
    "torch.Tensor.contiguous": _copy,
    "torch.Tensor.to": _to,
    "torch.float": partial(_cast, torch.float32),
    "torch.double": partial(_cast, torch.float64),
    "torch.int": partial(_cast, torch.int32),
    "torch.long": partial(_cast, torch.int64),
    "torch.bool": partial(_cast, torch.bool),
    "torch.Tensor.byte": partial(_cast, torch.uint8),
    "torch.Tensor.view": jnp.reshape,
    "torch.reshape": jnp.reshape,
    "torch.transpose": _transpose,
    "torch.permute": jnp.transpose,
    "torch.select": lambda x, dim, place: jax.lax.index_in_dim(x, place, dim, keepdims=False),
    "torch.narrow": _narrow,
    "torch.slice": _slice,
    "torch.unsqueeze": jnp.expand_dims,
    "torch.squeeze": _squeeze,
    "torch.Tensor.expand": _expand,
    "torch.diagonal": _diagonal,
    "torch.unbind": _unbind,
    "torch.split": _split,
    "torch.chunk": _chunk,
    "torch.Tensor.unfold": _unfold,
    "torch.movedim": jnp.moveaxis,
    "torch.flatten": _flatten,
    "torch.view_as_real": _as_real,
    "torch.view_as_complex": _as_complex,
    "torch.Tensor.__getitem__": _item,
    "torch.index_select": _index_select,
    "torch.gather": _gather,
    "torch.scatter_add": _scatter_add,
    "torch.where": _where,
    "torch.masked_fill": _masked_fill,
}
"""By the name of an op in the matrix."""
