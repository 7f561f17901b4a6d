"""Register layer, group and root-mean-square normalization. Batch normalization with its running
statistics is in ``batch_norm``.

Let x̂ = (x - mean)·rstd. If x changes by t, x̂ changes by P(t) =
``rstd·(t - mean(t) - x̂·mean(t·x̂))``. P is its own transpose, so one function serves the jvp and
the backward ops. First derivatives run on ATen's backward kernels. Derivatives of these kernels
treat them as functions of the cotangent, the input and the weight alone: the statistics are
computed from the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.optional import add_present, apply_weight, map_optional, multiply_present
from ..record import kernels, register
from ..samples.factors import Dense, reduced

aten = torch.ops.aten
Tensor = torch.Tensor
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""What a derivative of a layer gives for its input, its weight and its bias."""


def mean_over(t: Tensor, dims: list[int]) -> Tensor:
    """Return the mean over ``dims``, which stay as dimensions of size one. Without dimensions:
    ``t``."""
    if not dims:  # no dimension, which to ATen means all
        return t
    return t.mean(dims, keepdim=True)


def sum_over(t: Tensor, dims: list[int]) -> Tensor:
    """Return the sum over ``dims``. Without dimensions: ``t``."""
    if not dims:
        return t
    return t.sum(dims)


def projected(t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    """Return P(t), the derivative of x̂ = ``unit`` along ``t``. P is its own transpose."""
    return rstd * (t - mean_over(t, dims) - unit * mean_over(t * unit, dims))


def projected_vjp(
    a: Tensor, t: Tensor, by_a: Tensor, by_t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]
) -> Tensor:
    """Return the gradient of ``sum(a·P(t))`` by x. ``by_a`` and ``by_t`` are P(a) and P(t); see
    :func:`projected`."""
    # sum(a·P(t)) is n·rstd·spread. Its derivative by x follows from those of rstd, which is
    # -rstd²·x̂/n, and of mean(a·x̂) for a fixed a, which is P(a)/n.
    au, tu = mean_over(a * unit, dims), mean_over(t * unit, dims)
    spread = mean_over(a * t, dims) - mean_over(a, dims) * mean_over(t, dims) - au * tu
    return -rstd * (rstd * spread * unit + by_a * tu + by_t * au)


def projected_jvp(
    t: Tensor, by_t: Tensor, by_x: Tensor, x_t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]
) -> Tensor:
    """Return the change of P(t) if x changes by ``x_t``. ``by_t`` and ``by_x`` are P(t) and
    P(x_t)."""
    # the product rule: rstd changes by -rstd²·mean(x̂·x_t), and x̂ by P(x_t)
    return -rstd * (
        mean_over(unit * x_t, dims) * by_t
        + mean_over(t * unit, dims) * by_x
        + mean_over(t * by_x, dims) * unit
    )


def statistics_vjp(
    g_mean: Tensor | None, g_rstd: Tensor | None, unit: Tensor, rstd: Tensor, n: int
) -> Any:
    """Return the gradient of the input through the returned mean and reciprocal standard deviation,
    both shaped to broadcast."""
    # d mean/dx = 1/n and d rstd/dx = -rstd²·x̂/n
    by_mean = by_rstd = None
    if g_mean is not None:
        by_mean = g_mean / n
    if g_rstd is not None:
        by_rstd = -g_rstd * rstd * rstd * unit / n
    return add_present(by_mean, by_rstd)


def scaled(
    out_t: Tensor | None,
    unit: Tensor,
    weight: Tensor | None,
    weight_t: Tensor | None,
    bias_t: Tensor | None,
) -> Any:
    """Return the tangent of ``x̂·weight + bias``, from the tangent of x̂."""
    if out_t is not None and weight is not None:
        out_t = out_t * weight
    return add_present(out_t, multiply_present(unit, weight_t), bias_t)


