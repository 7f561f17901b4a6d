"""Register batch normalization. Its derivatives recompute the statistics from the input, so that
higher derivatives go through them.

The forward op updates the running statistics in place. They have no history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...errors import BatchingError, MissingRule
from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ...seam.keys import uncounted
from ..derive import batch_rules as batch
from ..derive.optional import apply_weight, map_optional
from ..record import HiddenWrites, kernels, register
from .normalization import projected, scaled

aten = torch.ops.aten
Tensor = torch.Tensor


def _channels(t: Any, rank: int) -> Any:
    """Return a per-channel vector (C), reshaped to broadcast with (N, C, …)."""
    if t is None:
        return None
    return t.reshape(1, -1, *(1,) * (rank - 2))


def _others(rank: int) -> list[int]:
    """Return all dimensions but the channel dimension."""
    return [0, *range(2, rank)]


def _unit(
    input: Tensor, running_mean: object, running_var: object, training: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x̂ and the reciprocal standard deviation, from the statistics of the batch (in
    training) or the running ones."""
    # in training the statistics depend on the input, and the derivative goes through them
    rank = input.dim()
    if training:
        centred = input - input.mean(_others(rank), keepdim=True)
        rstd = ((centred * centred).mean(_others(rank), keepdim=True) + eps).rsqrt()
        return centred * rstd, rstd
    rstd = (_channels(running_var, rank) + eps).rsqrt()
    return (input - _channels(running_mean, rank)) * rstd, rstd


def _vjp(
    g: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: object,
    running_var: object,
    training: bool,
    eps: float,
    result1: Tensor,
    result2: Tensor,
    needs: frozenset[str],
) -> object:
    """Return the gradients by input, weight and bias, by ATen's backward kernel."""
    mask = [name in needs for name in ("input", "weight", "bias")]
    if training:  # not read then, so a graph need not save them
        running_mean = running_var = None
    return kernels.native_batch_norm_backward(
        g, input, weight, running_mean, running_var, result1, result2, training, eps, mask
    )


def _jvp(
    input_t: object,
    weight_t: object,
    bias_t: object,
    input: Tensor,
    weight: object,
    running_mean: object,
    running_var: object,
    training: bool,
    eps: float,
    running_mean_t: object,
    running_var_t: object,
) -> tuple[object, None, None]:
    """Return the tangent of the output. The statistics in the other results have none."""
    tangents = {"running_mean": running_mean_t, "running_var": running_var_t}
    moving = [name for name, tangent in tangents.items() if tangent is not None]
    if moving and not training:  # in training the result does not depend on the running statistics
        raise MissingRule(
            "aten.native_batch_norm.default", "jvp", moving, ("input", "weight", "bias")
        )
    rank = input.dim()
    unit, rstd = _unit(input, running_mean, running_var, training, eps)
    unit_t = map_optional(lambda t: _unit_t(t, unit, rstd, training), input_t)
    by_channel = (_channels(t, rank) for t in (weight, weight_t, bias_t))
    return scaled(unit_t, unit, *by_channel), None, None


def _unit_t(t: Tensor, unit: Tensor, rstd: Tensor, training: bool) -> Tensor:
    """Return the tangent of x̂ by that of the input, which is also the gradient of the input by that
    of x̂. In training the statistics depend on the input."""
    if not training:
        return t * rstd
    return projected(t, unit, rstd, _others(t.dim()))


def _backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: object,
    running_var: object,
    save_mean: object,
    save_invstd: object,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[object, ...]:
    """Return the backward in plain ops, of which derivatives of higher order are taken."""
    rank = input.dim()
    unit, rstd = _unit(input, running_mean, running_var, train, eps)
    # y = weight * unit + bias: the unit takes the cotangent times the weight
    gx = gw = gb = None
    if output_mask[0]:
        g = apply_weight(grad_out, _channels(weight, rank))
        gx = _unit_t(g, unit, rstd, train).to(input.dtype)
    dtype = grad_out.dtype
    if weight is not None:
        dtype = weight.dtype
    if output_mask[1]:
        gw = (grad_out * unit).sum(_others(rank)).to(dtype)
    if output_mask[2]:
        gb = grad_out.sum(_others(rank)).to(dtype)
    return gx, gw, gb


def _batch(func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords) -> Any:
    """Fold the batch into the channels. Weight and bias are applied afterwards."""
    x, weight, bias, running_mean, running_var, training, momentum, eps = args
    rank = x.dim() - batched[0]
    C = x.shape[1 + batched[0]]
    # only weight or bias have a batch: the normalized values are the same for all elements
    if not (batched[0] or batched[3] or batched[4]):
        results = func(x, None, None, running_mean, running_var, training, momentum, eps)
        out, mean, invstd = (tensor.unsqueeze(0).expand(size, *tensor.shape) for tensor in results)
        return _affine(out, weight, bias, C, rank), mean, invstd
    # all of one element's channels become channels of one large batch norm
    means, variances = _Moving(running_mean, batched[3]), _Moving(running_var, batched[4])
    is_shared = means.is_shared() or variances.is_shared()
    if training and batched[0] and is_shared:
        raise BatchingError(
            "vmap: batch norm got a batched input, but the running_mean or running_var that it "
            "updates in place is not batched. Pass running statistics that are batched as well, "
            "or none (track_running_stats=False), or use group norm."
        )
    x = batch.expand(x, batched[0], size)
    flat_means, flat_variances = means.flat(size), variances.flat(size)
    # (N, B * C, …), which has the channels of an element next to each other
    out, mean, invstd = func(
        x.transpose(0, 1).flatten(1, 2),
        None,
        None,
        flat_means,
        flat_variances,
        training,
        momentum,
        eps,
    )
    # the kernel has updated copies of the running statistics
    if training:
        means.take_over(flat_means, C)
        variances.take_over(flat_variances, C)
    out = out.reshape(x.shape[1], size, *x.shape[2:]).transpose(0, 1)
    return _affine(out, weight, bias, C, rank), mean.reshape(size, -1), invstd.reshape(size, -1)


