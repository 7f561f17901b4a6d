"""The few ops that the transforms themselves run on: copies, simple views, sums and matrix products."""

from __future__ import annotations

from typing import Any

import torch

from . import derive_batch as batch
from .derive import linear, multilinear, random, view
from .record import register


def _sum_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    return (
        args[0].sum(list(range(1, args[0].dim())), **kwargs)
        if args[0].dim() > 1
        else args[0].clone()
        if not kwargs
        else args[0].to(kwargs["dtype"])
    )


def spread(g: torch.Tensor, shape: Any, dim: Any, keepdim: bool) -> torch.Tensor:
    """The cotangent of a sum, expanded back over the dimensions that were summed."""
    rank = len(shape)
    if not keepdim and rank:
        for d in sorted(
            {d % rank for d in (dim if isinstance(dim, (list, tuple)) and dim else [dim] if isinstance(dim, int) else range(rank))}
        ):
            g = g.unsqueeze(d)
    return g.expand(shape)


linear("sum", {"self": lambda g, self_shape: g.expand(self_shape)}, _sum_batch, family="reduction")
linear(
    "sum.dim_IntList",
    {"self": lambda g, self_shape, dim, keepdim: spread(g, self_shape, dim, keepdim)},
    batch.along(1),
    family="reduction",
)


def _copy_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """A memory format is one of the logical tensor; the physical one, of one dimension more, keeps the strides that it has."""
    if kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
        kwargs = {**kwargs, "memory_format": torch.preserve_format}
    return func(*args, **kwargs)


linear("clone", {"self": lambda g: g}, _copy_batch)
linear("_to_copy", {"self": lambda g: g}, _copy_batch)
register("detach", nondiff=True, batch=batch.elementwise, family="view")


def _expand_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    x, shape, *rest = args
    missing = len(shape) - (x.dim() - 1)
    return func(x.reshape(size, *(1,) * missing, *x.shape[1:]) if missing else x, [size, *shape], *rest, **kwargs)


def _unbroadcast(g: torch.Tensor, shape: Any) -> torch.Tensor:
    from ..autograd.engine import sum_to

    return sum_to(g, shape)


view("expand", lambda g, self_shape: _unbroadcast(g, self_shape), _expand_batch)
view("view", lambda g, self_shape: g.reshape(self_shape), batch.sizes(1))
linear("_unsafe_view", {"self": lambda g, self_shape: g.reshape(self_shape)}, batch.sizes(1))
linear("_reshape_alias", {"self": lambda g, self_shape: g.reshape(self_shape)}, lambda f, n, b, a, k: a[0].reshape([n, *a[1]]))
view("t", lambda g: g.t(), lambda f, n, b, a, k: a[0].transpose(1, 2) if a[0].dim() == 3 else a[0].view_as(a[0]))
view("transpose.int", lambda g, dim0, dim1: g.transpose(dim0, dim1), batch.along(1, 2))
view(
    "unsqueeze",
    lambda g, dim: g.squeeze(dim),
    lambda f, n, b, a, k: f(a[0], a[1] + 1 if a[1] >= 0 else a[1]),
)


