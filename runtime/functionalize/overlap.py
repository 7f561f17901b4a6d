"""Run writes through views that show one element several times, and ask where the elements of
tensors lie in memory.

    x.unfold(0, 2, 1).mul_(2)       # writes to x[1] twice
    x.expand(2, 3)[0] = 1           # the other row changes, too

A kernel writes one element after another, and no functional form does that. So the write is done in
place, on a copy of the base (:func:`through_copy`). The questions need sizes, strides and offsets
alone, but for :func:`share_elements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..errors import InplaceError
from ..seam.levels import Value
from ..seam.memory import storage_of
from ..torch_private.dispatcher import OpOverload
from ..torch_private.mode_stacks import without_dispatch_to_python, without_modes
from ..trace.provenance import here

aten = torch.ops.aten
_MAY_OVERLAP = frozenset((aten.expand.default, aten.unfold.default, aten.as_strided.default))


class ViewCall(NamedTuple):
    """A view that was taken: ``func(base, *rest, **kwargs)``, or item ``which`` of it.

    ``x[0]`` is ``ViewCall(aten.select.int, (0, 0), {}, None)``, and the second part of
    ``x.split(2)`` is ``ViewCall(aten.split.Tensor, (2,), {}, 1)``.
    """

    func: OpOverload
    rest: tuple[object, ...]
    kwargs: dict[str, object]
    # the number of the view, if the op returns several
    which: int | None

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """Take the view of ``base``."""
        out = self.func(base, *self.rest, **self.kwargs)
        part: torch.Tensor = out if self.which is None else out[self.which]
        return part


def shows_twice(tensor: torch.Tensor) -> bool:
    """Return whether two elements of ``tensor`` may be at one place of memory."""
    if tensor.layout is not torch.strided:
        return False
    # a dimension of size 1 takes no step, so its stride says nothing
    steps = [
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    ]
    reach = 0  # from the first element to the last that the dimensions so far lead to
    for stride, size in sorted(steps):
        # a step that is no longer than that may end on an element that they lead to
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def has_gaps(tensor: torch.Tensor) -> bool:
    """Return whether memory between the elements of ``tensor`` belongs to none of them.

    ``x[:, ::2]`` has gaps. False for a tensor that shows an element twice, which
    :func:`shows_twice` is for.
    """
    if tensor.layout is not torch.strided or aten.is_non_overlapping_and_dense.default(tensor):
        return False
    return not shows_twice(tensor)


def overlaps(base: torch.Tensor, chain: Sequence[ViewCall]) -> bool:
    """Return whether one of the views that ``chain`` takes from ``base`` shows an element twice."""
    # a view of another kind shows an element twice only if the tensor that it is taken of does
    last = max((index for index, call in enumerate(chain) if call.func in _MAY_OVERLAP), default=-1)
    part = base
    for call in chain[: last + 1]:
        part = call.of(part)
        if call.func in _MAY_OVERLAP and shows_twice(part):
            return True
    return False


def refuse_gaps(base: torch.Tensor, chain: Sequence[ViewCall]) -> None:
    """Refuse a write through ``as_strided`` of ``base``, or of a view of it, that may reach
    elements which this tensor does not show."""
    last = max(
        (index for index, call in enumerate(chain) if call.func is aten.as_strided.default),
        default=-1,
    )
    whole = base
    for call in chain[: last + 1]:
        part = call.of(whole)
        if call.func is aten.as_strided.default and not (
            aten.is_non_overlapping_and_dense.default(whole) and _is_within(part, whole)
        ):
            raise InplaceError(
                "a write through as_strided of a tensor that does not fill its memory, which may "
                "reach elements beside it. Take as_strided of the tensor that it is a view of, "
                f"or of a contiguous copy.{here()}"
            )
        whole = part


def _is_within(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Return whether ``part`` shows no memory before the first element of ``whole`` or after its
    last."""
    (first, last), (start, stop) = _span(part), _span(whole)
    return not part.numel() or bool(start <= first and last <= stop)


def _span(tensor: torch.Tensor) -> tuple[int | torch.SymInt, int | torch.SymInt]:
    """Return the places in memory of the first and the last element."""
    first = tensor.storage_offset()
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return first, first + sum((size - 1) * stride for size, stride in extents)


