"""Run writes through views that show one element several times.

    x.unfold(0, 2, 1).mul_(2)       # writes to x[1] twice
    x.expand(2, 3)[0] = 1           # the other row changes, too

A kernel writes one element after another, and no functional form does that. So the write is done in
place, on a copy of the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import InplaceError
from ..seam.levels import Value
from ..seam.memory import storage_of
from ..torch_private.mode_stacks import without_dispatch_to_python, without_modes
from ..trace.provenance import here

aten = torch.ops.aten
_MAY_OVERLAP = frozenset((aten.expand.default, aten.unfold.default, aten.as_strided.default))
# see ``Chain`` of :mod:`.functional_level`
Step = tuple[Any, tuple[Any, ...], dict[str, Any], int | None]


def shows_twice(t: torch.Tensor) -> bool:
    """Return whether two elements of ``t`` may be at one place of memory."""
    if t.layout is not torch.strided:
        return False
    reach = 0  # how far the dimensions before this one lead
    for stride, size in sorted((s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def has_gaps(tensor: torch.Tensor) -> bool:
    """Return whether there are elements of memory between those of ``tensor``, each of which
    ``tensor`` shows once."""
    if tensor.layout is not torch.strided or aten.is_non_overlapping_and_dense.default(tensor):
        return False
    return not shows_twice(tensor)


def overlaps(base: torch.Tensor, chain: Sequence[Step]) -> bool:
    """Return whether one of the views that ``chain`` takes from ``base`` shows an element twice."""
    # views behind the last of these show no element twice that it does not
    last = max((index for index, step in enumerate(chain) if step[0] in _MAY_OVERLAP), default=-1)
    t = base
    for func, rest, kwargs, which in chain[: last + 1]:
        t = _take_view(t, func, rest, kwargs, which)
        if func in _MAY_OVERLAP and shows_twice(t):
            return True
    return False


def refuse_gaps(base: torch.Tensor, chain: Sequence[Step]) -> None:
    """Refuse a write through ``as_strided`` of ``base``, or of a view of it, that may reach
    elements which this tensor does not show."""
    last = max(
        (index for index, step in enumerate(chain) if step[0] is aten.as_strided.default),
        default=-1,
    )
    t = base
    for func, rest, kwargs, which in chain[: last + 1]:
        part = _take_view(t, func, rest, kwargs, which)
        if func is aten.as_strided.default and not (
            aten.is_non_overlapping_and_dense.default(t) and _is_within(part, t)
        ):
            raise InplaceError(
                "a write through as_strided of a tensor that does not fill its memory, which may "
                "reach elements beside it. Take as_strided of the tensor that it is a view of, "
                f"or of a contiguous copy.{here()}"
            )
        t = part


def _is_within(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Return whether ``part`` shows no memory before the first element of ``whole`` or after its
    last."""
    (first, last), (start, stop) = _span(part), _span(whole)
    return not part.numel() or bool(start <= first and last <= stop)


def _span(t: torch.Tensor) -> tuple[Any, Any]:
    """Return the places in memory of the first and the last element."""
    first = t.storage_offset()
    return first, first + sum((n - 1) * size for n, size in zip(t.shape, t.stride(), strict=True))


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors of one shape have their elements at the same places, as far as
    there are several."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return True
    return all(n == 1 or p == q for n, p, q in zip(a.shape, a.stride(), b.stride(), strict=True))


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether a write to ``one`` changes an element of ``other``, as far as the memory under
    their levels shows it."""
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
    # elements of two sizes have no places in common to compare, so the ranges decide
    if a.dtype is not b.dtype:
        return True
    start, end = min(a_start, b_start) // a.itemsize, max(a_end, b_end) // a.itemsize
    with without_modes(), without_dispatch_to_python():
        # marks the places of one tensor, and looks for a mark at those of the other one
        marks = torch.zeros(end - start, dtype=torch.bool)
        marks.as_strided(b.shape, b.stride(), b.storage_offset() - start).fill_(True)
        return bool(marks.as_strided(a.shape, a.stride(), a.storage_offset() - start).any())


def _bytes_of(t: torch.Tensor) -> tuple[int, int]:
    """Return the bytes of its storage from the first of ``t`` to after the last."""
    last = sum((int(n) - 1) * int(size) for n, size in zip(t.shape, t.stride(), strict=True))
    first = int(t.storage_offset())
    return first * t.itemsize, (first + last + 1) * t.itemsize


def _memory_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the plain tensor in whose memory the elements of ``tensor`` lie. None if there is
    none."""
    while isinstance(tensor, Value):
        tensor = tensor._inner
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    # it has no memory
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
    chain: Sequence[Step],
    write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return ``base`` after ``write``, which gets the view of a copy and the copy, writes to the
    view and returns it."""
    copy: torch.Tensor
    if has_gaps(base):  # then a clone has other strides
        copy = aten.copy.default(base, base)
    elif base.storage_offset() or shows_twice(base):
        copy = aten.as_strided_scatter.default(
            base, base, base.shape, base.stride(), base.storage_offset()
        )
    else:
        copy = base.clone()
    # the chain of the view, taken of the copy
    part = copy
    for step in chain:
        part = _take_view(part, *step)
    written = write(part, copy)
    # only a graph has to show that the base comes after the write
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
            written, [*shape, 2], [*(2 * s for s in strides), 1], 2 * offset
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


def _take_view(
    tensor: torch.Tensor,
    func: Any,
    rest: tuple[object, ...],
    kwargs: dict[str, object],
    which: int | None,
) -> torch.Tensor:
    """Run one step of a chain of views."""
    out = func(tensor, *rest, **kwargs)
    part: torch.Tensor = out if which is None else out[which]
    return part
