"""Register ``as_strided``, the view with arbitrary strides.

Positions in storage are a tensor of indices. Reading is a gather at these indices and writing is a
scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..derive.fixed_layouts import filled
from ..record import register
from .views import inverse_order

aten = torch.ops.aten


def _positions(size: Any, stride: Sequence[int], offset: int, like: torch.Tensor) -> torch.Tensor:
    """Return the position in storage of each element of a strided tensor, flat."""
    # one dimension after the other, added by broadcasting
    rank = len(size)
    at = torch.full([1] * rank, offset, dtype=torch.long, device=like.device)
    for dim, (length, step) in enumerate(zip(size, stride, strict=True)):
        steps = torch.arange(length, device=like.device) * step
        at = at + steps.reshape([length, *[1] * (rank - 1 - dim)])
    return at.reshape(-1)


def _distance_to_last(size: Any, stride: Any) -> int:
    """Return the distance in storage from the first element to the last one."""
    return sum((length - 1) * step for length, step in zip(size, stride, strict=True))


def _extent(size: Any, stride: object) -> int:
    """Count the places in storage that a strided tensor spans."""
    if 0 in size:
        return 0
    return 1 + _distance_to_last(size, stride)


def without_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether every element certainly has its own place in memory. False if this is not
    known."""
    reach = 0
    # By rising stride: each step must lead past all places that the smaller ones reach. A dimension
    # of size one makes no step.
    extents = zip(stride, size, strict=True)
    for step, length in sorted(extent for extent in extents if extent[1] != 1):
        if step <= reach:
            return False
        reach += (length - 1) * step
    return True


def _as_strided_back(
    g: torch.Tensor,
    self_geometry: Any,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> torch.Tensor:
    """Scatter the cotangent into a storage and read that with the geometry of the input.

    If several elements of the input share a place, they share its sum equally.
    """
    shape, own_stride, own_offset = self_geometry
    offset = own_offset
    if storage_offset is not None:
        offset = storage_offset
    # the part of the storage that the view and the input span together
    base = min(offset, own_offset)
    end = max(offset + _extent(size, stride), own_offset + _extent(shape, own_stride))
    total = end - base
    # each place has one element of the view and one of the input
    if without_overlap(size, stride) and without_overlap(shape, own_stride):
        storage = torch.as_strided_scatter(g.new_zeros(total), g, size, stride, offset - base)
        return storage.as_strided(shape, own_stride, own_offset - base)
    storage = g.new_zeros(total)
    # elements of the view that share a place are added up
    theirs = _positions(size, stride, offset - base, g)
    storage = storage.index_add(0, theirs, g.reshape(-1))
    mine = _positions(shape, own_stride, own_offset - base, g)
    # how many elements of the input show each place
    if not without_overlap(shape, own_stride):
        real = g.dtype.to_real()
        times = g.new_zeros(total, dtype=real)
        times = times.index_add(0, mine, g.new_ones(mine.shape, dtype=real))
        storage = storage / times.clamp(min=1)
    return storage.index_select(0, mine).reshape(shape)


def _as_strided_batch(
    func: Any, size: int, batched: object, args: object, kwargs: object
) -> object:
    """Run ``as_strided`` on a batch. Raise if it reaches outside of the element."""
    # the offset of the program is that in the first element, whose memory begins at `start`
    x, shape, stride, offset = filled(func, args)
    start = x.storage_offset()
    first = start
    if offset is not None:
        first = offset
    last = first + _distance_to_last(shape, stride)
    end = start + _distance_to_last(x.shape[1:], x.stride()[1:])
    if 0 not in shape and (first < start or last > end):
        # the memory there belongs to other elements of the batch
        raise RuntimeError(
            f"vmap: as_strided(size={list(shape)}, stride={list(stride)}, storage_offset={first}) "
            "can access memory outside of `tensor`, an element of the batch with sizes "
            f"{list(x.shape[1:])}, strides {list(x.stride()[1:])} and storage offset {start}"
        )
    return func(x, [size, *shape], [x.stride(0), *stride], first)


def _as_strided_scatter(
    self: Any,
    src: torch.Tensor,
    size: object,
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> object:
    """Scatter ``src`` by position in storage. ``self`` must fill its storage without gaps, in any
    order of its dimensions."""
    # the order of the dimensions in memory
    order = sorted(range(self.dim()), key=lambda dim: (-self.stride(dim), -self.shape[dim]))
    flat = self.permute(order)
    if not flat.is_contiguous():
        flat = self
        order = list(range(self.dim()))
    offset = 0
    if storage_offset is not None:
        offset = storage_offset - self.storage_offset()
    written = flat.reshape(-1).index_copy(
        0, _positions(size, stride, offset, self), src.reshape(-1)
    )
    return written.reshape(flat.shape).permute(inverse_order(order))


def _as_strided_tangent(
    self_t: torch.Tensor,
    self_geometry: Any,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> object:
    """Return the tangent of the view. The arguments describe the memory of the primal, so other
    tangents are first copied to such memory."""
    shape, own_stride, own_offset = self_geometry
    if self_t.stride() == own_stride and self_t.storage_offset() == own_offset:
        return self_t.as_strided(size, stride, storage_offset)
    offset = own_offset
    if storage_offset is not None:
        offset = storage_offset
    base = min(offset, own_offset)
    end = max(offset + _extent(size, stride), own_offset + _extent(shape, own_stride))
    # a copy of the part of the storage that the primal and the view span together
    storage = self_t.new_zeros(end - base)  # memory outside of the primal has a tangent of zero
    storage.as_strided(shape, own_stride, own_offset - base).copy_(self_t)
    return storage.as_strided(size, stride, offset - base)


register(
    "as_strided",
    vjp={"self": _as_strided_back},
    jvp={"self": _as_strided_tangent},
    batch=_as_strided_batch,
    inverse=lambda base, part, size, stride, storage_offset: aten.as_strided_scatter(
        base, part, size, stride, storage_offset
    ),
    family="view",
)
register("as_strided_scatter", decomposition=_as_strided_scatter, family="view")
