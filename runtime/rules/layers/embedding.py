"""Register lookups in an embedding table, and sums, means and maxima of bags of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.families import linear
from ..derive.index_rules import folded
from ..derive.optional import add_present, map_optional
from ..record import register
from ..samples.factors import Rows

aten = torch.ops.aten
Tensor = torch.Tensor
SUM, MEAN, MAX = range(3)  # modes of a bag


def _table_rows(indices: Tensor, rows: int, size: int, padding_idx: int = -1) -> Tensor:
    """Return indices (B, …) into the tables of all elements, as indices into the stack of these
    tables. Each table has ``rows`` rows.

    All padding indices become that of the first table, because the kernel takes one padding index.
    Its row takes no part in any case.
    """
    places = folded(indices, rows, size)
    if padding_idx < 0:
        return places
    return torch.where(indices == padding_idx, indices, places)


def _bag_starts(offsets: Tensor, n: int, size: int) -> Tensor:
    """Return the starts of the bags in one list of the indices of all elements. Each element has
    ``n`` indices and the offsets (B, bags).

    The kernel refuses a list whose first bag does not start at 0. So if the offsets of any element
    do not start at 0, the list does not either. CUDA's kernel starts the first bag at 0 instead,
    whatever the first offset is.
    """
    if not offsets.shape[1]:
        return offsets.reshape(-1)
    start = torch.arange(size, device=offsets.device, dtype=offsets.dtype).unsqueeze(1) * n
    if offsets.is_cuda:
        return torch.cat([start, offsets[:, 1:] + start], dim=1).reshape(-1)
    # an offset that is wrong for its own element must be wrong in the list, too
    starts = torch.where((offsets >= 0) & (offsets <= n), offsets + start, size * n + 1).reshape(-1)
    return torch.cat([offsets[:, 0].abs().amax().reshape(1), starts[1:]])


# ---- embedding

_DEFAULTS: tuple[object, ...] = (-1, False, False)  # after weight, indices


def _embedding_vjp(
    g: Tensor,
    weight_shape: Sequence[int],
    indices: Tensor,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> object:
    """Return the gradient of the table, dense or sparse."""
    backward = aten.embedding_dense_backward
    if sparse:
        backward = aten.embedding_sparse_backward
    return backward(g, indices, weight_shape[0], padding_idx, scale_grad_by_freq)


def _embedding_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Look up a batch. Tables of a batch with the same indices become one wide table. With other
    indices they become one stack of rows."""
    full: list[Any] = [*args, *_DEFAULTS[len(args) - 2 :]]
    weight, indices, padding_idx, scale, sparse = full
    # frequencies are counted per element of the batch, so its indices must not be in one list
    if not batched[0] and not (scale and batched[1]):
        return func(*args)
    # the same rows of each table: the tables side by side
    if not batched[1]:
        rows, width = weight.shape[1:]
        out = func(
            weight.transpose(0, 1).reshape(rows, size * width), indices, padding_idx, scale, sparse
        )
        return out.unflatten(-1, (size, width)).movedim(-2, 0)
    weight = batch.expand(weight, batched[0], size)
    rows = weight.shape[1]
    out = func(weight.flatten(0, 1), _table_rows(indices, rows, size), -1, scale, sparse)
    # in the stack each table has a row of padding, which gets no gradient
    if padding_idx < 0:
        return out
    return torch.where((indices == padding_idx).unsqueeze(-1), out.detach(), out)


