"""Have a form of a call, tensors with gaps in memory, and buffers for its results.

spread([1, 2], 0)     [1, 0, 2, 0], of which every second element is the tensor
filled([1.5, 2.0])    [nan, nan]
empty([1.5, 2.0])     []
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gen.checks.overloads.recorded_calls import copied
from gen.torch_private.aten_overloads import MKLDNN

__all__ = [
    "Form",
    "empty",
    "filled",
    "filled_with_gaps",
    "fits",
    "is_strided",
    "spread",
    "with_gaps",
]

Tensor = torch.Tensor
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@dataclass(frozen=True)
class Form:
    """A call in another form."""

    name: str
    label: str
    # Gets the overload as the target has it, makes the call on fresh arguments, and returns the
    # results. It raises Mismatch for what a result alone does not show.
    run: Callable[[Callable[..., object]], object]
    # the plain call whose results are expected
    truth: Callable[[], object]
    # whether a refusal is right too
    may_refuse: bool = False


def is_strided(x: Tensor) -> bool:
    """Return whether a tensor is its elements in memory: not sparse, quantized or marked."""
    return x.layout is torch.strided and not (x.is_quantized or x.is_conj() or x.is_neg())


def spread(x: Tensor, number: int) -> Tensor:
    """Return the elements of a tensor in turn with a number, along the last dimension."""
    # In one piece of memory, so that a write beside the tensor is in the piece, and shows.
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), number)
    wide[..., ::2] = x
    return wide


def with_gaps(x: Tensor) -> Tensor:
    """Return a copy of a tensor whose elements lie apart in memory.

    [1, 2] lies as [1, 0, 2, 0]. A tensor that cannot, such as a sparse one, is copied as it is.
    """
    if not is_strided(x) or not x.ndim or not x.numel() or not x.is_contiguous():
        return copied(x)
    return spread(x, 0)[..., ::2]


def empty(x: Tensor) -> Tensor:
    """Return a buffer that an op must make larger for a result.

    Quantized and compressed buffers have the size of the result, since no op resizes them.
    """
    if is_strided(x):
        return x.new_empty(0)
    if x.is_quantized or x.layout in (*_COMPRESSED, MKLDNN):
        return filled(x)
    return torch.zeros_like(x)


def filled(x: Tensor) -> Tensor:
    """Return a buffer of the size and dtype of a result, whose elements are wrong."""
    # new memory has no indices, which must be valid ones: only the values are wrong
    if x.layout in _COMPRESSED:
        full = x.clone()
        full.values().fill_(1)
        return full
    if x.is_quantized:
        return x.clone().copy_(torch.zeros(x.shape, device=x.device))
    if x.layout is MKLDNN:
        return torch.zeros(x.shape, dtype=x.dtype).to_mkldnn()
    if not is_strided(x):
        return torch.zeros_like(x)
    return torch.full_like(x, _wrong_number(x.dtype), memory_format=torch.contiguous_format)


def filled_with_gaps(x: Tensor) -> Tensor:
    """Return the same buffer with gaps between its elements."""
    return with_gaps(filled(x))


def _wrong_number(dtype: torch.dtype) -> float:
    """Return a number that few results have: NaN, or 1 where there is none."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 1


def fits(place: object, results: object) -> bool:
    """Return whether an argument can hold the results of a call.

    A tensor of shape [2] holds no result of shape [3], and one of int64 none of float64.
    """
    if isinstance(place, Tensor) and isinstance(results, Tensor):
        same = place.layout is results.layout and place.shape == results.shape
        # a truth is written as a number, and an op may refuse what else it would have to round
        return same and results.dtype in (place.dtype, torch.bool)
    return isinstance(place, list) and isinstance(results, (list, tuple))
