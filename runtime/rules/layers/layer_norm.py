"""Register layer normalization and root-mean-square normalization.

Both normalize over the last dimensions of the input, which are ``normalized_shape``. Their
statistics have the leading dimensions, and a size of one in place of each normalized one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.optional import add_present, apply_weight
from ..record import kernels, register
from ..samples.factors import Dense, reduced
from .normalization import (
    Gradients,
    Normalized,
    mean_over,
    scaled,
    statistics_vjp,
    sum_over,
)

Tensor = torch.Tensor


def _layer_dims(
    shape: Sequence[int], normalized_shape: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the leading and the normalized dimensions."""
    at = len(shape) - len(normalized_shape)
    return list(range(at)), list(range(at, len(shape)))


def _count(shape: Sequence[int], dims: list[int]) -> int:
    """Return the number of elements of ``dims``, at least 1: it divides also for an empty input."""
    count = 1
    for dim in dims:
        count *= shape[dim]
    return max(count, 1)


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
        count = _count(input.shape, _layer_dims(input.shape, normalized_shape)[1])
        unit = (input - result1) * result2
        out[0] = add_present(out[0], statistics_vjp(g_mean, g_rstd, unit, result2, count))
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


class _Layers(Normalized):
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
        # without a weight the kernel's gradient of the input is P
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
    normalized = _Layers(input, normalized_shape, mean, rstd, weight)
    of_g, of_x, of_weight = normalized.backward_vjp(grad_out, by_x, by_weight, by_bias, needs)
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
    normalized = _Layers(input, normalized_shape, mean, rstd, weight)
    # without a weight its gradient is no tensor, also if the mask asks for it
    mask = output_mask[0], output_mask[1] and weight is not None, output_mask[2]
    return normalized.backward_jvp(grad_out, grad_out_t, input_t, weight_t, mask)


def _layer_backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run the backward op on a batch. Rows are independent, so the kernel computes the gradient of
    the input. Those of weight and bias are sums within each element."""
    g, x, shape, mean, rstd, weight, bias, mask = args
    # dimensions of the batched input: 0 is the batch, which an input without a batch gets below
    lead = list(range(1, x.dim() + (not batched[1]) - len(shape)))
    g = batch.expand(g, batched[0], size)
    gx = gw = gb = None
    if mask[0]:
        # the kernel takes one weight for all rows, so a batch of weights goes into the cotangent
        full = [batch.expand(args[index], batched[index], size).contiguous() for index in (1, 3, 4)]
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
    # a shared weight and bias broadcast against any leading dimensions, and the batch is one
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