class _Normalized(ABC):
    """The normalized input of a backward op of layer or group norm, and what its derivatives use,
    in the shape in which the input is normalized: over ``dims``. ``unit``: x̂."""

    dims: list[int]
    unit: Tensor
    rstd: Tensor
    weight: Tensor | None

    def weighted(self, t: Tensor) -> Tensor:
        """Return ``t`` times the weight."""
        return apply_weight(t, self.weight)

    @abstractmethod
    def projected(self, t: Tensor) -> Any:
        """Return :func:`projected` of ``t``, computed by ATen's kernel."""

    @abstractmethod
    def parameter(self, t: Tensor | None) -> Any:
        """Return a weight or bias, shaped to broadcast."""

    @abstractmethod
    def parameter_sum(self, t: Tensor) -> Tensor:
        """Return the inverse of the broadcast of :meth:`parameter`."""

    def backward_vjp(
        self,
        g: Tensor,
        by_x: Tensor | None,
        by_weight: Tensor | None,
        by_bias: Tensor | None,
        needs: frozenset[str],
    ) -> Gradients:
        """Return the gradients of the cotangent ``g``, the input and the weight, by those of the
        backward op's results."""
        # the gradient of x is a projection of the weighted cotangent, and linear in that
        of_g = of_x = of_weight = None
        if by_x is not None:
            back = self.projected(by_x)
            of_g = self.weighted(back)
            if "weight" in needs:
                of_weight = self.parameter_sum(g * back)
            if "input" in needs:
                t = self.weighted(g)
                by_t = self.projected(t)
                of_x = projected_vjp(by_x, t, back, by_t, self.unit, self.rstd, self.dims)
        # that of the weight is a sum of the cotangent times the normalized values
        if by_weight is not None:
            factor = self.parameter(by_weight)
            of_g = add_present(of_g, self.unit * factor)
            if "input" in needs:
                of_x = add_present(of_x, self.projected(g * factor))
        if by_bias is not None:
            of_g = add_present(of_g, self.parameter(by_bias).expand(g.shape))
        return of_g, of_x, of_weight

    def backward_jvp(
        self,
        g: Tensor,
        g_t: Tensor | None,
        x_t: Tensor | None,
        weight_t: Tensor | None,
        mask: Sequence[bool],
    ) -> Gradients:
        """Return the tangents of the backward op's results that ``mask`` asks for."""
        # how the normalized values move
        by_x = map_optional(self.projected, x_t)
        of_x = of_weight = of_bias = None
        if mask[0]:
            t_t = add_present(
                map_optional(self.weighted, g_t), multiply_present(g, self.parameter(weight_t))
            )
            of_x = map_optional(self.projected, t_t)
            if by_x is not None and x_t is not None:
                t = self.weighted(g)
                by_t = self.projected(t)
                moved = projected_jvp(t, by_t, by_x, x_t, self.unit, self.rstd, self.dims)
                of_x = add_present(of_x, moved)
        if mask[1]:
            change = add_present(multiply_present(g_t, self.unit), multiply_present(g, by_x))
            of_weight = map_optional(self.parameter_sum, change)
        if mask[2] and g_t is not None:
            of_bias = self.parameter_sum(g_t)
        return of_x, of_weight, of_bias


# ---- layer norm: statistics have the leading dimensions of the input and a size of one in
# the normalized ones


