"""``conv1d``, ``conv2d``, ``conv3d``: the weight's gradient of a sample is its output gradient times the windows of its input.

The windows are a strided view of the padded input. They are copied once into the layout of a batched matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from .layer import Gradients, layer, need_batch
from .utils import sum_over_all_but_batch_and_last_n

Sizes = int | Sequence[int]  # one number per spatial dimension, or one for all


def _each(value: int | Sequence[int], n: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * n if len(values) == 1 else values


def _margins(padding: Sizes | str, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """The padding before and after each spatial dimension. For ``"same"``, an odd total puts one more after."""
    n = len(kernel)
    if padding == "valid":
        return [(0, 0)] * n
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    assert not isinstance(padding, str)
    return [(p, p) for p in _each(padding, n)]


def windows(x: torch.Tensor, out: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> torch.Tensor:
    """(N, C, *spatial) -> (N, C, *kernel, *out), a view: the input elements that each kernel element meets at each output position."""
    steps = x.stride()[2:]
    return x.as_strided(
        (*x.shape[:2], *kernel, *out),
        (*x.stride()[:2], *(s * d for s, d in zip(steps, dilation, strict=True)), *(s * t for s, t in zip(steps, stride, strict=True))),
    )


def _rule(n: int) -> Callable[..., Gradients]:
    def conv(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Gradients:
        need_batch(f"conv{n}d", input, n + 2)
        kernel = list(weight.shape[2:])
        step, spread = _each(stride, n), _each(dilation, n)
        margins = _margins(padding, kernel, spread)
        flat_margins = [m for pair in reversed(margins) for m in pair]

        def for_input(g: torch.Tensor) -> torch.Tensor:
            even = all(a == b for a, b in margins)
            x = input if even else F.pad(input, flat_margins)
            pads = [a for a, _ in margins] if even else [0] * n
            wanted = [True, False, False]
            full: torch.Tensor = torch.ops.aten.convolution_backward(
                g, x, weight, None, step, pads, spread, False, [0] * n, groups, wanted
            )[0]
            if not even:
                for dim, (before, _) in enumerate(margins, start=2):
                    full = full.narrow(dim, before, input.shape[dim])
            return full

        def for_weight(g: torch.Tensor) -> torch.Tensor:
            x = F.pad(input, flat_margins) if any(flat_margins) else input
            seen = windows(x, g.shape[2:], kernel, step, spread).conj()
            size = len(input)
            columns = seen.reshape(size, groups, input.shape[1] // groups * math.prod(kernel), -1)
            rows = g.reshape(size, groups, g.shape[1] // groups, -1)
            return rows.matmul(columns.mT).reshape(size, *weight.shape)

        return {"input": for_input, "weight": for_weight, "bias": lambda g: sum_over_all_but_batch_and_last_n(g.movedim(1, -1), 1)}

    return conv


layer(F.conv1d, ops="convolution")(_rule(1))
layer(F.conv2d, ops="convolution")(_rule(2))
layer(F.conv3d, ops="convolution")(_rule(3))