def _pick_rows(
    g: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> object:
    """Return the transpose of ``embedding_dense_backward``."""
    out = aten.embedding(g, indices)
    if scale_grad_by_freq:
        flat = indices.reshape(-1)
        counts = torch.zeros_like(g[:, 0]).scatter_add(
            0, flat, torch.ones_like(flat, dtype=g.dtype)
        )
        out = out / counts.index_select(0, flat).reshape(*indices.shape, 1)
    if padding_idx < 0:
        return out
    return torch.where((indices == padding_idx).unsqueeze(-1), 0, out)


def _dense_backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run the backward op on a batch, as one for a wide or stacked table."""
    g, indices, rows, padding_idx, scale = args
    width = g.shape[-1]
    if not batched[1]:
        out = func(g.movedim(0, -2).flatten(-2), indices, rows, padding_idx, scale)
        return out.unflatten(-1, (size, width)).movedim(-2, 0)
    g = batch.expand(g, batched[0], size)
    table_rows = _table_rows(indices, rows, size, padding_idx)
    return func(g, table_rows, size * rows, padding_idx, scale).unflatten(0, (size, rows))


def _rows(
    g: Tensor,
    weight_shape: Sequence[int],
    indices: Tensor,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Rows | None:
    """Return the gradients of the table for each sample, in factors.

    ``weight_shape``: the shape of the table, without a batch. The frequencies are those of a
    sample, and there are no factors for them.
    """
    if scale_grad_by_freq:
        return None
    return Rows(indices, g, weight_shape[0], padding_idx)


linear(
    "embedding",
    {"weight": _embedding_vjp},
    _embedding_batch,
    fresh=True,
    family="embedding",
    per_sample={"weight": _rows},
)
linear(
    "embedding_dense_backward",
    {"grad_output": _pick_rows},
    _dense_backward_batch,
    fresh=True,
    cost="high",
    family="embedding",
)


# ---- bags: result1 is offset2bag (sometimes empty, so not relied on), result2 the sizes of the
# bags, result3 the winners of a maximum


def _bag_of(indices: Tensor, offsets: Tensor, bags: int) -> Tensor:
    """Return the bag of each index. The last bag extends to the end, also if ``offsets`` ends with
    the total length. The first one starts at 0, also if CUDA's kernel was given another offset."""
    at = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    return (torch.searchsorted(offsets, at, right=True) - 1).clamp(0, bags - 1)


def _weight_vjp(
    g: Tensor,
    weight_shape: Sequence[int],
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int,
    result2: Tensor,
    result3: Tensor,
) -> object:
    """Return the gradient of the table: each row gets the cotangents of its bags."""
    if mode == MAX:
        by_row = g.new_zeros(weight_shape)
        by_winner = torch.where((result2 > 0).unsqueeze(1), g, 0)  # an empty bag has none
        return by_row.scatter_add(0, result3, by_winner)
    bag = _bag_of(indices, offsets, g.shape[0])
    # each looked-up row gets the cotangent of its bag, by the weight of the row in it
    rows = g.index_select(0, bag)
    if mode == MEAN:
        # Rows of padding do not count, so the size of a bag may be 0.
        rows = rows / result2.index_select(0, bag).clamp_min(1).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    return _embedding_vjp(rows, weight_shape, indices, padding_idx, scale_grad_by_freq, sparse)


def _per_sample_vjp(
    g: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, padding_idx: int
) -> Tensor:
    """Return the gradients of the weights of the rows in their bags."""
    rows = aten.embedding(weight, indices)
    out: Tensor = (rows * g.index_select(0, _bag_of(indices, offsets, g.shape[0]))).sum(1)
    if padding_idx < 0:
        return out
    return torch.where(indices == padding_idx, 0, out)


def _bag_jvp(
    weight_t: Tensor | None,
    per_sample_weights_t: object,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    mode: int,
    per_sample_weights: object,
    include_last_offset: bool,
    padding_idx: int,
    result2: Tensor,
    result3: Tensor,
) -> tuple[object, None, None, None]:
    """Return the tangent of the bags, by the table and by the weights."""

    def bag(table: Tensor, weights: object) -> Tensor:
        """Return the bags of a table."""
        sums: Tensor = aten._embedding_bag(
            table, indices, offsets, False, mode, False, weights, include_last_offset, padding_idx
        )[0]
        return sums

    # a maximum takes the tangents of the rows that won; a sum or mean is linear in the table
    by_table = by_weights = None
    if weight_t is not None and mode == MAX:
        by_table = torch.where((result2 > 0).unsqueeze(1), weight_t.gather(0, result3), 0)
    elif weight_t is not None:
        by_table = bag(weight_t, per_sample_weights)
    if per_sample_weights_t is not None:
        by_weights = bag(weight, per_sample_weights_t)
    return add_present(by_table, by_weights), None, None, None


# after weight, indices, offsets
_BAG_DEFAULTS: tuple[object, ...] = (False, SUM, False, None, False, -1)


def _bag_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Run all elements as one list of bags. If the tables are batched, they are
    stacked into one."""
    full: list[Any] = [*args, *_BAG_DEFAULTS[len(args) - 3 :]]
    weight, indices, offsets, scale, mode, sparse, samples, last, padding_idx = full
    indices = batch.expand(indices, batched[1], size)
    offsets = batch.expand(offsets, batched[2], size)
    samples = batch.expand(samples, batch.positional(batched, 6, False), size)
    # the last offset is the end of the last bag, where the first one of the next element begins
    if last:
        offsets = offsets[:, :-1]
    n, bags = indices.shape[1], offsets.shape[1]
    rows = weight.shape[int(batched[0])]
    own = batched[0] or scale  # frequencies are counted per element of the batch
    if own:
        indices = _table_rows(indices, rows, size, padding_idx)
        weight = batch.expand(weight, batched[0], size).flatten(0, 1)
    out, bag, sizes, winners = func(
        weight,
        indices.reshape(-1),
        _bag_starts(offsets, n, size),
        scale,
        mode,
        sparse,
        map_optional(lambda t: t.reshape(-1), samples),
        False,
        padding_idx,
    )
    if winners.dim() == 2 and own:  # back to rows of each element's own table
        winners = winners.remainder(rows)
    # bags are numbered through all elements, and each element counts its own from 0
    if bag.numel() == size * n:
        bag = bag.reshape(size, n).remainder(max(bags, 1))
    else:
        bag = bag.new_zeros(size, 0)
    results = (out, sizes, winners)
    out, sizes, winners = (_by_element(result, size, bags) for result in results)
    return out, bag, sizes, winners


def _by_element(result: Tensor, size: int, bags: int) -> Tensor:
    """Return a result with the bags of each element apart, or empty where the kernel left it
    out."""
    if result.shape[0] == size * bags:
        return result.unflatten(0, (size, -1))  # type: ignore[no-any-return]
    return result.new_zeros(size, 0)


register(
    "_embedding_bag",
    vjp={"weight": _weight_vjp, "per_sample_weights": _per_sample_vjp},
    jvp=_bag_jvp,
    batch=_bag_batch,
    cost="high",
    family="embedding",
)


def _bag_rows(
    g: Tensor, weight_shape: Sequence[int], indices: Tensor, offsets: Tensor,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Tensor | None, padding_idx: int,
) -> Rows | None:  # fmt: skip
    """Return the cotangent of each bag at its indices. ``indices``: (B, T). ``offsets``: (B,
    bags)."""
    if scale_grad_by_freq or mode == MAX:
        return None
    # the bag of each index: the last one that starts before it
    places = torch.arange(indices.shape[1], device=indices.device)
    bags = (places.unsqueeze(1) >= offsets.unsqueeze(1)).sum(2) - 1
    each = g.gather(1, bags.unsqueeze(2).expand(-1, -1, g.shape[2]))
    if mode == MEAN:
        sizes = torch.zeros_like(offsets).scatter_add(
            1, bags, (indices != padding_idx).to(offsets.dtype)
        )
        each = each / sizes.gather(1, bags).clamp_min(1).unsqueeze(2)
    if per_sample_weights is not None:
        each = each * per_sample_weights.unsqueeze(2)
    return Rows(indices, each, weight_shape[0], padding_idx)


# ATen chooses this op if no gradient is needed, but it does not know about gradients of this
# runtime.
register(
    "_embedding_bag_forward_only",
    decomposition=lambda *args: aten._embedding_bag(*args),
    family="embedding",
    per_sample={"weight": _bag_rows},
)
