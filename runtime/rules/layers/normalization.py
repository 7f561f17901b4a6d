"""Layer, group and root-mean-square normalization. Batch normalization with its running statistics
is in ``batch_norm``.

Let x̂ = (x - mean)·rstd. If x changes by t, x̂ changes by P(t) =
``rstd·(t - mean(t) - x̂·mean(t·x̂))``. P is its own transpose, so one function serves the jvp and
the backward ops. First derivatives run on ATen's backward kernels. Derivatives of these kernels
treat them as functions of the cotangent, the input and the weight alone: the statistics are
computed from the input.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ..derive import batch_rules as batch
from ..record import kernels, register
from ..samples.factors import Dense, reduced

aten = torch.ops.aten
Tensor = torch.Tensor


def mean_over(t: Tensor, dims: list[int]) -> Tensor:
    return t.mean(dims, keepdim=True) if dims else t


def sum_over(t: Tensor, dims: list[int]) -> Tensor:
    return t.sum(dims) if dims else t


def projected(t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    """P(t), the derivative of x̂ = ``unit`` along ``t``. P is its own transpose."""
    return rstd * (t - mean_over(t, dims) - unit * mean_over(t * unit, dims))


def projected_vjp(
    a: Tensor, t: Tensor, by_a: Tensor, by_t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]
) -> Tensor:
    """Return the gradient of ``sum(a·P(t))`` by x. ``by_a`` and ``by_t`` are P(a) and P(t); see
    :func:`projected`."""
    au, tu = mean_over(a * unit, dims), mean_over(t * unit, dims)
    spread = mean_over(a * t, dims) - mean_over(a, dims) * mean_over(t, dims) - au * tu
    return -rstd * (rstd * spread * unit + by_a * tu + by_t * au)


def projected_jvp(
    t: Tensor, by_t: Tensor, by_x: Tensor, x_t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]
) -> Tensor:
    """Return the change of P(t) if x changes by ``x_t``. ``by_t`` and ``by_x`` are P(t) and
    P(x_t)."""
    return -rstd * (
        mean_over(unit * x_t, dims) * by_t
        + mean_over(t * unit, dims) * by_x
        + mean_over(t * by_x, dims) * unit
    )


def statistics_vjp(g_mean: Any, g_rstd: Any, unit: Tensor, rstd: Tensor, n: int) -> Any:
    """Return the gradient of the input through the returned mean and reciprocal standard deviation,
    both shaped to broadcast."""
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
    """Return the tangent of ``x̂·weight + bias``, from the tangent of x̂."""
    if out_t is not None and weight is not None:
        out_t = out_t * weight
    return added(added(out_t, None if weight_t is None else unit * weight_t), bias_t)


# ---- layer norm: statistics have the leading dimensions of the input and a size of one in
# the normalized ones


def _layer_dims(shape: Any, normalized_shape: Any) -> tuple[list[int], list[int]]:
    """Return the leading and the normalized dimensions."""
    at = len(shape) - len(normalized_shape)
    return list(range(at)), list(range(at, len(shape)))


def _count(shape: Any, dims: list[int]) -> int:
    n = 1
    for d in dims:
        n *= shape[d]
    return max(n, 1)


def _layer_vjp(
    gs: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Any,
    bias: Any,
    result1: Tensor,
    result2: Tensor,
    needs: Any,
) -> tuple[Any, ...]:
    g, g_mean, g_rstd = gs
    mask = [name in needs for name in ("input", "weight", "bias")]
    out: list[Any] = [None] * 3
    if g is not None:
        out = list(
            kernels.native_layer_norm_backward(
                g, input, normalized_shape, result1, result2, weight, bias, mask
            )
        )
    if mask[0] and (g_mean is not None or g_rstd is not None):
        n = _count(input.shape, _layer_dims(input.shape, normalized_shape)[1])
        out[0] = added(
            out[0], statistics_vjp(g_mean, g_rstd, (input - result1) * result2, result2, n)
        )
    return tuple(out)


def _layer_jvp(
    input_t: Any,
    weight_t: Any,
    bias_t: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Any,
    result1: Tensor,
    result2: Tensor,
) -> tuple[Any, Any, Any]:
    dims = _layer_dims(input.shape, normalized_shape)[1]
    unit = (input - result1) * result2
    unit_t = mean_t = rstd_t = None
    if input_t is not None:
        mean_t, along = mean_over(input_t, dims), mean_over(input_t * unit, dims)
        unit_t = result2 * (input_t - mean_t - unit * along)
        rstd_t = -result2 * result2 * along
    return scaled(unit_t, unit, weight, weight_t, bias_t), mean_t, rstd_t


def _layer_projected(
    t: Tensor, input: Tensor, normalized_shape: Any, mean: Tensor, rstd: Tensor
) -> Any:
    """:func:`projected`, computed by ATen's kernel."""
    return kernels.native_layer_norm_backward(
        t, input, normalized_shape, mean, rstd, None, None, [True, False, False]
    )[0]