def _layer_dims(
    shape: Sequence[int], normalized_shape: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the leading and the normalized dimensions."""
    at = len(shape) - len(normalized_shape)
    return list(range(at)), list(range(at, len(shape)))


def _count(shape: Sequence[int], dims: list[int]) -> int:
    n = 1
    for dim in dims:
        n *= shape[dim]
    return max(n, 1)


def _layer_vjp(
    gs: Sequence[Tensor | None],
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    result1: Tensor,
    result2: Tensor,
    needs: frozenset[str],
) -> tuple[object, ...]:
    """Return the gradients by the kernel, and those through mean and deviation, which it
    ignores."""
    g, g_mean, g_rstd = gs
    mask = [name in needs for name in ("input", "weight", "bias")]
    out: list[torch.Tensor | None] = [None] * 3
    if g is not None:
        out = list(
            kernels.native_layer_norm_backward(
                g, input, normalized_shape, result1, result2, weight, bias, mask
            )
        )
    # mean and deviation are results, too, and depend on the input
    if mask[0] and (g_mean is not None or g_rstd is not None):
        n = _count(input.shape, _layer_dims(input.shape, normalized_shape)[1])
        unit = (input - result1) * result2
        out[0] = add_present(out[0], statistics_vjp(g_mean, g_rstd, unit, result2, n))
    return tuple(out)


def _layer_jvp(
    input_t: Tensor | None,
    weight_t: Tensor | None,
    bias_t: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    result1: Tensor,
    result2: Tensor,
) -> tuple[object, object, object]:
    """Return the tangents of the output and of the statistics."""
    dims = _layer_dims(input.shape, normalized_shape)[1]
    unit = (input - result1) * result2
    unit_t = mean_t = rstd_t = None
    if input_t is not None:
        mean_t, along = mean_over(input_t, dims), mean_over(input_t * unit, dims)
        unit_t = result2 * (input_t - mean_t - unit * along)
        rstd_t = -result2 * result2 * along
    return scaled(unit_t, unit, weight, weight_t, bias_t), mean_t, rstd_t


class _Layers(_Normalized):
    """Normalized values of layer norm, in the shape of the input."""

    def __init__(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
    ) -> None:
        self.input, self.shape, self.mean = input, normalized_shape, mean
        self.rstd, self.weight = rstd, weight
        self.lead, self.dims = _layer_dims(input.shape, normalized_shape)
        self.unit = (input - mean) * rstd

    def projected(self, t: Tensor) -> Any:
        statistics = self.mean, self.rstd
        return kernels.native_layer_norm_backward(
            t, self.input, self.shape, *statistics, None, None, [True, False, False]
        )[0]

    def parameter(self, t: Tensor | None) -> Any:
        return t

    def parameter_sum(self, t: Tensor) -> Tensor:
        return sum_over(t, self.lead)


def _layer_backward_vjp(
    gs: Sequence[Tensor | None],
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    needs: frozenset[str],
) -> tuple[object, ...]:
    """Return the gradients of the backward op. Statistics and bias have none: they follow from the
    input, or are not read."""
    by_x, by_weight, by_bias = gs
    s = _Layers(input, normalized_shape, mean, rstd, weight)
    of_g, of_x, of_weight = s.backward_vjp(grad_out, by_x, by_weight, by_bias, needs)
    return of_g, of_x, None, None, of_weight, None


def _layer_backward_jvp(
    grad_out_t: Tensor | None, input_t: Tensor | None, weight_t: Tensor | None, grad_out: Tensor,
    input: Tensor, normalized_shape: Sequence[int], mean: Tensor, rstd: Tensor,
    weight: Tensor | None, output_mask: Sequence[bool], mean_t: Tensor | None,
    rstd_t: Tensor | None, bias_t: Tensor | None,
) -> Gradients:  # fmt: skip
    """Return the tangents of the backward's results. ``mean`` and ``rstd`` depend on ``input``, so
    their own tangents are ignored.

    ``bias`` is an argument only for its shape, so its tangent is ignored too.
    """
    s = _Layers(input, normalized_shape, mean, rstd, weight)
    mask = output_mask[0], output_mask[1] and weight is not None, output_mask[2]
    return s.backward_jvp(grad_out, grad_out_t, input_t, weight_t, mask)


def _layer_backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run the backward op on a batch. Rows are independent, so the kernel computes the gradient of
    the input. Those of weight and bias are sums within each element."""
    g, x, shape, mean, rstd, weight, bias, mask = args
    lead = list(range(1, x.dim() + (not batched[1]) - len(shape)))
    g = batch.expand(g, batched[0], size)
    gx = gw = gb = None
    if mask[0]:
        # the kernel takes one weight for all rows, so a batch of weights goes into the cotangent
        full = [batch.expand(args[i], batched[i], size).contiguous() for i in (1, 3, 4)]
        shared_weight, scaled_g = weight, g
        if batched[5]:
            shared_weight, scaled_g = None, g * weight.reshape(size, *(1,) * len(lead), *shape)
        gx = func(scaled_g, full[0], shape, *full[1:], shared_weight, None, [True, False, False])[0]
    # sums over all rows of one element, which the kernel would take over all elements
    if mask[1] and weight is not None:
        gw = sum_over(g * ((x - mean) * rstd), lead)
    if mask[2] and bias is not None:
        gb = sum_over(g, lead)
    return gx, gw, gb


def _layer_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run layer norm on a batch. The kernel takes any leading dimensions. A batched weight or bias
    is applied afterwards."""
    x, shape, weight, bias, eps = args
    x = batch.expand(x, batched[0], size)
    if not batched[2] and not batched[3]:
        return func(x, shape, weight, bias, eps)
    # out = unit * weight + bias, each with a row for every element of the batch
    out, mean, rstd = func(x, shape, None, None, eps)
    for apply, tensor, own in ((torch.mul, weight, batched[2]), (torch.add, bias, batched[3])):
        if own:
            tensor = tensor.reshape(size, *(1,) * (x.dim() - tensor.dim()), *shape)
        if tensor is not None:
            out = apply(out, tensor)
    return out, mean, rstd


def _layer_weight(
    g: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight_shape: Sequence[int],
    eps: float,
) -> Dense:
    """Return the gradients of the weight for each sample."""
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


def _in_groups(t: Tensor, N: int, C: int, HxW: int, group: int) -> Tensor:
    return t.reshape(N, group, C // group, HxW)


def _per_channel(t: Tensor | None, group: int) -> Tensor | None:
    """Return a weight or bias (C), reshaped to broadcast with grouped values."""
    if t is None:
        return None
    return t.reshape(1, group, -1, 1)


def _per_group(t: Any) -> Any:
    """Return a statistic (N, groups), reshaped to broadcast with grouped values."""
    if t is None:
        return None
    return t[:, :, None, None]


def _group_vjp(
    gs: Sequence[Tensor | None],
    input: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    result1: Tensor,
    result2: Tensor,
    needs: frozenset[str],
) -> tuple[object, ...]:
    """Return the gradients by the kernel, and those through mean and deviation, which it
    ignores."""
    g, g_mean, g_rstd = gs
    mask = [name in needs for name in ("input", "weight", "bias")]
    out: list[Tensor | None] = [None] * 3
    if g is not None:
        contiguous = g.contiguous(), input.contiguous()  # the kernel reads them without strides
        out = list(
            kernels.native_group_norm_backward(
                *contiguous, result1, result2, weight, N, C, HxW, group, mask
            )
        )
    # mean and deviation are results, too, and depend on the input
    if mask[0] and (g_mean is not None or g_rstd is not None):
        rstd = _per_group(result2)
        unit = (_in_groups(input, N, C, HxW, group) - _per_group(result1)) * rstd
        extra = statistics_vjp(
            _per_group(g_mean), _per_group(g_rstd), unit, rstd, max(C // group * HxW, 1)
        )
        out[0] = add_present(out[0], extra.expand(unit.shape).reshape(input.shape))
    return tuple(out)


def _group_jvp(
    input_t: Tensor | None, weight_t: Tensor | None, bias_t: Tensor | None, input: Tensor,
    weight: Tensor | None, N: int, C: int, HxW: int, group: int, result1: Tensor, result2: Tensor,
) -> Gradients:  # fmt: skip
    """Return the tangents of the output and of the statistics."""
    rstd = _per_group(result2)
    unit = (_in_groups(input, N, C, HxW, group) - _per_group(result1)) * rstd
    # unit = (x - mean) * rstd, so its tangent has no part along ones or along unit itself
    unit_t = mean_t = rstd_t = None
    if input_t is not None:
        t = _in_groups(input_t, N, C, HxW, group)
        mean, along = t.mean((2, 3), keepdim=True), (t * unit).mean((2, 3), keepdim=True)
        unit_t = rstd * (t - mean - unit * along)
        mean_t, rstd_t = mean.flatten(1), -result2 * result2 * along.flatten(1)
    by_channel = (_per_channel(t, group) for t in (weight, weight_t, bias_t))
    out_t = scaled(unit_t, unit, *by_channel)
    if out_t is not None:
        out_t = out_t.expand(unit.shape).reshape(input.shape)
    return out_t, mean_t, rstd_t


class _Groups(_Normalized):
    """Grouped values (N, groups, C/groups, …)."""

    dims: ClassVar[list[int]] = [2, 3]  # type: ignore[misc]

    def __init__(
        self, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, *sizes: int
    ) -> None:
        self.input, self.mean, self.plain_rstd, self.sizes = input.contiguous(), mean, rstd, sizes
        self.weight = _per_channel(weight, sizes[3])
        self.rstd = _per_group(rstd)
        self.unit = (self.view(input) - _per_group(mean)) * self.rstd

    def view(self, t: Tensor) -> Tensor:
        """Return a tensor of the input's shape, in groups."""
        return _in_groups(t, *self.sizes)

    def projected(self, t: Tensor) -> Tensor:
        """Return :func:`projected` of ``t``, computed by ATen's kernel."""
        contiguous = (
            t.reshape(self.input.shape).contiguous(),
            self.input,
            self.mean.contiguous(),
            self.plain_rstd.contiguous(),
        )
        return self.view(
            kernels.native_group_norm_backward(
                *contiguous, None, *self.sizes, [True, False, False]
            )[0]
        )

    def flat(self, t: object) -> Any:
        """Return the inverse of :meth:`view`."""
        return map_optional(lambda t: t.reshape(self.input.shape), t)

    def parameter(self, t: Tensor | None) -> Any:
        return _per_channel(t, self.sizes[3])

    def parameter_sum(self, t: Tensor) -> Tensor:
        return t.sum((0, 3)).reshape(self.sizes[1])


def _group_backward_vjp(
    gs: Sequence[Tensor | None],
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    needs: frozenset[str],
) -> tuple[object, ...]:
    """Return the gradients of the backward op. Statistics have none: they follow from the input."""
    by_x, by_weight, by_bias = gs
    s = _Groups(input, mean, rstd, weight, N, C, HxW, group)
    a = map_optional(s.view, by_x)
    of_g, of_x, of_weight = s.backward_vjp(s.view(grad_out), a, by_weight, by_bias, needs)
    return s.flat(of_g), s.flat(of_x), None, None, of_weight


def _group_backward_jvp(
    grad_out_t: Tensor | None, input_t: Tensor | None, weight_t: Tensor | None, grad_out: Tensor,
    input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: int, C: int, HxW: int,
    group: int, output_mask: Sequence[bool], mean_t: Tensor | None, rstd_t: Tensor | None,
) -> Gradients:  # fmt: skip
    """Return the tangents of the backward's results. ``mean`` and ``rstd`` depend on ``input``, so
    their own tangents are ignored."""
    s = _Groups(input, mean, rstd, weight, N, C, HxW, group)
    g = s.view(grad_out)
    g_t, x_t = map_optional(s.view, grad_out_t), map_optional(s.view, input_t)
    of_x, of_weight, of_bias = s.backward_jvp(g, g_t, x_t, weight_t, output_mask)
    return s.flat(of_x), of_weight, of_bias


def _group_backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run the backward op on a batch. For the gradient of the input the batch is folded into N.
    Those of weight and bias are sums within each element."""
    g, x, mean, rstd, weight, N, C, HxW, group, mask = args
    g, x, mean, rstd = (
        batch.expand(t, batched[index], size) for index, t in enumerate((g, x, mean, rstd))
    )
    gx = gw = gb = None
    if mask[0]:
        # the kernel takes one weight for all samples, so a batch of them goes into the cotangent
        shared_weight, scaled_g = weight, g
        if batched[4]:
            shared_weight, scaled_g = None, g * weight.reshape(size, 1, C, *(1,) * (g.dim() - 3))
        flat = [tensor.flatten(0, 1).contiguous() for tensor in (scaled_g, x, mean, rstd)]
        gx = func(*flat, shared_weight, size * N, C, HxW, group, [True, False, False])[0].reshape(
            x.shape
        )
    # sums over each channel, with the statistics of its group
    by_channel = g.reshape(size, N, group, C // group, HxW)
    total = by_channel.sum(-1)
    # the sum of g * (x - mean) * rstd, without the tensor x - mean
    if mask[1]:
        along = (by_channel * x.reshape(by_channel.shape)).sum(-1)
        gw = ((along - total * mean.unsqueeze(-1)) * rstd.unsqueeze(-1)).sum(1).reshape(size, C)
    if mask[2]:
        gb = total.sum(1).reshape(size, C)
    return gx, gw, gb


def _group_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Fold the batch into N. A batched weight or bias is applied afterwards.

    The kernel takes any shape of N·C·HxW numbers.
    """
    x, weight, bias, N, C, HxW, group, eps = args
    x = batch.expand(x, batched[0], size)
    samples = x.reshape(size * N, C, HxW).contiguous()
    # the kernel has one weight and bias for all samples
    own = batched[1] or batched[2]
    if not own:
        out, mean, rstd = func(samples, weight, bias, size * N, C, HxW, group, eps)
    else:
        out, mean, rstd = func(samples, None, None, size * N, C, HxW, group, eps)
        out = out.reshape(size, N, C, HxW)
        for apply, tensor in ((torch.mul, weight), (torch.add, bias)):
            if tensor is not None:
                out = apply(out, tensor.reshape(-1, 1, C, 1))
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
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Return the normalized input and the reciprocal root mean square, computed in at least single
    precision."""
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = _layer_dims(input.shape, normalized_shape)[1]
    if eps is None:
        eps = torch.finfo(wide.dtype).eps
    rstd = (mean_over(wide * wide, dims) + eps).rsqrt()
    return apply_weight(wide * rstd, weight).to(input.dtype), rstd


def _rms_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[object, object]:
    """Return the gradients by input and weight that ``output_mask`` asks for."""
    lead, dims = _layer_dims(input.shape, normalized_shape)
    # no mean is subtracted, so the gradient loses its part along `unit` alone
    unit = input * rstd
    g = apply_weight(grad_out, weight)
    gx = gw = None
    if output_mask[0]:
        gx = (rstd * (g - unit * mean_over(g * unit, dims))).to(input.dtype)
    if output_mask[1] and weight is not None:
        gw = sum_over(grad_out * unit, lead).to(weight.dtype)
    return gx, gw


register("_fused_rms_norm", decomposition=_rms, family="normalization")
register("_fused_rms_norm_backward", decomposition=_rms_backward, family="normalization")
