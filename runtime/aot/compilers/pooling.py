"""Maximum pooling in the memory format in which its kernel is fast.

ATen has two kernels for it on the CPU. The one for contiguous images compares one element after the
other, with branches that a processor cannot predict. The one for images whose channels lie side by
side compares vectors of channels. Both choose the same elements, also among equal ones and NaNs, so
the bits are the same. For 8 images of 16 channels, 32 × 32, the second takes 40 % of the time of
the first, transpositions included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_with_indices: Any = torch.ops.aten.max_pool2d_with_indices.default
_kernel: Any = torch._C._nn.max_pool2d_with_indices
_last = torch.channels_last
_CHANNELS = 16  # a vector of AVX-512
_COMPARED = 1 << 15  # elements compared, below which the transpositions take longer than they save
# elements of an input, beyond which its transposed copy is too large for the caches
_ELEMENTS = 1 << 22


def poolings(graph: fx.Graph) -> None:
    """Maximum pooling of contiguous images becomes :func:`max_pool2d`, unless their sizes are known
    and it would take longer."""
    for n in graph.nodes:
        if (
            n.op == "call_function"
            and n.target is _with_indices
            and not n.kwargs
            and _images(n.args[0].meta.get("val"))
        ):
            x: Any = n.args[0].meta["val"]
            if not all(type(s) is int for s in x.shape) or pays(x, *n.args[1:3]):
                n.target = max_pool2d


def _images(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and x.layout is torch.strided
        and x.is_cpu
        and x.dtype is torch.float32
        and x.dim() == 4
    )


def pays(x: torch.Tensor, window: Sequence[int], stride: Sequence[int] = ()) -> bool:
    """Whether it takes less time to transpose images ``x`` than that saves."""
    if x.shape[1] < _CHANNELS or min(x.shape[2:]) == 1 or not x.is_contiguous():
        return False
    elements = x.numel()
    return elements <= _ELEMENTS and elements * _area(window) >= _COMPARED * _area(stride or window)


def _area(sides: Sequence[int]) -> int:
    return math.prod(sides) if len(sides) == 2 else sides[0] ** 2


def max_pool2d(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int] = (), *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten.max_pool2d_with_indices`` of the same arguments."""
    if not pays(x, window, stride):
        result: tuple[torch.Tensor, torch.Tensor] = _kernel(x, window, stride, *rest)
        return result
    pooled, indices = _kernel(x.contiguous(memory_format=_last), window, stride, *rest)
    # `contiguous` would return an image of one element as it is, whose strides are those of
    # the other format
    return pooled.clone(memory_format=torch.contiguous_format), indices.clone(
        memory_format=torch.contiguous_format
    )
