"""Register sums, means, products, extrema, variances, order statistics, counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...rules.derive.reduction_records import Dims
from ...seam.call_types import Arguments, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.families import conj, conj_of, linear, nondifferentiable, scaled
from ..derive.optional import add_present
from ..derive.reduction_records import (
    along_default,
    count_of,
    dims_of,
    reduction,
    restored,
    rows,
    selecting,
    summed,
    whole,
)
from ..elementwise.overflow_safe import product_of_others, times
from ..record import asking, parameters, register
from .norms import over_root

aten = torch.ops.aten

# ---- sums and means (sum itself is in core)


def _mean_vjp(
    g: torch.Tensor, shape: Sequence[int], dim: Dims = None, keepdim: bool = False
) -> torch.Tensor:
    """Return the cotangent of the mean, divided by the number of elements and spread over them."""
    each = g / max(count_of(shape, dim), 1)  # of no elements: no division by zero
    if each.dim():
        each = restored(each, len(shape), dim, keepdim)
    return each.expand(shape)


def _mean_abstract(
    self: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return an abstract mean.

    Torch's abstract kernel makes a complex number of the count of elements, so it would fix the
    sizes of a complex tensor. A sum has the same shape and dtype.
    """
    if (dtype or self.dtype).is_complex:
        return self.sum(dim=dim, keepdim=keepdim, dtype=dtype)
    mean: torch.Tensor = aten.mean.dim(self, dim, keepdim, dtype=dtype)
    return mean


linear(
    "mean",
    {"self": lambda g, self_shape: _mean_vjp(g, self_shape)},
    whole(lambda r, **kw: r.mean(1, **kw)),
    abstract=asking("self", "dtype")(lambda self, dtype: _mean_abstract(self, dtype=dtype)),
    family="reduction",
)
linear(
    "mean.dim",
    {"self": lambda g, self_shape, dim, keepdim: _mean_vjp(g, self_shape, dim, keepdim)},
    batch.along(1),
    abstract=_mean_abstract,
    family="reduction",
)
reduction("nansum", lambda self, result_dtype: (~self.isnan()).to(result_dtype), batch.along(1))


# ---- products. A factor beside a zero has a gradient of zero, whatever the cotangent is


def _times(t: torch.Tensor, partial: torch.Tensor | int) -> object:
    """Return ``t * partial``, where zero times anything is zero. A 0-d tensor has the partial 1."""
    if isinstance(partial, torch.Tensor):
        return times(t, partial)
    return t * partial


reduction(
    "prod",
    lambda self, result_dtype: product_of_others(self.to(result_dtype).reshape(-1), 0).reshape(
        self.shape
    ),
    whole(lambda r, **kw: r.prod(1, **kw)),
    dim=False,
    product=_times,
)
reduction(
    "prod.dim_int",
    lambda self, dim, result_dtype: (
        product_of_others(self.to(result_dtype), dim) if self.dim() else 1
    ),
    batch.along(1),
    product=_times,
)


# ---- extrema: ops without indices share the gradient equally between ties, as in torch


def _share(self: torch.Tensor, result: torch.Tensor, dim: Dims) -> torch.Tensor:
    """Return for each element its share of the cotangent: 1 / n for each of n ties, else 0."""
    mask = self == result
    return mask.to(self.dtype) / summed(mask, dim, True)  # the sum counts the ties


