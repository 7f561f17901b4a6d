"""Register sorting and searching."""

from __future__ import annotations

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.families import nondifferentiable
from ..derive.reduction_records import along_default, selecting


def _sort_stable(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``sort.stable``, whose dimension is a keyword argument."""
    x = args[0]
    rest = {key: value for key, value in kwargs.items() if key != "dim"}
    return along_default(1)(
        lambda t, dim: func(t, dim=dim, **rest), size, batched, [x, kwargs.get("dim", -1)], {}
    )


selecting("sort", along_default(1), keepdim=False, cost="high")
selecting("sort.stable", _sort_stable, keepdim=False, cost="high")
selecting("topk", along_default(2), keepdim=False, cost="high")


def _searchsorted(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Search in a batch. The kernel takes rows with the leading dimensions of the values, or a
    single row that all values search."""
    rows, values = args
    sorter = kwargs.get("sorter")
    single = rows.dim() == 1 + batched[0]
    # one row for all values of the batch is a single search
    if not batched[0] and single:
        return func(rows, values.contiguous(), **kwargs)
    rows, sorter = (
        batch.expand(rows, batched[0], size),
        batch.expand(sorter, sorter is None or sorter.dim() == rows.dim(), size),
    )
    # a number is searched in each row
    if isinstance(values, torch.Tensor):
        values = batch.expand(values, batched[1], size)
        shape = values.shape
        if single:
            values = values.reshape(size, -1)
    else:
        shape = rows.shape[:-1]
        values = torch.full((*shape, 1), values, dtype=rows.dtype, device=rows.device)
    places = torch.searchsorted(
        rows.contiguous(), values.contiguous(), **{**kwargs, "sorter": sorter}
    )
    return places.reshape(shape)


def _bucketize(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``bucketize`` on a batch: ``searchsorted`` with exchanged arguments if the boundaries
    have a batch."""
    values, boundaries = args
    if not batched[1]:
        # torch warns of values that are not contiguous
        return func(values.contiguous(), boundaries, **kwargs)
    return _searchsorted(
        torch.ops.aten.searchsorted.Tensor, size, (True, batched[0]), [boundaries, values], kwargs
    )


nondifferentiable("searchsorted.Tensor searchsorted.Scalar", _searchsorted)
nondifferentiable("bucketize.Tensor", _bucketize)
