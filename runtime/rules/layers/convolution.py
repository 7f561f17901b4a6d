"""Register convolutions. ``convolution(input, weight)`` is bilinear. Each output of its backward is
bilinear in the other two factors.

All rules follow from the trilinear form ``⟨g, convolution(input, weight)⟩``. Its three partial
derivatives are the convolution and the two results of ``convolution_backward``. The derivatives of
these are again among the three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive.batch_rules import expand, shaped_by_one
from ..derive.fixed_layouts import filled
from ..derive.optional import add_present, map_optional
from ..record import kernels, register
from ..samples.factors import Dense
from ..samples.windows import Windows, per_dimension

aten = torch.ops.aten


def _with_channels(bias: torch.Tensor, rank: int) -> torch.Tensor:
    """Return a bias, reshaped to broadcast with an output of ``rank`` dimensions, whose channels
    are dimension 1. Leading dimensions stay."""
    return bias.reshape(*bias.shape[:-1], 1, bias.shape[-1], *[1] * (rank - 2))


def _spread(bias: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the bias, broadcast to an output of that shape."""
    if shape[1] == 0:  # ATen's result for an input without channels, whatever the bias is
        return bias.new_zeros(shape)
    return _with_channels(bias, len(shape)).expand(shape)


def _sum_to_bias(g: torch.Tensor, dims: list[int], sizes: Sequence[int]) -> torch.Tensor:
    """Return the gradient by a bias of these sizes: ``g``, summed over ``dims``."""
    total = g.sum(dims)
    if total.shape[-1] != sizes[0]:
        # as above: there is a bias, and no channel to which it was added
        return g.new_zeros((*total.shape[:-1], *sizes))
    return total


def _vjp(
    g: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias_shape: Any,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, needs: frozenset[str],
) -> Any:  # fmt: skip
    """Return the gradients by input, weight and bias that are wanted."""
    mask = ["input" in needs, "weight" in needs, "bias" in needs]
    sizes = None
    if mask[2]:
        sizes = list(bias_shape)
    return kernels.convolution_backward(
        g, input, weight, sizes, stride, padding, dilation, transposed, output_padding, groups, mask
    )


