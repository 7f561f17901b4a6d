"""Run indexing on batches. A batch of indices becomes one more index, or indices into the rows of
all elements together.

For ``x[i]`` with a batch of both, the call is ``x[arange(size), i]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import BatchingError
from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ...seam.shells import is_batched_number
from ...torch_private.dispatcher import OpOverload
from .batch_rules import expand, insert_dims, shift
from .fixed_layouts import broadcast_shape


def gather_or_scatter(
    func: OpOverload, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``gather`` or ``scatter*``: ``(self, dim, index, …)``, all tensors of one rank. A 0-d
    tensor counts as a vector."""
    actual = list(args)
    for index, (argument, is_batched) in enumerate(zip(args, batched, strict=True)):
        if isinstance(argument, torch.Tensor):
            actual[index] = _at_least_vectors(expand(argument, is_batched, size))
    # the dimension is checked against the logical rank, which the error of `shift` names
    rank = args[0].dim() - (batched[0] is True)
    actual[1] = shift(args[1], max(rank, 1))
    out = func(*actual, **kwargs)
    like = 0  # the argument with the shape of the result
    if func._schema.name == "aten::gather":
        like = 2
    if args[like].dim() - batched[like] == 0:
        return out.squeeze(1)
    return out


def _at_least_vectors(t: torch.Tensor) -> torch.Tensor:
    """Return a physical batch whose elements are vectors where they were 0-d tensors."""
    if t.dim() == 1:
        return t.unsqueeze(1)
    return t


def _wrap(index: torch.Tensor, n: int) -> torch.Tensor:
    """Return indices into ``n`` rows, with those that count from the end from the start."""
    return torch.where(index < 0, index + n, index)


def folded(index: torch.Tensor, n: int, size: int) -> torch.Tensor:
    """Return indices (B, …) into ``n`` rows of each element, as indices into the rows of all
    elements together.

    An index that is out of range for its element gets a number that is out of range for all, so
    that the kernel refuses it.
    """
    element = torch.arange(size, device=index.device, dtype=index.dtype)
    start = element.reshape(size, *[1] * (index.dim() - 1)) * n
    return torch.where((index >= 0) & (index < n), index + start, size * n)


def rows(func: Any, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords) -> Any:
    """Run ``index_add``, ``index_copy``, ``index_fill`` or ``index_reduce``: ``(self, dim, index,
    source or value, …)``.

    For a batch of indices, the batch dimension is folded into the indexed one.
    """
    x, dim, index, *rest = args
    scalar = x.dim() - batched[0] == 0
    x = _at_least_vectors(expand(x, batched[0], size))
    dim = shift(dim, x.dim() - 1)
    has_source = isinstance(rest[0], torch.Tensor) and _has_argument(func, "source")
    if has_source:
        rest[0] = _at_least_vectors(expand(rest[0], batched[3], size))
    if not batched[2]:
        out = func(x, dim, index, *rest, **kwargs)
    else:
        n = x.shape[dim]
        flat = x.movedim(dim, 1)
        index = index.reshape(size, -1)
        if "fill" in func._schema.name:  # the others refuse negative indices
            index = _wrap(index, n)
        # all elements as one tensor, whose indexed dimension has the rows of every element
        index = folded(index, n, size).reshape(-1)
        if has_source:
            rest[0] = rest[0].movedim(dim, 1).flatten(0, 1)
        out = func(flat.flatten(0, 1), 0, index, *rest, **kwargs)
        out = out.reshape(flat.shape).movedim(1, dim)
    if scalar:
        return out.squeeze(1)
    return out


def _has_argument(func: OpOverload, name: str) -> bool:
    return any(argument.name == name for argument in func._schema.arguments)