def _layer_backward_vjp(
    gs: Any,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Any,
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    needs: Any,
) -> tuple[Any, ...]:
    by_x, by_weight, by_bias = gs
    lead, dims = _layer_dims(input.shape, normalized_shape)
    unit = (input - mean) * rstd
    first = second = third = None
    if by_x is not None:
        back = _layer_projected(by_x, input, normalized_shape, mean, rstd)
        first = back if weight is None else back * weight
        if "weight" in needs:
            third = sum_over(grad_out * back, lead)
        if "input" in needs:
            t = grad_out if weight is None else grad_out * weight
            by_t = _layer_projected(t, input, normalized_shape, mean, rstd)
            second = projected_vjp(by_x, t, back, by_t, unit, rstd, dims)
    if by_weight is not None:
        first = added(first, unit * by_weight)
        if "input" in needs:
            second = added(
                second, _layer_projected(grad_out * by_weight, input, normalized_shape, mean, rstd)
            )
    if by_bias is not None:
        first = added(first, by_bias.expand(grad_out.shape))
    return first, second, None, None, third, None


def _layer_backward_jvp(
    grad_out_t: Any, input_t: Any, weight_t: Any, grad_out: Tensor, input: Tensor,
    normalized_shape: Any, mean: Tensor, rstd: Tensor, weight: Any, output_mask: Any, mean_t: Any,
    rstd_t: Any, bias_t: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return the tangents of the backward's results. ``mean`` and ``rstd`` depend on ``input``, so
    their own tangents are ignored.

    ``bias`` is an argument only for its shape, so its tangent is ignored too.
    """
    lead, dims = _layer_dims(input.shape, normalized_shape)
    unit = (input - mean) * rstd
    by_x = (
        None if input_t is None else _layer_projected(input_t, input, normalized_shape, mean, rstd)
    )
    gx = gw = gb = None
    if output_mask[0]:
        t_t = None if grad_out_t is None else grad_out_t if weight is None else grad_out_t * weight
        t_t = t_t if weight_t is None else added(t_t, grad_out * weight_t)
        gx = None if t_t is None else _layer_projected(t_t, input, normalized_shape, mean, rstd)
        if by_x is not None:
            t = grad_out if weight is None else grad_out * weight
            by_t = _layer_projected(t, input, normalized_shape, mean, rstd)
            gx = added(gx, projected_jvp(t, by_t, by_x, input_t, unit, rstd, dims))
    if output_mask[1] and weight is not None:
        changes = added(
            None if grad_out_t is None else grad_out_t * unit,
            None if by_x is None else grad_out * by_x,
        )
        gw = None if changes is None else sum_over(changes, lead)
    if output_mask[2] and grad_out_t is not None:
        gb = sum_over(grad_out_t, lead)
    return gx, gw, gb


def _layer_backward_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Rows are independent, so the kernel computes the gradient of the input. Those of weight and
    bias are sums within each element."""
    g, x, shape, mean, rstd, weight, bias, mask = args
    lead = list(range(1, x.dim() + (not batched[1]) - len(shape)))
    g = batch.expand(g, batched[0], size)
    gx = gw = gb = None
    if mask[0]:
        full = [batch.expand(args[i], batched[i], size).contiguous() for i in (1, 3, 4)]
        w, scaled_g = weight, g
        if batched[5]:
            w, scaled_g = None, g * weight.reshape(size, *(1,) * len(lead), *shape)
        gx = func(scaled_g, full[0], shape, *full[1:], w, None, [True, False, False])[0]
    if mask[1] and weight is not None:
        gw = sum_over(g * ((x - mean) * rstd), lead)
    if mask[2] and bias is not None:
        gb = sum_over(g, lead)
    return gx, gw, gb


def _layer_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """The kernel takes any leading dimensions. A batched weight or bias is applied afterwards."""
    x, shape, weight, bias, eps = args
    x = batch.expand(x, batched[0], size)
    if not batched[2] and not batched[3]:
        return func(x, shape, weight, bias, eps)
    out, mean, rstd = func(x, shape, None, None, eps)
    for apply, t, own in ((torch.mul, weight, batched[2]), (torch.add, bias, batched[3])):
        if t is not None:
            out = apply(out, t.reshape(size, *(1,) * (x.dim() - t.dim()), *shape) if own else t)
    return out, mean, rstd


def _layer_weight(
    g: Tensor, input: Tensor, normalized_shape: Any, weight_shape: Any, eps: float
) -> Dense:
    return reduced(
        g * torch.nn.functional.layer_norm(input, normalized_shape, eps=eps), weight_shape
    )


register(
    "native_layer_norm",
    per_sample={"weight": _layer_weight, "bias": lambda g, bias_shape: reduced(g, bias_shape)},
    vjp={("input", "weight", "bias"): _layer_vjp},
    jvp=_layer_jvp,
    batch=_layer_batch,
    fresh=True,
    family="normalization",
)
register(
    "native_layer_norm_backward",
    vjp={("grad_out", "input", "mean", "rstd", "weight", "bias"): _layer_backward_vjp},
    jvp=_layer_backward_jvp,
    batch=_layer_backward_batch,
    fresh=True,
    cost="high",
    family="normalization",
)


# ---- group norm: (N, C, …) is viewed as (N, groups, C/groups, …); statistics are (N, groups)


def _grouped(t: Tensor, N: int, C: int, HxW: int, group: int) -> Tensor:
    return t.reshape(N, group, C // group, HxW)


def _per_channel(t: Any, group: int) -> Any:
    """Return a weight or bias (C), reshaped to broadcast with grouped values."""
    return None if t is None else t.reshape(1, group, -1, 1)


def _per_group(t: Any) -> Any:
    return None if t is None else t[:, :, None, None]


def _group_vjp(
    gs: Any,
    input: Tensor,
    weight: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    result1: Tensor,
    result2: Tensor,
    needs: Any,
) -> tuple[Any, ...]:
    g, g_mean, g_rstd = gs
    mask = [name in needs for name in ("input", "weight", "bias")]
    out: list[Any] = [None] * 3
    if g is not None:
        contiguous = g.contiguous(), input.contiguous()  # the kernel reads them without strides
        out = list(
            kernels.native_group_norm_backward(
                *contiguous, result1, result2, weight, N, C, HxW, group, mask
            )
        )
    if mask[0] and (g_mean is not None or g_rstd is not None):
        rstd = _per_group(result2)
        unit = (_grouped(input, N, C, HxW, group) - _per_group(result1)) * rstd
        extra = statistics_vjp(
            _per_group(g_mean), _per_group(g_rstd), unit, rstd, max(C // group * HxW, 1)
        )
        out[0] = added(out[0], extra.expand(unit.shape).reshape(input.shape))
    return tuple(out)


def _group_jvp(
    input_t: Any, weight_t: Any, bias_t: Any, input: Tensor, weight: Any, N: int, C: int, HxW: int,
    group: int, result1: Tensor, result2: Tensor,
) -> tuple[Any, Any, Any]:  # fmt: skip
    rstd = _per_group(result2)
    unit = (_grouped(input, N, C, HxW, group) - _per_group(result1)) * rstd
    unit_t = mean_t = rstd_t = None
    if input_t is not None:
        t = _grouped(input_t, N, C, HxW, group)
        mean, along = t.mean((2, 3), keepdim=True), (t * unit).mean((2, 3), keepdim=True)
        unit_t = rstd * (t - mean - unit * along)
        mean_t, rstd_t = mean.flatten(1), -result2 * result2 * along.flatten(1)
    out_t = scaled(
        unit_t,
        unit,
        _per_channel(weight, group),
        _per_channel(weight_t, group),
        _per_channel(bias_t, group),
    )
    return (
        (None if out_t is None else out_t.expand(unit.shape).reshape(input.shape)),
        mean_t,
        rstd_t,
    )


class _Groups:
    """Values that several derivatives of group norm's backward use: grouped views (N, groups,
    C/groups, …) and x̂."""

    dims: ClassVar[list[int]] = [2, 3]

    def __init__(self, input: Tensor, mean: Tensor, rstd: Tensor, weight: Any, *sizes: int) -> None:
        self.input, self.mean, self.plain_rstd, self.sizes = input.contiguous(), mean, rstd, sizes
        self.weight = _per_channel(weight, sizes[3])
        self.rstd = _per_group(rstd)
        self.unit = (self.view(input) - _per_group(mean)) * self.rstd

    def view(self, t: Tensor) -> Tensor:
        return _grouped(t, *self.sizes)

    def weighted(self, t: Tensor) -> Tensor:
        return t if self.weight is None else t * self.weight

    def projected(self, t: Tensor) -> Tensor:
        """:func:`projected` of grouped values, computed by ATen's kernel."""
        given = (
            t.reshape(self.input.shape).contiguous(),
            self.input,
            self.mean.contiguous(),
            self.plain_rstd.contiguous(),
        )
        return self.view(
            kernels.native_group_norm_backward(*given, None, *self.sizes, [True, False, False])[0]
        )

    def per_channel_sum(self, t: Tensor) -> Tensor:
        return t.sum((0, 3)).reshape(self.sizes[1])


def _group_backward_vjp(
    gs: Any,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    needs: Any,
) -> tuple[Any, ...]:
    by_x, by_weight, by_bias = gs
    s = _Groups(input, mean, rstd, weight, N, C, HxW, group)
    g = s.view(grad_out)
    first = second = third = None
    if by_x is not None:
        a = s.view(by_x)
        back = s.projected(a)
        first = s.weighted(back)
        if "weight" in needs:
            third = s.per_channel_sum(g * back)
        if "input" in needs:
            t = s.weighted(g)
            second = projected_vjp(a, t, back, s.projected(t), s.unit, s.rstd, s.dims)
    if by_weight is not None:
        factor = _per_channel(by_weight, group)
        first = added(first, s.unit * factor)
        if "input" in needs:
            second = added(second, s.projected(g * factor))
    if by_bias is not None:
        first = added(first, _per_channel(by_bias, group).expand(g.shape))
    shaped = [None if t is None else t.reshape(input.shape) for t in (first, second)]
    return (*shaped, None, None, third)


def _group_backward_jvp(
    grad_out_t: Any, input_t: Any, weight_t: Any, grad_out: Tensor, input: Tensor, mean: Tensor,
    rstd: Tensor, weight: Any, N: int, C: int, HxW: int, group: int, output_mask: Any, mean_t: Any,
    rstd_t: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return the tangents of the backward's results. ``mean`` and ``rstd`` depend on ``input``, so
    their own tangents are ignored."""
    s = _Groups(input, mean, rstd, weight, N, C, HxW, group)
    g, g_t = s.view(grad_out), None if grad_out_t is None else s.view(grad_out_t)
    x_t = None if input_t is None else s.view(input_t)
    by_x = None if x_t is None else s.projected(x_t)
    gx = gw = gb = None
    if output_mask[0]:
        t_t = None if g_t is None else s.weighted(g_t)
        t_t = t_t if weight_t is None else added(t_t, g * _per_channel(weight_t, group))
        gx = None if t_t is None else s.projected(t_t)
        if x_t is not None and by_x is not None:
            t = s.weighted(g)
            gx = added(gx, projected_jvp(t, s.projected(t), by_x, x_t, s.unit, s.rstd, s.dims))
        gx = None if gx is None else gx.reshape(input.shape)
    if output_mask[1]:
        changes = added(None if g_t is None else g_t * s.unit, None if by_x is None else g * by_x)
        gw = None if changes is None else s.per_channel_sum(changes)
    if output_mask[2] and g_t is not None:
        gb = s.per_channel_sum(g_t)
    return gx, gw, gb


def _group_backward_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """For the gradient of the input the batch is folded into N. Those of weight and bias are sums
    within each element."""
    g, x, mean, rstd, weight, N, C, HxW, group, mask = args
    g, x, mean, rstd = (batch.expand(t, batched[i], size) for i, t in enumerate((g, x, mean, rstd)))
    gx = gw = gb = None
    if mask[0]:
        w, scaled_g = weight, g
        if batched[4]:
            w, scaled_g = None, g * weight.reshape(size, 1, C, *(1,) * (g.dim() - 3))
        flat = [t.flatten(0, 1).contiguous() for t in (scaled_g, x, mean, rstd)]
        gx = func(*flat, w, size * N, C, HxW, group, [True, False, False])[0].reshape(x.shape)
    by_channel = g.reshape(size, N, group, C // group, HxW)
    total = by_channel.sum(-1)
    if mask[1]:
        along = (by_channel * x.reshape(by_channel.shape)).sum(-1)
        gw = ((along - total * mean.unsqueeze(-1)) * rstd.unsqueeze(-1)).sum(1).reshape(size, C)
    if mask[2]:
        gb = total.sum(1).reshape(size, C)
    return gx, gw, gb


def _group_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Fold the batch into N. A batched weight or bias is applied afterwards.

    The kernel takes any shape of N·C·HxW numbers.
    """
    x, weight, bias, N, C, HxW, group, eps = args
    x = batch.expand(x, batched[0], size)
    own = batched[1] or batched[2]
    w, b = (None, None) if own else (weight, bias)
    out, mean, rstd = func(
        x.reshape(size * N, C, HxW).contiguous(), w, b, size * N, C, HxW, group, eps
    )
    if own:
        out = out.reshape(size, N, C, HxW)
        for apply, t in ((torch.mul, weight), (torch.add, bias)):
            if t is not None:
                out = apply(out, t.reshape(-1, 1, C, 1))
    return out.reshape(x.shape), mean.reshape(size, N, group), rstd.reshape(size, N, group)


def _group_weight(
    g: Tensor, input: Tensor, N: int, C: int, HxW: int, group: int, eps: float
) -> Dense:
    normalized = torch.nn.functional.group_norm(input.reshape(-1, C, HxW), group, eps=eps)
    return Dense((g.reshape(-1, N, C, HxW) * normalized.reshape(-1, N, C, HxW)).sum((1, 3)))


register(
    "native_group_norm",
    per_sample={
        "weight": _group_weight,
        "bias": lambda g, N, C, HxW: Dense(g.reshape(-1, N, C, HxW).sum((1, 3))),
    },
    vjp={("input", "weight", "bias"): _group_vjp},
    jvp=_group_jvp,
    batch=_group_batch,
    family="normalization",
)
register(
    "native_group_norm_backward",
    vjp={("grad_out", "input", "mean", "rstd", "weight"): _group_backward_vjp},
    jvp=_group_backward_jvp,
    batch=_group_backward_batch,
    cost="high",
    family="normalization",
)


# ---- root mean square norm: an op of its own on CUDA, which has a kernel for it; elsewhere ATen
# decomposes it before a level sees it


def _rms(
    input: Tensor, normalized_shape: Any, weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = _layer_dims(input.shape, normalized_shape)[1]
    rstd = (
        mean_over(wide * wide, dims) + (torch.finfo(wide.dtype).eps if eps is None else eps)
    ).rsqrt()
    out = wide * rstd
    return (out if weight is None else out * weight).to(input.dtype), rstd


def _rms_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Any,
    rstd: Tensor,
    weight: Any,
    output_mask: Any,
) -> tuple[Any, Any]:
    lead, dims = _layer_dims(input.shape, normalized_shape)
    unit = input * rstd
    g = grad_out if weight is None else grad_out * weight
    gx = (rstd * (g - unit * mean_over(g * unit, dims))).to(input.dtype) if output_mask[0] else None
    gw = (
        sum_over(grad_out * unit, lead).to(weight.dtype)
        if output_mask[1] and weight is not None
        else None
    )
    return gx, gw


register("_fused_rms_norm", decomposition=_rms, family="normalization")
register("_fused_rms_norm_backward", decomposition=_rms_backward, family="normalization")