def _without_bias(
    input_t: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> object:
    """Return the convolution of a tangent of the input."""
    return torch.convolution(
        input_t, weight, None, stride, padding, dilation, transposed, output_padding, groups
    )


def _by_weight(
    input: torch.Tensor,
    weight_t: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> object:
    """Return the convolution with a tangent of the weight."""
    return torch.convolution(
        input, weight_t, None, stride, padding, dilation, transposed, output_padding, groups
    )


def _into_groups(t: torch.Tensor) -> torch.Tensor:
    """Return ``(B, N, C, …)`` as ``(N, B·C, …)``. Each element of the batch gets its own groups of
    channels."""
    return t.movedim(0, 1).flatten(1, 2)


def _from_groups(t: torch.Tensor, size: int) -> Any:
    """Return the inverse of :func:`_into_groups`."""
    return t.reshape(t.shape[0], size, t.shape[1] // size, *t.shape[2:]).movedim(1, 0)


def _into_samples(t: torch.Tensor) -> torch.Tensor:
    """Return ``(B, N, …)`` as ``(B·N, …)``."""
    return t.flatten(0, 1)


def _from_samples(t: torch.Tensor, size: int) -> Any:
    """Return the inverse of :func:`_into_samples`."""
    return t.reshape(size, t.shape[0] // size, *t.shape[1:])


def _batch(func: Any, size: int, batched: BatchFlags, args: object, kwargs: object) -> Any:
    """Run a batch as one convolution. A batch of inputs becomes more samples. A batch of weights
    becomes more output channels, or more groups if inputs are batched too."""
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups = filled(
        func, args
    )
    rest = (stride, padding, dilation, transposed, output_padding)
    late = None
    if batched[1] or batched[2]:  # added to the result, since channels are folded with the batch
        late, bias = bias, None
    # one weight for all: the batch becomes more samples
    if not batched[1]:
        if batched[0]:
            out = _from_samples(func(_into_samples(input), weight, bias, *rest, groups), size)
        else:
            out = func(input, weight, None, *rest, groups).unsqueeze(0)
    elif not batched[0] and groups == 1:
        # output channels are dimension 1 of a transposed weight, and dimension 0 of any other
        weight = _into_groups(weight) if transposed else _into_samples(weight)
        out = _from_groups(func(input, weight, None, *rest, 1), size)
    # each element of the batch is a group, with its own weights and its own input
    else:
        input = _into_groups(expand(input, batched[0], size))
        out = _from_groups(func(input, _into_samples(weight), None, *rest, groups * size), size)
    if late is None:
        return out
    return out + _with_channels(late, out.dim() - 1)


def _flops(
    weight_shape: Sequence[int],
    result_shape: Sequence[int],
    input_shape: Sequence[int],
    transposed: bool,
) -> object:
    """Count a product and a sum for each meeting of an element with a weight. Each element of the
    result (of the input, if transposed) meets the weights of one channel."""
    elements = math.prod(result_shape)
    if transposed:
        elements = math.prod(input_shape)
    return 2 * elements * math.prod(weight_shape[1:])


def _windows(
    g: torch.Tensor,
    input: torch.Tensor,
    weight_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> object:
    """Return the gradients of the weight for each sample, in factors.

    A transposed convolution is the transpose of a convolution, so its cotangent takes the place of
    an input there. ``output_padding`` of a whole step gives that convolution further places, at
    which there is nothing.
    """
    if input.dim() - 1 != len(weight_shape) or (transposed and input.is_complex()):
        return None
    if not transposed:
        return Windows(g, input, weight_shape, stride, padding, dilation, groups)
    # `pad` takes the last dimension first
    rank = len(weight_shape) - 2
    more, steps = per_dimension(output_padding, rank), per_dimension(stride, rank)
    padding_at_ends: list[int] = []
    for extra, step in zip(reversed(more), reversed(steps), strict=True):
        padding_at_ends += [0, extra // step]
    if any(padding_at_ends):
        input = torch.nn.functional.pad(input, padding_at_ends)
    return Windows(input, g, weight_shape, stride, padding, dilation, groups)


register(
    "convolution",
    per_sample={
        "weight": _windows,
        "bias": lambda g: Dense(g.transpose(1, 2).flatten(2).flatten(2).sum(2)),
    },
    vjp={("input", "weight", "bias"): _vjp},
    jvp={
        "input": _without_bias,
        "weight": _by_weight,
        "bias": lambda bias_t, result_shape: _spread(bias_t, result_shape),
    },
    batch=shaped_by_one(_batch),
    fresh=True,
    cost="high",
    flops=_flops,
    family="multilinear",
)


def _backward_vjp(
    gs: Sequence[torch.Tensor | None], grad_output: torch.Tensor, input: torch.Tensor,
    weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, needs: frozenset[str],
) -> object:  # fmt: skip
    """Return the gradients of the backward op by cotangent, input and weight."""
    by_input, by_weight, by_bias = gs
    rest = (stride, padding, dilation, transposed, output_padding, groups)
    # the transpose of a gradient by input is the convolution; that by weight is linear in input
    first = second = third = None
    if "grad_output" in needs:
        first = add_present(
            map_optional(lambda x: torch.convolution(x, weight, None, *rest), by_input),
            map_optional(lambda w: torch.convolution(input, w, None, *rest), by_weight),
            map_optional(lambda b: _spread(b, grad_output.shape), by_bias),
        )
    if "input" in needs and by_weight is not None:
        second = kernels.convolution_backward(
            grad_output, input, by_weight, None, *rest, [True, False, False]
        )[0]
    if "weight" in needs and by_input is not None:
        third = kernels.convolution_backward(
            grad_output, by_input, weight, None, *rest, [False, True, False]
        )[1]
    return first, second, third


def _backward_jvp(
    grad_output_t: torch.Tensor | None, input_t: torch.Tensor | None, weight_t: torch.Tensor | None,
    grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias_sizes: Any,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Return the tangents of the backward op's results, by the product rule."""
    rest = (stride, padding, dilation, transposed, output_padding, groups)

    def run(g: object, x: object, w: object, which: int) -> Any:
        """Return result number ``which`` of the backward op."""
        mask = [which == 0, which == 1, False]
        return kernels.convolution_backward(g, x, w, None, *rest, mask)[which]

    # each gradient is bilinear: in the cotangent, and in the other one of input and weight
    by_input = by_weight = by_bias = None
    if output_mask[0]:
        by_input = add_present(
            map_optional(lambda g_t: run(g_t, input, weight, 0), grad_output_t),
            map_optional(lambda w_t: run(grad_output, input, w_t, 0), weight_t),
        )
    if output_mask[1]:
        by_weight = add_present(
            map_optional(lambda g_t: run(g_t, input, weight, 1), grad_output_t),
            map_optional(lambda x_t: run(grad_output, x_t, weight, 1), input_t),
        )
    if output_mask[2] and grad_output_t is not None:
        dims = [dim for dim in range(grad_output.dim()) if dim != 1]
        by_bias = _sum_to_bias(grad_output_t, dims, bias_sizes)
    return by_input, by_weight, by_bias


def _backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run the backward op on a batch: with groups for each element, or more samples if all elements
    share the weight."""
    g, input, weight, sizes, *rest, groups, mask = args
    full = expand(g, batched[0], size)
    inputs = expand(input, batched[1], size)
    by_input = by_weight = by_bias = None
    # each element as a group of channels, for gradients that must not be summed over elements
    grouped = (
        _into_groups(full),
        _into_groups(inputs),
        _into_samples(expand(weight, batched[2], size)),
        None,
        *rest,
        groups * size,
    )
    # with one weight for all, the elements are further samples
    if mask[0]:
        if batched[2]:
            by_input = _from_groups(func(*grouped, [True, False, False])[0], size)
        else:
            flat = (_into_samples(full), _into_samples(inputs), weight, None, *rest, groups)
            by_input = _from_samples(func(*flat, [True, False, False])[0], size)
    if mask[1]:
        by_weight = _from_samples(func(*grouped, [False, True, False])[1], size)
    if mask[2]:
        others = [dim for dim in range(full.dim()) if dim not in (0, 2)]  # than batch and channels
        by_bias = _sum_to_bias(full, others, sizes)
    return by_input, by_weight, by_bias


register(
    "convolution_backward",
    vjp={("grad_output", "input", "weight"): _backward_vjp},
    jvp=_backward_jvp,
    batch=shaped_by_one(_backward_batch),
    fresh=True,
    cost="high",
    family="multilinear",
)


def _flags_dropped(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, *backend_flags: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the convolution without the flags for backends, which change no result."""
    return torch.convolution(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def _conv_tbc(
    self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pad: int = 0
) -> torch.Tensor:
    """Return a convolution of (time, batch, channels) with a weight of shape (width, in, out)."""
    return torch.conv1d(self.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(
        2, 0, 1
    )


register("_convolution", decomposition=_flags_dropped, cost="high", flops=_flops)
register(
    "conv_tbc",
    decomposition=_conv_tbc,
    abstract=lambda self, weight, pad: self.new_empty(
        (self.shape[0] + 2 * pad - weight.shape[0] + 1, self.shape[1], weight.shape[2])
    ),
    cost="high",
)
