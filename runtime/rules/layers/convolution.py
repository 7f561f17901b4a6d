"""Convolutions. ``convolution(input, weight)`` is bilinear. Each output of its backward is bilinear
in the other two factors.

All rules follow from the trilinear form ``⟨g, convolution(input, weight)⟩``. Its three partial
derivatives are the convolution and the two results of ``convolution_backward``. The derivatives of
these are again among the three.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..derive.batch_rules import expand, shaped_by_one
from ..derive.fixed_layouts import filled
from ..record import kernels, register
from ..samples.factors import Dense, Windows

aten = torch.ops.aten


def _with_channels(bias: torch.Tensor, rank: int) -> torch.Tensor:
    """Return a bias, reshaped to broadcast with an output of ``rank`` dimensions, whose channels
    are dimension 1. Leading dimensions stay."""
    return bias.reshape(*bias.shape[:-1], 1, bias.shape[-1], *[1] * (rank - 2))


def _spread(bias: torch.Tensor, shape: Any) -> torch.Tensor:
    """Return what a bias adds to an output of that shape."""
    if shape[1] == 0:  # ATen's result for an input without channels, whatever the bias is
        return bias.new_zeros(shape)
    return _with_channels(bias, len(shape)).expand(shape)


def _gathered(g: torch.Tensor, dims: list[int], sizes: Any) -> torch.Tensor:
    """Return the gradient by a bias of these sizes: ``g``, summed over ``dims``."""
    made = g.sum(dims)
    # as above: there is a bias, and no channel to which it was added
    return made if made.shape[-1] == sizes[0] else g.new_zeros((*made.shape[:-1], *sizes))


def _vjp(
    g: Any, input: Any, weight: Any, bias_shape: Any, stride: Any, padding: Any, dilation: Any,
    transposed: Any, output_padding: Any, groups: Any, needs: Any,
) -> Any:  # fmt: skip
    mask = ["input" in needs, "weight" in needs, "bias" in needs]
    sizes = list(bias_shape) if mask[2] else None
    return kernels.convolution_backward(
        g, input, weight, sizes, stride, padding, dilation, transposed, output_padding, groups, mask
    )


def _without_bias(
    input_t: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
) -> Any:
    return torch.convolution(
        input_t, weight, None, stride, padding, dilation, transposed, output_padding, groups
    )


def _by_weight(
    input: Any,
    weight_t: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
) -> Any:
    return torch.convolution(
        input, weight_t, None, stride, padding, dilation, transposed, output_padding, groups
    )


def _into_groups(t: torch.Tensor) -> torch.Tensor:
    """``(B, N, C, …)`` as ``(N, B·C, …)``. Each element of the batch gets its own
    groups of channels."""
    return t.movedim(0, 1).flatten(1, 2)


def _from_groups(t: torch.Tensor, size: int) -> Any:
    return t.reshape(t.shape[0], size, t.shape[1] // size, *t.shape[2:]).movedim(1, 0)


def _into_samples(t: torch.Tensor) -> torch.Tensor:
    return t.flatten(0, 1)


def _from_samples(t: torch.Tensor, size: int) -> Any:
    return t.reshape(size, t.shape[0] // size, *t.shape[1:])


def _batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """A batch of inputs becomes more samples. A batch of weights becomes more output channels, or
    more groups if inputs are batched too."""
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups = filled(
        func, args
    )
    rest = (stride, padding, dilation, transposed, output_padding)
    late = bias if batched[1] or batched[2] else None
    bias = None if late is not None else bias
    if not batched[1]:
        if batched[0]:
            out = _from_samples(func(_into_samples(input), weight, bias, *rest, groups), size)
        else:
            out = func(input, weight, None, *rest, groups).unsqueeze(0)
    elif not batched[0] and groups == 1:
        weight = _into_groups(weight) if transposed else _into_samples(weight)
        out = _from_groups(func(input, weight, None, *rest, 1), size)
    else:
        input = _into_groups(expand(input, batched[0], size))
        out = _from_groups(func(input, _into_samples(weight), None, *rest, groups * size), size)
    return out if late is None else out + _with_channels(late, out.dim() - 1)


def _flops(weight_shape: Any, result_shape: Any, input_shape: Any, transposed: bool) -> Any:
    """Return each element of the result (of the input, if transposed) meets the weights of one
    channel."""
    return 2 * math.prod(input_shape if transposed else result_shape) * math.prod(weight_shape[1:])


def _windows(
    g: Any,
    input: Any,
    weight_shape: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """A transposed convolution is the transpose of a convolution, so its cotangent takes the place
    of an input there.

    ``output_padding`` of a whole step gives that convolution further places, at which
    there is nothing.
    """
    if input.dim() - 1 != len(weight_shape) or (transposed and input.is_complex()):
        return None
    if not transposed:
        return Windows(g, input, weight_shape, stride, padding, dilation, groups)
    rank = len(weight_shape) - 2
    more, steps = (list(a) * (rank if len(a) == 1 else 1) for a in (output_padding, stride))
    places = [n // step for n, step in zip(more, steps, strict=True)]
    if any(places):
        input = torch.nn.functional.pad(input, [p for n in reversed(places) for p in (0, n)])
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
    gs: Any, grad_output: Any, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any,
    transposed: Any, output_padding: Any, groups: Any, needs: Any,
) -> Any:  # fmt: skip
    by_input, by_weight, by_bias = gs
    rest = (stride, padding, dilation, transposed, output_padding, groups)
    first = second = third = None
    if "grad_output" in needs:
        parts = []
        if by_input is not None:
            parts.append(torch.convolution(by_input, weight, None, *rest))
        if by_weight is not None:
            parts.append(torch.convolution(input, by_weight, None, *rest))
        if by_bias is not None:
            parts.append(_spread(by_bias, grad_output.shape))
        first = sum(parts[1:], parts[0]) if parts else None
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
    grad_output_t: Any, input_t: Any, weight_t: Any, grad_output: Any, input: Any, weight: Any,
    bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: Any,
    output_padding: Any, groups: Any, output_mask: Any,
) -> Any:  # fmt: skip
    rest = (stride, padding, dilation, transposed, output_padding, groups)

    def run(g: Any, x: Any, w: Any, which: int) -> Any:
        return kernels.convolution_backward(g, x, w, None, *rest, [which == 0, which == 1, False])[
            which
        ]

    by_input: list[tuple[Any, Any, Any]] = []
    by_weight: list[tuple[Any, Any, Any]] = []
    if grad_output_t is not None:
        by_input.append((grad_output_t, input, weight))
        by_weight.append((grad_output_t, input, weight))
    if weight_t is not None:
        by_input.append((grad_output, input, weight_t))
    if input_t is not None:
        by_weight.append((grad_output, input_t, weight))
    outs = []
    for which, terms in ((0, by_input), (1, by_weight)):
        total = None
        for term in terms if output_mask[which] else ():
            part = run(*term, which)
            total = part if total is None else total + part
        outs.append(total)
    bias = None
    if output_mask[2] and grad_output_t is not None:
        dims = [d for d in range(grad_output.dim()) if d != 1]
        bias = _gathered(grad_output_t, dims, bias_sizes)
    return (*outs, bias)


def _backward_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    g, input, weight, sizes, *rest, groups, mask = args
    full = expand(g, batched[0], size)
    inputs = expand(input, batched[1], size)
    by_input = by_weight = by_bias = None
    grouped = (
        _into_groups(full),
        _into_groups(inputs),
        _into_samples(expand(weight, batched[2], size)),
        None,
        *rest,
        groups * size,
    )
    if mask[0]:
        if batched[2]:
            by_input = _from_groups(func(*grouped, [True, False, False])[0], size)
        else:
            flat = (_into_samples(full), _into_samples(inputs), weight, None, *rest, groups)
            by_input = _from_samples(func(*flat, [True, False, False])[0], size)
    if mask[1]:
        by_weight = _from_samples(func(*grouped, [False, True, False])[1], size)
    if mask[2]:
        by_bias = _gathered(full, [d for d in range(full.dim()) if d not in (0, 2)], sizes)
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
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: Any,
    output_padding: Any, groups: Any, *backend_flags: bool,
) -> torch.Tensor:  # fmt: skip
    return torch.convolution(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def _conv_tbc(self: Any, weight: Any, bias: Any, pad: int = 0) -> torch.Tensor:
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