def _squeeze_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Squeeze named dimensions, or all of one element, but never the batch dimension."""
    x = args[0]
    rank = x.dim() - 1
    dims = args[1] if len(args) > 1 else list(range(rank))
    dims = [dims] if isinstance(dims, int) else dims
    return torch.ops.aten.squeeze.dims(x, [batch.shift(d, rank) for d in dims] if rank else [])


def _unsqueeze_all(g: torch.Tensor, shape: Any) -> torch.Tensor:
    return g.reshape(shape)


view("squeeze", lambda g, self_shape: _unsqueeze_all(g, self_shape), _squeeze_batch)
view("squeeze.dim squeeze.dims", lambda g, self_shape: _unsqueeze_all(g, self_shape), _squeeze_batch)


def _select_backward(g: torch.Tensor, self_shape: Any, dim: int, index: int) -> torch.Tensor:
    return torch.ops.aten.select_backward(g, self_shape, dim, index)


view("select.int", _select_backward, batch.along(1))
linear(
    "select_backward",
    {"grad_output": lambda g, dim, index: g.select(dim, index)},
    lambda f, n, b, a, k: f(a[0], [n, *a[1]], batch.shift(a[2], len(a[1])), a[3]),
)
multilinear(
    "mm",
    {"self": lambda g, mat2: g.mm(mat2.mH), "mat2": lambda g, self: self.mH.mm(g)},
    lambda f, n, b, a, k: torch.matmul(a[0], a[1]),
)
multilinear(
    "bmm",
    {"self": lambda g, mat2: g.bmm(mat2.mH), "mat2": lambda g, self: self.mH.bmm(g)},
    lambda f, n, b, a, k: torch.matmul(a[0], a[1]),
)


def _same_size(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


for _name in ("ones_like", "zeros_like", "empty_like", "full_like"):
    register(_name, nondiff=True, batch=_same_size, family="factory")
for _name in ("new_zeros", "new_empty", "new_ones", "new_full"):
    register(_name, nondiff=True, batch=batch.sizes(1), family="factory")
register(
    "new_empty_strided",
    nondiff=True,
    batch=lambda f, n, b, a, k: f(a[0], [n, *a[1]], [max(1, sum((s - 1) * t for s, t in zip(a[1], a[2], strict=True)) + 1), *a[2]]),
    family="factory",
)
linear("copy", {"src": lambda g: g, "self": lambda g: None}, batch.elementwise, family="inplace", extra={"overwrites": "self"})
for _name in ("zero", "fill.Scalar"):
    register(_name, vjp={"self": lambda g: None}, jvp={"self": lambda self_t: None}, batch=batch.elementwise, family="inplace")
register(
    "fill.Tensor",
    vjp={"self": lambda g: None, "value": lambda g: g.sum()},
    jvp={"self": lambda self_t: None, "value": lambda value_t: value_t},
    batch=lambda f, n, b, a, k: f(a[0], a[1]) if not b[1] else a[0].copy_(a[1].reshape(n, *(1,) * (a[0].dim() - 1))),
    family="op",
)


def _cat_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    tensors, dim = args[0], args[1] if len(args) > 1 else 0
    full = [batch.expand(t, b, size) for t, b in zip(tensors, batched[0], strict=True)]
    rank = max(t.dim() for t in full) - 1
    return func([t for t in full if t.dim() == rank + 1 or t.numel()], batch.shift(dim, rank))


def _cat_vjp(g: torch.Tensor, tensors: Any, dim: int) -> list[Any]:
    """Cut the cotangent into the pieces; one-dimensional empty tensors, which ATen allows anywhere, get an empty one."""
    out, start = [], 0
    for shape in tensors:
        if len(shape) == 1 and shape[0] == 0:
            out.append(g.new_zeros(0))
            continue
        out.append(g.narrow(dim, start, shape[dim]))
        start += shape[dim]
    return out


linear("cat", {"tensors": lambda g, tensors_shape, dim: _cat_vjp(g, tensors_shape, dim)}, _cat_batch, family="joining")


def _pieces(gs: list[Any], shape: Any, dtype: Any, sizes: Any, dim: int) -> torch.Tensor:
    like = next(g for g in gs if g is not None)
    parts = []
    for g, n in zip(gs, sizes, strict=True):
        if g is None:
            piece = list(shape)
            piece[dim] = n
            g = like.new_zeros(piece)
        parts.append(g)
    return torch.cat(parts, dim)


def _split_sizes(shape: Any, size: int, dim: int) -> list[int]:
    n = shape[dim]
    return [min(size, n - i) for i in range(0, n, size)] if n and size else [n]


register(
    "split_with_sizes",
    vjp={"self": lambda gs, self_shape, self_dtype, split_sizes, dim: _pieces(gs, self_shape, self_dtype, split_sizes, dim)},
    jvp="linear",
    batch=lambda f, n, b, a, k: f(a[0], a[1], batch.shift(a[2] if len(a) > 2 else 0, a[0].dim() - 1)),
    family="view",
)
register(
    "split.Tensor",
    vjp={
        "self": lambda gs, self_shape, self_dtype, split_size, dim: _pieces(
            gs, self_shape, self_dtype, _split_sizes(self_shape, split_size, dim), dim
        )
    },
    jvp="linear",
    batch=lambda f, n, b, a, k: f(a[0], a[1], batch.shift(a[2] if len(a) > 2 else 0, a[0].dim() - 1)),
    family="view",
)
view(
    "slice.Tensor",
    lambda g, self_shape, dim, start, end, step: torch.ops.aten.slice_backward(
        g, self_shape, dim, 0 if start is None else start, self_shape[dim] if end is None else end, step
    ),
    lambda f, n, b, a, k: f(a[0], batch.shift(a[1] if len(a) > 1 else 0, a[0].dim() - 1), *a[2:]),
)
linear(
    "slice_backward",
    {"grad_output": lambda g, dim, start, end, step: torch.ops.aten.slice(g, dim, start, end, step)},
    lambda f, n, b, a, k: f(a[0], [n, *a[1]], batch.shift(a[2], len(a[1])), *a[3:]),
)


random("rand_like randn_like", shape_only=True)
random("randint_like randint_like.low_dtype", shape_only=True)
random("bernoulli")