def same_strides(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one shape have the same strides. The stride of a dimension of
    size 1 does not count, as no step is taken there."""
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return True
    extents = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or first == second for size, first, second in extents)


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether a write to ``one`` changes an element of ``other``.

    The memory under their levels decides. Tensors without memory of their own, as those of
    ``meta``, share none.
    """
    if one is other:
        return True
    a, b = _memory_of(one), _memory_of(other)
    if a is None or b is None:
        return False
    # from the cheapest question to the one that takes memory
    if not a.numel() or not b.numel():
        return False
    if storage_of(a).data_ptr() != storage_of(b).data_ptr():
        return False
    (a_start, a_end), (b_start, b_end) = _bytes_of(a), _bytes_of(b)
    if a_start >= b_end or b_start >= a_end:
        return False
    # elements of two sizes have no places in common to compare, so their ranges, which meet, decide
    if a.dtype is not b.dtype:
        return True
    start, end = min(a_start, b_start) // a.itemsize, max(a_end, b_end) // a.itemsize
    with without_modes(), without_dispatch_to_python():
        # marks the places of one tensor, and looks for a mark at those of the other one
        marks = torch.zeros(end - start, dtype=torch.bool)
        marks.as_strided(b.shape, b.stride(), b.storage_offset() - start).fill_(True)
        return bool(marks.as_strided(a.shape, a.stride(), a.storage_offset() - start).any())


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the bytes of its storage from the first of ``tensor`` to after the last."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((int(size) - 1) * int(stride) for size, stride in extents)
    first = int(tensor.storage_offset())
    return first * tensor.itemsize, (first + last + 1) * tensor.itemsize


def _memory_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the plain tensor in whose memory the elements of ``tensor`` lie. None if there is
    none."""
    while isinstance(tensor, Value):
        tensor = tensor._inner
    # a subclass may be made of several tensors, and a tensor of another layout is
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    if tensor.device.type == "meta":
        return None
    memory: torch.Tensor = tensor
    return memory


def same_start(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors begin at the same place of their storages."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return True
    return bool(a.storage_offset() == b.storage_offset())


def through_copy(
    base: torch.Tensor,
    chain: Sequence[ViewCall],
    write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return a copy of ``base`` in which a write has been done in place.

    ``write(part, copy)`` writes to ``part``, the view of the copy that ``chain`` shows. It returns
    the result of the write. Example: ``lambda part, copy: part.mul_(2)``.
    """
    copy: torch.Tensor
    if has_gaps(base):  # then a clone has other strides
        copy = aten.copy.default(base, base)
    elif base.storage_offset() or shows_twice(base):
        copy = aten.as_strided_scatter.default(
            base, base, base.shape, base.stride(), base.storage_offset()
        )
    else:
        copy = base.clone()
    part = copy
    for call in chain:
        part = call.of(part)
    written = write(part, copy)
    # Only a graph has to show that the base comes after the write. A level that records a history,
    # or that hides dimensions as vmap does, writes to the memory of the copy itself.
    if not isinstance(written, Value) or written._level.keeps_history or written._level.hidden:
        return copy
    return _view_through(written, copy)


def _view_through(written: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Return ``copy`` as a view of ``written``, a part of its memory, so that a graph shows that it
    comes after the write."""
    # the elements of the copy, by the dtype in which the write was
    shape, strides, offset = [*copy.shape], [*copy.stride()], copy.storage_offset()
    after: torch.Tensor
    if written.dtype is copy.dtype:
        after = aten.as_strided.default(written, shape, strides, offset)
    elif copy.dtype.is_complex and written.dtype is copy.dtype.to_real():
        parts = aten.as_strided.default(
            written, [*shape, 2], [*(2 * stride for stride in strides), 1], 2 * offset
        )
        if written.is_neg():
            parts = aten._neg_view.default(parts)
        after = aten.view_as_complex.default(parts)
    elif written.dtype.itemsize == copy.dtype.itemsize:
        after = aten.as_strided.default(written, shape, strides, offset).view(copy.dtype)
    else:
        raise InplaceError(
            f"a write to {written.dtype} in memory of {copy.dtype} that shows an element several "
            f"times, as unfold and expand do. Write to a clone.{here()}"
        )
    # then the lazy bits of the copy
    if written.dtype is copy.dtype and written.is_neg() != copy.is_neg():
        after = aten._neg_view.default(after)
    if after.is_conj() != copy.is_conj():
        after = aten._conj.default(after)
    return after