class _Moving(NamedTuple):
    """A running statistic. ``batched``: whether each element has its own."""

    statistic: Any
    batched: bool

    def is_shared(self) -> bool:
        """Return whether all elements have one statistic."""
        return self.statistic is not None and not self.batched

    def flat(self, size: int) -> Any:
        """Return one number for each channel of each element."""
        if self.statistic is None:
            return None
        if self.batched:
            return self.statistic.reshape(-1)
        # a copy, which the kernel may write to; `take_over` reads one of the equal parts
        return self.statistic.repeat(size)

    def take_over(self, flat: Any, channels: int) -> None:
        """Store what the kernel has written to :meth:`flat`."""
        if self.statistic is None or (self.batched and self.statistic.is_contiguous()):
            # The kernel has already written to a view, uncounted as in ATen.
            return
        updated = flat.reshape(self.statistic.shape) if self.batched else flat[:channels]
        uncounted(self.statistic.copy_, updated)


def _affine(out: Tensor, weight: Tensor | None, bias: Tensor | None, C: int, rank: int) -> Tensor:
    """Return ``out·weight + bias`` for a physical ``out`` (B, N, C, …) and vectors (C) or (B,
    C)."""
    for apply, tensor in ((torch.mul, weight), (torch.add, bias)):
        if tensor is not None:
            out = apply(out, tensor.reshape(-1, 1, C, *(1,) * (rank - 2)))
    return out


def _as_kernel_lays_out(input: Tensor, results: tuple[Tensor, ...]) -> tuple[object, ...]:
    """Return ``results`` of torch's abstract kernel, the first with the strides of the kernel on
    the CPU: those of a memory format.

    The abstract kernel keeps the strides of ``input``, and views of the result depend on them.
    """
    first, *rest = results
    if first is None or input.device.type != "cpu":
        return results
    # the kernel has a path for channels that come last, and copies any other input
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    if last is None or not input.is_contiguous(memory_format=last):
        last = torch.contiguous_format
    return first.contiguous(memory_format=last), *rest


def _abstract(op: Callable[..., Sequence[Tensor]]) -> Callable[..., tuple[object, ...]]:
    """Return ``op`` on abstract tensors, with the strides of the kernel."""

    def abstract(
        input: Tensor,
        weight: object,
        bias: object,
        running_mean: object,
        running_var: object,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[object, ...]:
        """Return abstract results of one call."""
        results = op(input, weight, bias, running_mean, running_var, training, momentum, eps)
        return _as_kernel_lays_out(input, tuple(results))

    return abstract


register(
    "native_batch_norm",
    abstract=_abstract(aten.native_batch_norm.default),
    vjp={("input", "weight", "bias"): _vjp},
    jvp=_jvp,
    batch=_batch,
    nondiff=(1, 2),
    fresh=True,
    hidden_writes=HiddenWrites(
        ("running_mean", "running_var"),
        "_native_batch_norm_legit_functional",
        lambda running_mean, training: training and running_mean is not None,
    ),
    cost="high",
    family="normalization",
)
register(
    "native_batch_norm_backward",
    decomposition=_backward,
    fresh=True,
    cost="high",
    family="normalization",
)


def _with_update(
    input: Tensor,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    momentum: float,
    eps: float,
) -> object:
    """Run the op of training as ``native_batch_norm``. The last result is an empty workspace."""
    out = aten.native_batch_norm(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return (*out, input.new_empty(0, dtype=torch.uint8))


def _no_update(
    input: Tensor,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    momentum: float,
    eps: float,
) -> object:
    """Run the op of inference as ``native_batch_norm``. The last result is an empty workspace."""
    out = aten.native_batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps
    )
    return (*out, input.new_empty(0, dtype=torch.uint8))


def _no_training(
    input: Tensor,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    momentum: float,
    eps: float,
) -> object:
    """Run the op of inference as ``native_batch_norm``."""
    return aten.native_batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps
    )


def _no_stats(
    input: Tensor, weight: object, bias: object, training: bool, momentum: float, eps: float
) -> object:
    return aten.native_batch_norm(input, weight, bias, None, None, training, momentum, eps)


register(
    "_native_batch_norm_legit_functional",
    abstract=_abstract(aten._native_batch_norm_legit_functional.default),
    fresh=True,
    cost="high",
    family="normalization",
)
register(
    "_native_batch_norm_legit",
    decomposition=lambda *args: aten.native_batch_norm(*args),
    cost="high",
    family="normalization",
)
register(
    "_native_batch_norm_legit.no_stats",
    decomposition=_no_stats,
    cost="high",
    family="normalization",
)
register("_native_batch_norm_legit_no_training", decomposition=_no_training, family="normalization")
register("_batch_norm_with_update", decomposition=_with_update, cost="high", family="normalization")
register("_batch_norm_no_update", decomposition=_no_update, cost="high", family="normalization")
