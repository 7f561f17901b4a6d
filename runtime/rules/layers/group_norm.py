"""Register group normalization.

The input (N, C, …) is viewed as (N, groups, C/groups, …), and normalized over the last two. The
statistics are (N, groups). ``HxW`` is the product of the sizes after C, as in ATen's schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.optional import add_present, map_optional
from ..record import kernels, register
from ..samples.factors import Dense
from .normalization import (
    Gradients,
    Normalized,
    scaled,
    statistics_vjp,
)

Tensor = torch.Tensor


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


class _Groups(Normalized):
    """Grouped values (N, groups, C/groups, …)."""

    dims: ClassVar[list[int]] = [2, 3]  # type: ignore[misc]

    def __init__(
        self, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, *sizes: int
    ) -> None:
        # `sizes` are N, C, HxW and group, in the order of the kernel. `rstd` is also held as it
        # came, because the kernel takes statistics of shape (N, groups).
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
        return map_optional(lambda grouped: grouped.reshape(self.input.shape), t)

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
    groups = _Groups(input, mean, rstd, weight, N, C, HxW, group)
    g, by_x = groups.view(grad_out), map_optional(groups.view, by_x)
    of_g, of_x, of_weight = groups.backward_vjp(g, by_x, by_weight, by_bias, needs)
    return groups.flat(of_g), groups.flat(of_x), None, None, of_weight


def _group_backward_jvp(
    grad_out_t: Tensor | None, input_t: Tensor | None, weight_t: Tensor | None, grad_out: Tensor,
    input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: int, C: int, HxW: int,
    group: int, output_mask: Sequence[bool], mean_t: Tensor | None, rstd_t: Tensor | None,
) -> Gradients:  # fmt: skip
    """Return the tangents of the backward's results. ``mean`` and ``rstd`` depend on ``input``, so
    their own tangents are ignored."""
    groups = _Groups(input, mean, rstd, weight, N, C, HxW, group)
    g = groups.view(grad_out)
    g_t, x_t = map_optional(groups.view, grad_out_t), map_optional(groups.view, input_t)
    of_x, of_weight, of_bias = groups.backward_jvp(g, g_t, x_t, weight_t, output_mask)
    return groups.flat(of_x), of_weight, of_bias


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
    """Return the gradients of the weight for each sample, whose rows of N stand together."""
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