# Two functions, because torch distinguishes them at NaN: `amax` only compares, which gives 0/0
# there, and `max` shares the gradient among the NaNs.
def _share_among_all(self: torch.Tensor, result: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # NaN equals nothing, so a result that is NaN needs a mask of its own
    mask = (self == result) | (self.isnan() & result.isnan())
    return mask, 1 / mask.sum().to(self.dtype)


def _aminmax(
    self: torch.Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the minimum and the maximum, by two reductions."""
    # an empty list means all dimensions
    dims = []
    if dim is not None:
        dims.append(dim)
    return self.amin(dims, keepdim), self.amax(dims, keepdim)


reduction("amax amin", _share, batch.along(1))
reduction("max", _share_among_all, whole(lambda r: r.amax(1)), dim=False)
reduction("min", _share_among_all, whole(lambda r: r.amin(1)), dim=False)
reduction("median", _share_among_all, whole(lambda r: r.median(1).values), dim=False, cost="high")
reduction(
    "nanmedian", _share_among_all, whole(lambda r: r.nanmedian(1).values), dim=False, cost="high"
)


def _aminmax_vjp(
    gs: Sequence[torch.Tensor | None],
    self: torch.Tensor,
    dim: int | None,
    keepdim: bool,
    result0: torch.Tensor,
    result1: torch.Tensor,
) -> object:
    """Return the gradient by both extrema, of which each shares its cotangent among ties."""

    def restore(t: torch.Tensor) -> torch.Tensor:
        """Return a result with the reduced dimension as one of length one."""
        return restored(t, self.dim(), dim, keepdim)

    parts = []
    for g, extreme in zip(gs, (result0, result1), strict=True):
        if g is not None:
            parts.append(restore(g) * _share(self, restore(extreme), dim))
    return add_present(*parts)


register("aminmax", vjp={"self": _aminmax_vjp}, decomposition=_aminmax, family="reduction")
selecting("max.dim min.dim", batch.along(1))
selecting("median.dim nanmedian.dim", batch.along(1), cost="high")
selecting("mode", along_default(1), cost="high")
selecting("kthvalue", along_default(2), cost="high")


# ---- logsumexp


def _share_of_sum(self: torch.Tensor, result: torch.Tensor, dim: Dims) -> torch.Tensor:
    """Return ``exp(x - logsumexp(x))``. Elements of +inf get equal shares. If all are -inf, shares
    are zero. torch gives NaN in both cases."""
    # an infinite result minus itself would be NaN, so such rows are computed apart
    infinite = result.isinf()
    ties = (self == result) & (result.real == math.inf)
    equal = ties.to(self.dtype) / summed(ties, dim, True).clamp(min=1)
    below = torch.where(infinite, 0.0, self) - torch.where(infinite, 0.0, result)
    return torch.where(infinite, equal, below.exp())


reduction("logsumexp", _share_of_sum, batch.along(1))


# ---- variances: the correction defaults to one


def _deviation(self: torch.Tensor, dim: Any, correction: Any) -> torch.Tensor:
    """Return the conjugate of the gradient of the variance."""
    n = count_of(self.shape, dim)
    if correction is None:
        correction = 1
    dims = dims_of(dim, self.dim())
    mean = self  # of a 0-d tensor, whose only element is its mean
    if dims:
        mean = self.mean(dims, keepdim=True)
    off = conj(self - mean)
    if n != correction:
        return off * (2 / (n - correction))  # type: ignore[no-any-return]
    # The number 2 / 0 is an error in Python, and infinite in torch.
    return off * math.inf  # type: ignore[no-any-return]


def _std_partial(
    self: torch.Tensor, result: torch.Tensor, dim: object, correction: object
) -> tuple[torch.Tensor, torch.Tensor]:
    # A deviation of zero gets a gradient of zero, as in torch.
    return result != 0, _deviation(self, dim, correction) * over_root(0.5, result)


def _with_mean(spread: Callable[..., object]) -> object:
    """Return the decomposition of an op that returns a spread (variance or deviation) and the
    mean."""

    def decompose(
        self: torch.Tensor, dim: Dims = None, *, correction: object = None, keepdim: bool = False
    ) -> object:
        """Return the spread and the mean."""
        value = spread(self, dim, correction=correction, keepdim=keepdim)
        dims = dims_of(dim, self.dim())
        if not dims:
            return value, self.clone()
        return value, self.mean(dims, keepdim)

    return decompose


def _with_mean_abstract(spread: Callable[..., torch.Tensor]) -> object:
    """Return an abstract spread and mean: :func:`_mean_abstract` says why."""

    def abstract(self: torch.Tensor, dim: object, correction: object, keepdim: bool) -> object:
        value = spread(self, dim, correction=correction, keepdim=keepdim)
        return value, _mean_abstract(self, dim, keepdim)

    return abstract


def _with_mean_vjp(partial: Any) -> object:
    """Return the vjp of (spread, mean). ``partial`` is the conjugate of the spread's gradient.
    Either cotangent may be None."""

    def back(
        gs: Sequence[torch.Tensor | None],
        self: torch.Tensor,
        dim: Any,
        correction: int | None,
        keepdim: bool,
        *result: torch.Tensor,
    ) -> Any:
        """Add the gradients by the spread and by the mean."""
        g_spread, g_mean = gs
        by_spread = by_mean = None
        if g_spread is not None:
            # none for a variance, whose slope does not need the result
            spread = [restored(each, self.dim(), dim, keepdim) for each in result]
            g_spread = restored(g_spread, self.dim(), dim, keepdim)
            by_spread = scaled(g_spread, conj_of(partial(self, *spread, dim, correction)))
        if g_mean is not None:
            by_mean = _mean_vjp(g_mean, self.shape, dim, keepdim)
        return add_present(by_spread, by_mean)

    # a node saves what the formula names, so that of a variance keeps no result
    asks = ["gs", "self", "dim", "correction", "keepdim"]
    if "result" in parameters(partial):
        asks.append("result0")
    return asking(*asks)(back)


reduction(
    "var.correction",
    lambda self, dim, correction: _deviation(self, dim, correction),
    batch.along(1),
)
reduction("std.correction", _std_partial, batch.along(1))
for _name, _spread, _partial in (
    ("var_mean.correction", aten.var.correction, _deviation),
    ("std_mean.correction", aten.std.correction, _std_partial),
):
    register(
        _name,
        vjp={"self": _with_mean_vjp(_partial)},
        decomposition=_with_mean(_spread),
        abstract=_with_mean_abstract(_spread),
        family="reduction",
    )


# ---- no derivative


def _arg(func: Kernel, size: int, batched: object, args: Arguments, kwargs: object) -> object:
    """Run ``argmax`` or ``argmin`` on a batch. Without a dimension each element is flattened."""
    x, dim, keepdim = args[0], batch.positional(args, 1, None), batch.positional(args, 2, False)
    if dim is not None:
        return batch.along(1)(func, size, batched, args, kwargs)
    # a position counts the elements of one element of the batch, in their flat order
    positions = func(rows(x), 1)
    # all dimensions of an element become ones
    if keepdim and x.dim() > 1:
        return restored(positions, x.dim(), list(range(1, x.dim())), False)
    return positions


def _any_or_all(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``any`` or ``all`` over several dimensions on a batch. Unlike in other reductions, an
    empty list of dimensions means none."""
    if len(args) > 1 and args[1] is not None and len(args[1]) == 0:
        return func(*args, **kwargs)
    return batch.along(1)(func, size, batched, args, kwargs)


def _count_nonzero(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``count_nonzero`` on a batch. This overload takes one dimension, or none for all."""
    if len(args) > 1 and args[1] is not None:
        return batch.along(1)(func, size, batched, args, kwargs)
    return aten.count_nonzero.dim_IntList(rows(args[0]), [1])


nondifferentiable("any", whole(lambda r: r.any(1)))
nondifferentiable("all", whole(lambda r: r.all(1)))
nondifferentiable("any.dim all.dim", batch.along(1))
nondifferentiable("any.dims all.dims", _any_or_all)
nondifferentiable("argmax argmin", _arg)
nondifferentiable("count_nonzero.dim_IntList", batch.along(1))
nondifferentiable(
    "hash_tensor",
    batch.along(1),
    abstract=lambda self, dim, keepdim: torch.empty_like(
        self.sum(dim, keepdim), dtype=torch.uint64
    ),
)
nondifferentiable("count_nonzero", _count_nonzero)


def _segments_batch(func: Any, size: int, batched: object, args: object, kwargs: Any) -> object:
    """Reduce the segments of a batch.

    The kernels treat leading dimensions of ``lengths`` (or ``offsets``) as batches. Its last
    dimension is that of the reduction.
    """
    tensors = batch.expand_tensors(size, batched, args)
    # in the backward op the cotangent and the result precede the data
    data = next(tensor for tensor in reversed(tensors) if isinstance(tensor, torch.Tensor))
    axis = kwargs.get("axis", 0) % (data.dim() - 1)
    bounds = {}
    for name in ("lengths", "offsets"):
        tensor = kwargs.get(name)
        if tensor is not None:  # that of one element has axis + 1 dimensions
            bounds[name] = batch.expand(tensor, tensor.dim() == axis + 2, size).contiguous()
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor):
            tensors[index] = tensor.contiguous()
    return func(*tensors, **{**kwargs, **bounds, "axis": axis + 1})


def _segments_back(
    g: torch.Tensor,
    result: object,
    data: object,
    reduce: str,
    lengths: object,
    offsets: object,
    axis: int,
    initial: object,
) -> object:
    """Return the gradient of the data, by ATen's backward kernel."""
    return torch.ops.aten._segment_reduce_backward(
        g.contiguous(),
        result,
        data,
        reduce,
        lengths=lengths,
        offsets=offsets,
        axis=axis,
        initial=initial,
    )


register("segment_reduce", vjp={"data": _segments_back}, batch=_segments_batch, family="reduction")
# first derivatives alone, as in torch
register("_segment_reduce_backward", batch=_segments_batch, family="reduction")
