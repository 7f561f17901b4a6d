"""Layer, group and root-mean-square normalization (batch normalization, with its running statistics, is in batch_norm).

With x̂ = (x - mean)·rstd, a change t of x changes x̂ by ``rstd·(t - mean(t) - x̂·mean(t·x̂))``. That map is its own transpose, so one
function serves the jvp and the backward ops. First derivatives run on ATen's backward kernels; those decompose into differentiable
ops of (input, mean, rstd), whose own paths go through the statistics that the forward op returns.
"""

from __future__ import annotations

from typing import Any

import torch

from . import derive_batch as batch
from .record import register

aten = torch.ops.aten
Tensor = torch.Tensor


def mean_over(t: Tensor, dims: list[int]) -> Tensor:
    return t.mean(dims, keepdim=True) if dims else t


def sum_over(t: Tensor, dims: list[int]) -> Tensor:
    return t.sum(dims) if dims else t


def projected(t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    """The derivative of x̂ = ``unit`` applied to ``t``, or transposed and applied to ``t``: the same."""
    return rstd * (t - mean_over(t, dims) - unit * mean_over(t * unit, dims))


def statistics_vjp(g_mean: Any, g_rstd: Any, unit: Tensor, rstd: Tensor, n: int) -> Any:
    """What flows back to the input through the returned mean and reciprocal standard deviation, both shaped to broadcast."""
    total: Any = None
    if g_mean is not None:
        total = g_mean / n
    if g_rstd is not None:
        part = -g_rstd * rstd * rstd * unit / n
        total = part if total is None else total + part
    return total


def added(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def scaled(out_t: Any, unit: Tensor, weight: Any, weight_t: Any, bias_t: Any) -> Any:
    """The tangent of ``x̂·weight + bias`` from that of x̂."""
    if out_t is not None and weight is not None:
        out_t = out_t * weight
    return added(added(out_t, None if weight_t is None else unit * weight_t), bias_t)


# ---- layer norm: statistics have the leading shape and ones for the normalized dimensions


def _layer_dims(shape: Any, normalized_shape: Any) -> tuple[list[int], list[int]]:
    """The leading and the normalized dimensions."""
    at = len(shape) - len(normalized_shape)
    return list(range(at)), list(range(at, len(shape)))


def _count(shape: Any, dims: list[int]) -> int:
    n = 1
    for d in dims:
        n *= shape[d]
    return max(n, 1)


def _layer_vjp(
    gs: Any, input: Tensor, normalized_shape: Any, weight: Any, bias: Any, result1: Tensor, result2: Tensor, needs: Any
) -> tuple[Any, ...]:
    g, g_mean, g_rstd = gs
    mask = [name in needs for name in ("input", "weight", "bias")]
    out: list[Any] = [None] * 3
    if g is not None:
        out = list(aten.native_layer_norm_backward(g, input, normalized_shape, result1, result2, weight, bias, mask))
    if mask[0] and (g_mean is not None or g_rstd is not None):
        n = _count(input.shape, _layer_dims(input.shape, normalized_shape)[1])
        out[0] = added(out[0], statistics_vjp(g_mean, g_rstd, (input - result1) * result2, result2, n))
    return tuple(out)


def _layer_jvp(
    input_t: Any, weight_t: Any, bias_t: Any, input: Tensor, normalized_shape: Any, weight: Any, result1: Tensor, result2: Tensor
) -> tuple[Any, Any, Any]:
    dims = _layer_dims(input.shape, normalized_shape)[1]
    unit = (input - result1) * result2
    unit_t = mean_t = rstd_t = None
    if input_t is not None:
        unit_t = projected(input_t, unit, result2, dims)
        mean_t = mean_over(input_t, dims)
        rstd_t = -result2 * result2 * mean_over(input_t * unit, dims)
    return scaled(unit_t, unit, weight, weight_t, bias_t), mean_t, rstd_t


def _layer_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Any, mean: Tensor, rstd: Tensor, weight: Any, bias: Any, output_mask: Any
) -> tuple[Any, ...]:
    lead, dims = _layer_dims(input.shape, normalized_shape)
    unit = (input - mean) * rstd
    gx = projected(grad_out if weight is None else grad_out * weight, unit, rstd, dims).to(input.dtype) if output_mask[0] else None
    gw = sum_over(grad_out * unit, lead).to(weight.dtype) if output_mask[1] and weight is not None else None
    gb = sum_over(grad_out, lead) if output_mask[2] and bias is not None else None
    return gx, gw, gb


def _layer_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Leading dimensions are free; a weight or bias of its own for each element is applied afterwards."""
    x, shape, weight, bias, eps = args
    x = batch.expand(x, batched[0], size)
    if not batched[2] and not batched[3]:
        return func(x, shape, weight, bias, eps)
    out, mean, rstd = func(x, shape, None, None, eps)
    for apply, t, own in ((torch.mul, weight, batched[2]), (torch.add, bias, batched[3])):
        if t is not None:
            out = apply(out, t.reshape(size, *(1,) * (x.dim() - t.dim()), *shape) if own else t)
    return out, mean, rstd


register("native_layer_norm", vjp={("input", "weight", "bias"): _layer_vjp}, jvp=_layer_jvp, batch=_layer_batch, family="normalization")
register("native_layer_norm_backward", decomposition=_layer_backward, family="normalization")


# ---- group norm: (N, C, …) seen as (N, groups, C/groups, …); statistics are (N, groups)


def _grouped(t: Tensor, N: int, C: int, HxW: int, group: int) -> Tensor:
    return t.reshape(N, group, C // group, HxW)


def _per_channel(t: Any, group: int) -> Any:
    """A weight or bias (C) against grouped values."""
    return None if t is None else t.reshape(1, group, -1, 1)


def _per_group(t: Any) -> Any:
    return None if t is None else t[:, :, None, None]


def _group_vjp(
    gs: Any, input: Tensor, weight: Any, N: int, C: int, HxW: int, group: int, result1: Tensor, result2: Tensor, needs: Any
) -> tuple[Any, ...]:
    g, g_mean, g_rstd = gs
    mask = [name in needs for name in ("input", "weight", "bias")]
    out: list[Any] = [None] * 3
    if g is not None:
        contiguous = g.contiguous(), input.contiguous()  # the kernel reads them flat
        out = list(aten.native_group_norm_backward(*contiguous, result1, result2, weight, N, C, HxW, group, mask))
    if mask[0] and (g_mean is not None or g_rstd is not None):
        rstd = _per_group(result2)
        unit = (_grouped(input, N, C, HxW, group) - _per_group(result1)) * rstd
        extra = statistics_vjp(_per_group(g_mean), _per_group(g_rstd), unit, rstd, max(C // group * HxW, 1))
        out[0] = added(out[0], extra.expand(unit.shape).reshape(input.shape))
    return tuple(out)


def _group_jvp(
    input_t: Any,
    weight_t: Any,
    bias_t: Any,
    input: Tensor,
    weight: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    result1: Tensor,
    result2: Tensor,
) -> tuple[Any, Any, Any]:
    rstd = _per_group(result2)
    unit = (_grouped(input, N, C, HxW, group) - _per_group(result1)) * rstd
    unit_t = mean_t = rstd_t = None
    if input_t is not None:
        t = _grouped(input_t, N, C, HxW, group)
        unit_t = projected(t, unit, rstd, [2, 3])
        mean_t = t.mean((2, 3))
        rstd_t = -result2 * result2 * (t * unit).mean((2, 3))
    out_t = scaled(unit_t, unit, _per_channel(weight, group), _per_channel(weight_t, group), _per_channel(bias_t, group))
    return (None if out_t is None else out_t.expand(unit.shape).reshape(input.shape)), mean_t, rstd_t


def _group_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Any,
) -> tuple[Any, ...]:
    g, r = _grouped(grad_out, N, C, HxW, group), _per_group(rstd)
    unit = (_grouped(input, N, C, HxW, group) - _per_group(mean)) * r
    gx = gw = gb = None
    if output_mask[0]:
        scaled_g = g if weight is None else g * _per_channel(weight, group)
        gx = projected(scaled_g, unit, r, [2, 3]).reshape(input.shape).to(input.dtype)
    if output_mask[1]:
        gw = (g * unit).sum((0, 3)).reshape(C).to(grad_out.dtype)
    if output_mask[2]:
        gb = g.sum((0, 3)).reshape(C)
    return gx, gw, gb


def _group_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """The batch joins N; a weight or bias of its own for each element is applied afterwards."""
    x, weight, bias, N, C, HxW, group, eps = args
    x = batch.expand(x, batched[0], size)
    own = batched[1] or batched[2]
    w, b = (None, None) if own else (weight, bias)
    out, mean, rstd = func(x.flatten(0, 1).contiguous(), w, b, size * N, C, HxW, group, eps)
    out = out.reshape(x.shape)
    if own:
        for apply, t in ((torch.mul, weight), (torch.add, bias)):
            if t is not None:
                out = apply(out, t.reshape(-1, 1, C, *(1,) * (x.dim() - 3)))
    return out, mean.reshape(size, N, group), rstd.reshape(size, N, group)


register("native_group_norm", vjp={("input", "weight", "bias"): _group_vjp}, jvp=_group_jvp, batch=_group_batch, family="normalization")
register("native_group_norm_backward", decomposition=_group_backward, family="normalization")


# ---- root mean square norm


def _rms(input: Tensor, normalized_shape: Any, weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = _layer_dims(input.shape, normalized_shape)[1]
    rstd = (mean_over(wide * wide, dims) + (torch.finfo(input.dtype).eps if eps is None else eps)).rsqrt()
    out = wide * rstd
    return (out if weight is None else out * weight).to(input.dtype), rstd


def _rms_backward(grad_out: Tensor, input: Tensor, normalized_shape: Any, rstd: Tensor, weight: Any, output_mask: Any) -> tuple[Any, Any]:
    lead, dims = _layer_dims(input.shape, normalized_shape)
    unit = input * rstd
    g = grad_out if weight is None else grad_out * weight
    gx = (rstd * (g - unit * mean_over(g * unit, dims))).to(input.dtype) if output_mask[0] else None
    gw = sum_over(grad_out * unit, lead).to(weight.dtype) if output_mask[1] and weight is not None else None
    return gx, gw


register("_fused_rms_norm", decomposition=_rms, family="normalization")
register("_fused_rms_norm_backward", decomposition=_rms_backward, family="normalization")