def selected(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``index_select``: one selection for all elements, or one for each."""
    x, dim, index = args
    scalar = x.dim() - batched[0] == 0
    if scalar:
        x = x.unsqueeze(-1)
    # the indices of all elements in one row, of which each element gets its part
    if not batched[0]:
        dim = shift(dim, x.dim()) - 1
        out = func(x, dim, index.reshape(-1)).unflatten(dim, (size, -1)).movedim(dim, 0)
    elif not batched[2]:
        out = func(x, shift(dim, x.dim() - 1), index)
    else:
        dim = shift(dim, x.dim() - 1)
        # a selection for each element is a gather of whole rows
        index = index.reshape(size, *[1] * (dim - 1), -1, *[1] * (x.dim() - 1 - dim))
        shape = list(x.shape)
        shape[dim] = index.shape[dim]
        out = x.gather(dim, index.expand(shape))
    if scalar:
        return out.squeeze(1)
    return out


def _integer_indices(
    indices: Sequence[torch.Tensor | None], flags: Sequence[bool] | None
) -> tuple[list[Any], list[bool], int]:
    """Return integer indices, their flags, and the rank of the selection. An unbatched mask becomes
    one index per dimension of the mask."""
    out: list[Any] = []
    which: list[bool] = []
    flags = flags or (False,) * len(indices)
    for tensor, is_batched in zip(indices, flags, strict=True):
        if tensor is None or tensor.dtype not in (torch.bool, torch.uint8):
            out.append(tensor)
            which.append(is_batched)
            continue
        if is_batched:
            raise BatchingError(
                "vmap: indexing with a mask gives a result whose shape depends on the data, "
                "which differs between the elements of a batch; use torch.where or masked_fill"
            )
        parts = tensor.nonzero(as_tuple=True)
        out.extend(parts)
        which.extend([False] * len(parts))
    # indices broadcast against one another, and the widest one decides
    ranks = [
        tensor.dim() - is_batched
        for tensor, is_batched in zip(out, which, strict=True)
        if tensor is not None
    ]
    return out, which, max(ranks, default=0)


def _align_indices(indices: list[Any], flags: list[bool], rank: int, size: int) -> list[Any]:
    """Return the indices without None, with each batched one reshaped to the batch dimension
    followed by ``rank`` others."""
    chosen = []
    for tensor, is_batched in zip(indices, flags, strict=True):
        if is_batched:
            chosen.append(insert_dims(tensor, size, rank - tensor.dim() + 1))
        elif tensor is not None:
            chosen.append(tensor)
    return chosen


def _places(indices: list[object], flags: list[bool]) -> tuple[list[int], int, bool]:
    """Return the indexed dimensions, the position of the selected dimensions in the result, and
    whether the indexed dimensions lie apart.

    Adjacent indexed dimensions are replaced in place by the selected ones. Otherwise the selected
    ones come first. A batched 0-d index counts as a number: ``x[index, :, [0, 1]]`` is
    ``x[index][:, [0, 1]]``, in which the indexed dimensions are adjacent.
    """
    at = [dim for dim, index in enumerate(indices) if index is not None]
    proper = [position for position in at if not _is_number(indices[position], flags[position])]
    if not proper:
        return at, 0, False
    first, last = proper[0], proper[-1]
    # a whole dimension between them: they lie apart
    if any(index is None for index in indices[first:last]):
        return at, 0, True
    # each whole dimension before them keeps its place in front of the selected ones
    return at, sum(index is None for index in indices[:first]), False


def _is_number(index: Any, batched: bool) -> bool:
    """Return whether one element alone would see a 0-d index."""
    return (batched and index.dim() == 1) or is_batched_number(index)


def index(func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object) -> Any:
    """Run ``index``. If an index other than that of the batch has a batch, the batch dimension is
    indexed too, by the positions in the batch."""
    x = args[0]
    indices, flags, rank = _integer_indices(args[1], batched[1])
    at, place, apart = _places(indices, flags)
    if not any(flags):
        out = func(x, [None, *indices])
        if apart:  # the selected dimensions come before the batch
            return out.movedim(rank, 0)
        return out
    chosen = _align_indices(indices, flags, rank, size)
    # indexed dimensions move to the front, where their selection comes out behind the batch
    if not batched[0]:
        order = _indexed_first(at, x.dim())
        out = func(x.permute(order), chosen)
    else:
        order = _behind_batch(_indexed_first(at, x.dim() - 1))
        lines = torch.arange(size, device=x.device).reshape(size, *[1] * rank)
        out = func(x.permute(order), [lines, *chosen])
    if not place or not rank:
        return out
    # adjacent indices have their selection in their place
    return out.movedim(_run_of(1, rank), _run_of(1 + place, rank))


def _indexed_first(at: list[int], rank: int) -> list[int]:
    """Return an order of ``rank`` dimensions: those in ``at``, then the others."""
    return [*at, *(dim for dim in range(rank) if dim not in at)]


def _behind_batch(order: list[int]) -> list[int]:
    """Return the physical order for a logical one. The batch dimension comes first."""
    return [0, *(dim + 1 for dim in order)]


def _run_of(first: int, number: int) -> list[int]:
    return list(range(first, first + number))


def _masked_put(
    x: torch.Tensor, mask: torch.Tensor, values: Any, flags: object, size: int, accumulate: bool
) -> Any:
    """Return ``x`` after ``x[mask] = values``, by ``where``, for a mask over the first dimensions
    and values that are the same at every true element."""
    rest = x.dim() - mask.dim()
    # a mask on the CPU may index a tensor elsewhere
    mask = mask.reshape(*mask.shape, *[1] * rest).to(x.device)
    if flags:
        values = insert_dims(values, size, x.dim() - values.dim())
    values = values.to(x.dtype)
    if accumulate:
        values = x + values
    return torch.where(mask, values, x)


def index_put(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> Any:
    """Run ``index_put``. Indexed dimensions move to the front, and the batch before them. The
    positions in the batch index it."""
    x, all_indices, values, *rest = args
    x = expand(x, batched[0], size)
    if batched[1] and _is_one_mask(all_indices, x.dim(), values.dim() - batched[2]):
        return _masked_put(x, all_indices[0], values, batched[2], size, bool(rest and rest[0]))
    # all indices with the batch in front, and the batch itself as one more of them
    indices, flags, rank = _integer_indices(all_indices, batched[1])
    at, place, _ = _places(indices, flags)
    chosen = _align_indices(indices, flags, rank, size)
    order = _indexed_first(at, x.dim() - 1)
    lines = torch.arange(size, device=x.device).reshape(size, *[1] * rank)
    picked = broadcast_shape(lines.shape, *(tensor.shape for tensor in chosen))[1:]
    other_sizes = [x.shape[dim + 1] for dim in order[len(at) :]]
    # the shape of what the indices pick from one element, to which its values broadcast
    shape = [*other_sizes[:place], *picked, *other_sizes[place:]]
    values = _expanded_values(values, batched[2], size, shape)
    if place and rank:
        values = values.movedim(_run_of(1 + place, rank), _run_of(1, rank))
    order = _behind_batch(order)
    out = func(x.permute(order), [lines, *chosen], values, *rest, **kwargs)
    # back to the order of the dimensions of `x`
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return out.permute(inverse)


def _is_one_mask(indices: Any, rank: int, rank_of_values: int) -> bool:
    """Return whether the indices are one mask, and the values the same at every true element.
    ``rank``: of the tensor, with the batch."""
    if len(indices) != 1 or indices[0].dtype is not torch.bool:
        return False
    return rank_of_values <= rank - indices[0].dim()  # type: ignore[no-any-return]


def _expanded_values(values: torch.Tensor, batched: bool, size: int, shape: list[int]) -> Any:
    """Return the values of each element, expanded to ``shape``, that of what the indices pick."""
    own = list(values.shape[int(batched) :])
    # the batch below would take its first dimension for the batch dimension
    if len(own) > len(shape):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {own} cannot be broadcast to indexing "
            f"result of shape {shape}"
        )
    if batched:
        values = insert_dims(values, size, len(shape) - values.dim() + 1)
    return values.expand(size, *shape)


def _indexed_by_batched_numbers(args: Arguments) -> bool:
    """Return whether an index is a batched 0-d tensor. One element alone would select by it
    (``x[i]``), so the op has another shape there."""
    return any(index is not None and is_batched_number(index) for index in args[1])


# see `runtime.func.element_check`
index_put.differs = _indexed_by_batched_numbers  # type: ignore[attr-defined]
