"""Register gathers, scatters and other indexing. Indices and masks have no gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import BatchingError
from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import index_rules
from ..derive.batch_rules import expand, insert_dims
from ..derive.families import conj, linear
from ..derive.fixed_layouts import broadcast_shape, pad_to
from ..record import register
from ..samples.factors import Rows

aten = torch.ops.aten

# One index per element


def _gather_back(
    g: torch.Tensor, self_shape: Sequence[int], dim: int, index: torch.Tensor
) -> torch.Tensor:
    return g.new_zeros(self_shape).scatter_add(dim, index, g)


def _gather_source(
    g: torch.Tensor, dim: int, index: torch.Tensor, src_shape: Sequence[int]
) -> torch.Tensor:
    """Return the cotangent of the source of a scatter: that of the places it went to."""
    part = g.gather(dim, index)
    if len(src_shape) != index.dim():  # the index has no elements, or one of the two is a number
        if 0 in index.shape:
            return g.new_zeros(src_shape)
        part = part.reshape([1] * len(src_shape))
    # a source may be larger than the index; its other elements are not used
    return pad_to(part, src_shape)


linear("gather", {"self": _gather_back}, index_rules.gather_or_scatter)
linear(
    "scatter_add",
    {"self": lambda g: g, "src": _gather_source},
    index_rules.gather_or_scatter,
    cost="high",
)
linear(
    "scatter.src",
    {"self": lambda g, dim, index: g.scatter(dim, index, 0), "src": _gather_source},
    index_rules.gather_or_scatter,
)
register(
    "scatter.value",
    vjp={"self": lambda g, dim, index: g.scatter(dim, index, 0)},
    jvp={"self": lambda self_t, dim, index: self_t.scatter(dim, index, 0)},
    batch=index_rules.gather_or_scatter,
)
_REDUCE = {"add": "sum", "multiply": "prod"}  # the names that `scatter_reduce` has for them
register(
    "scatter.reduce",
    decomposition=lambda self, dim, index, src, *, reduce: torch.scatter_reduce(
        self, dim, index, src, _REDUCE[reduce]
    ),
    batch=index_rules.gather_or_scatter,
)
register(
    "scatter.value_reduce",
    decomposition=lambda self, dim, index, value, *, reduce: torch.scatter_reduce(
        self, dim, index, self.new_full(index.shape, value), _REDUCE[reduce]
    ),
    batch=index_rules.gather_or_scatter,
)

# One index per row


def _index_select_back(
    g: torch.Tensor, self_shape: Sequence[int], dim: int, index: torch.Tensor
) -> torch.Tensor:
    return g.new_zeros(self_shape).index_add(dim, index, g)


def _rows_of(
    g: torch.Tensor, dim: int, index: torch.Tensor, source_shape: Sequence[int]
) -> torch.Tensor:
    return g.index_select(dim, index.reshape(-1)).reshape(source_shape)


def _fill_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``index_fill`` on a batch. A batch of values is put in by ``where`` at the filled
    positions."""
    x, dim, index, value = args
    if not batched[3]:
        return index_rules.rows(func, size, batched, args, kwargs)
    rank = x.dim() - int(batched[0])
    like = x
    if not batched[2]:
        like = expand(x, batched[0], size)
    # a mask of the filled places, by the same op on booleans
    flags = (bool(batched[0] or not batched[2]), False, batched[2], False)
    nowhere = torch.zeros_like(like, dtype=torch.bool)
    fill = aten.index_fill.int_Scalar
    mask = index_rules.rows(fill, size, flags, (nowhere, dim, index, True), {})
    return torch.where(mask, value.reshape(size, *[1] * rank).to(x.dtype), x)


def _selected_rows(
    g: torch.Tensor, self_shape: Sequence[int], dim: int, index: torch.Tensor
) -> Rows | None:
    """Return the gradients of a table, in factors."""
    if len(self_shape) != 2 or dim not in (0, -2):
        return None
    return Rows(index, g, self_shape[0])


def _indexed_rows(
    g: torch.Tensor, self_shape: Sequence[int], indices: Sequence[torch.Tensor | None]
) -> Rows | None:
    """Return the gradients of a table that is indexed by one tensor of row numbers."""
    if len(self_shape) != 2 or len(indices) != 1:
        return None
    (numbers,) = indices
    if numbers is None or numbers.dtype in (torch.bool, torch.uint8):
        return None
    # a negative number counts from the last row
    return Rows(numbers.remainder(self_shape[0]), g, self_shape[0])


linear(
    "index_select",
    {"self": _index_select_back},
    index_rules.selected,
    per_sample={"self": _selected_rows},
)
linear(
    "index_add",
    {
        "self": lambda g: g,
        "source": lambda g, dim, index, source_shape, alpha: (
            _rows_of(g, dim, index, source_shape) * conj(alpha)
        ),
    },
    index_rules.rows,
)
linear(
    "index_copy",
    {"self": lambda g, dim, index: g.index_fill(dim, index, 0), "source": _rows_of},
    index_rules.rows,
)
register(
    "index_fill.int_Scalar",
    vjp={"self": lambda g, dim, index: g.index_fill(dim, index, 0)},
    jvp={"self": lambda self_t, dim, index: self_t.index_fill(dim, index, 0)},
    batch=index_rules.rows,
)
linear(
    "index_fill.int_Tensor",
    {
        "self": lambda g, dim, index: g.index_fill(dim, index, 0),
        "value": lambda g, dim, index: torch.where(
            torch.zeros_like(g, dtype=torch.bool).index_fill(dim, index, True), g, 0
        ).sum(),
    },
    _fill_batch,
)

# Advanced indexing


def _index_back(g: torch.Tensor, self_shape: Sequence[int], indices: object) -> object:
    # accumulating, as an element that is picked twice has the sum of both cotangents
    return aten.index_put(g.new_zeros(self_shape), indices, g, True)


def _put_self_back(g: torch.Tensor, indices: object, accumulate: bool) -> torch.Tensor:
    if accumulate:
        return g
    overwritten: torch.Tensor = aten.index_put(g, indices, g.new_zeros(()))
    return overwritten


def _put_values_back(g: torch.Tensor, indices: Any, values_shape: Sequence[int]) -> object:
    """Return the cotangent of the values that ``index_put`` wrote."""
    mask = indices[0]
    if len(indices) == 1 and mask.dtype is torch.bool and len(values_shape) <= g.dim() - mask.dim():
        # The values broadcast over the true elements. The engine sums over these, so no shape
        # depends on the mask. A mask on the CPU may index a tensor elsewhere.
        mask = mask.reshape(*mask.shape, *[1] * (g.dim() - mask.dim()))
        return torch.where(mask.to(g.device), g, 0)
    return aten.index(g, indices)


for _unsafe in ("", "_unsafe_"):
    linear(
        f"{_unsafe}index.Tensor",
        {"self": _index_back},
        index_rules.index,
        per_sample={"self": _indexed_rows},
    )
    linear(
        f"{_unsafe}index_put",
        {"self": _put_self_back, "values": _put_values_back},
        index_rules.index_put,
        cost="high",
    )
linear(
    "_index_put_impl", {"self": _put_self_back, "values": _put_values_back}, index_rules.index_put
)

# Indices into a flattened tensor

linear(
    "take",
    {"self": lambda g, self_shape, index: g.new_zeros(self_shape).put(index, g, accumulate=True)},
    decomposition=lambda self, index: aten.index(self.reshape(-1), [index]),
)
linear(
    "put",
    {
        "self": lambda g, index, accumulate: (
            g if accumulate else g.put(index, g.new_zeros(index.shape))
        ),
        "source": lambda g, index, source_shape: g.take(index).reshape(source_shape),
    },
    decomposition=lambda self, index, source, accumulate=False: aten.index_put(
        self.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate
    ).reshape(self.shape),
)

# Masks


def _ranks(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Return for each element of the flattened mask the number of true elements before it: the
    index of the source element that it takes."""
    return (mask.reshape(-1).cumsum(0) - 1).clamp(0, max(count - 1, 0))


def _masked_scatter(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> object:
    """Return ``self`` with the elements of ``source``, in order, at the true elements of the
    mask."""
    if not source.numel():
        return self.clone()
    shape = broadcast_shape(self.shape, mask.shape)
    self, mask = self.expand(shape), mask.expand(shape)
    taken = source.reshape(-1).index_select(0, _ranks(mask, source.numel())).reshape(mask.shape)
    return torch.where(mask, taken, self)


def _masked_scatter_source(
    g: torch.Tensor, mask: torch.Tensor, source_shape: Sequence[int]
) -> torch.Tensor:
    """Return the cotangent of the source: each element gets that of the place it went to."""
    mask = mask.expand(g.shape)
    source = g.new_zeros(source_shape).reshape(-1)
    if not source.numel():
        return source.reshape(source_shape)
    ranks = _ranks(mask, source.numel())
    return source.index_add(0, ranks, g.masked_fill(~mask, 0).reshape(-1)).reshape(source_shape)


def _masked_select_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Select from a batch by one mask. A batch of masks is an error."""
    if batched[1]:
        raise BatchingError(
            "vmap: aten::masked_select with a batch of masks returns results whose shapes differ "
            "between the elements of the batch; use torch.where or masked_fill"
        )
    x, mask = args
    # tensor and mask broadcast, and then each element selects the same places
    shape = broadcast_shape(x.shape[1:], mask.shape)
    x = insert_dims(x, size, len(shape) - x.dim() + 1).expand(size, *shape)
    numbers = mask.expand(shape).reshape(-1).nonzero().reshape(-1)
    return x.reshape(size, -1).index_select(1, numbers)


linear(
    "masked_scatter",
    {"self": lambda g, mask: g.masked_fill(mask, 0), "source": _masked_scatter_source},
    decomposition=_masked_scatter,
)
register(
    "masked_scatter_backward",
    decomposition=lambda grad_output, mask, sizes: _masked_scatter_source(grad_output, mask, sizes),
)
linear(
    "masked_select",
    {
        "self": lambda g, self_shape, mask: g.new_zeros(
            broadcast_shape(self_shape, mask.shape)
        ).masked_scatter(mask, g)
    },
    _masked_select_batch,
)

# Reductions into indexed places


@dataclass(frozen=True, slots=True)
class _Places:
    """The places that the sources of a reduction go to."""

    dim: int
    # The place of each source along `dim`.
    index: torch.Tensor
    # read(t): the values of `t` at the places of the sources.
    read: Callable[[torch.Tensor], torch.Tensor]
    # add(t, s): `t` with the sources `s` added at their places.
    add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    # clear(t): `t` with zeros at all places.
    clear: Callable[[torch.Tensor], torch.Tensor]
    # again(t, s): the same reduction of other tensors.
    again: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    # Whether the old value of a place takes part.
    include_self: bool

    def clear_if_excluded(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``t``, with zeros at all places if their old values take no part."""
        if self.include_self:
            return t
        return self.clear(t)


def _reduced_back(
    at: _Places, g: torch.Tensor, self: Any, src: torch.Tensor, result: Any, reduce: str
) -> tuple[Any, Any]:
    """Return the gradients of (self, src)."""
    if reduce in ("sum", "add"):
        grad_self, grad_src = g, at.read(g)
    elif reduce == "mean":
        start = torch.ones_like(g) if at.include_self else torch.zeros_like(g)
        count = at.add(start, torch.ones_like(src))
        count = torch.where(count == 0, 1, count)
        grad_self, grad_src = g / count, at.read(g / count)
    elif reduce == "prod":
        # the product of all others, for self and for each source, so that zeros need no division
        grad_self = g * conj(at.again(torch.ones_like(self), src))
        by_sources = g * conj(self) if at.include_self else g
        grad_src = at.read(by_sources) * conj(_product_of_others(src, at.dim, at.index))
    else:  # all elements that attain a maximum or minimum share its gradient equally
        mine = at.clear_if_excluded((self == result).to(g.dtype))
        theirs = (src == at.read(result)).to(g.dtype)
        count = at.add(mine, theirs)
        share = g / torch.where(count == 0, 1, count)
        grad_self, grad_src = mine * share, theirs * at.read(share)
    return at.clear_if_excluded(grad_self), grad_src


def _product_of_others(src: torch.Tensor, dim: int, index: torch.Tensor) -> object:
    """Return for each source the product of the other sources with the same place.

    It avoids division, so that derivatives of every order are right if sources are zero. With
    sources sorted by place, it is the product of those before times the product of those after.
    """
    if not src.dim() or src.shape[dim] < 2:
        return torch.ones_like(src)
    # sources with one place side by side
    order = index.argsort(stable=True, dim=dim)  # its inverse puts the products back below
    index, src = index.gather(dim, order), src.gather(dim, order)
    before = _products_before(src, dim, index)
    after = _products_before(src.flip(dim), dim, index.flip(dim)).flip(dim)
    return (before * after).gather(dim, order.argsort(dim))


def _products_before(src: Any, dim: int, index: object) -> Any:
    """Return the products of the earlier sources with the same index. Equal indices are adjacent. A
    scan in a logarithmic number of steps."""
    n, step = src.shape[dim], 1
    product = _after(index, torch.ones_like(src), src, dim, 1)
    while step < n - 1:
        product = _after(index, product, product, dim, step)
        step *= 2
    return product


def _after(index: Any, at: Any, earlier: Any, dim: int, step: int) -> object:
    """Return ``at`` times the value of ``earlier`` that lies ``step`` places before, if the index
    there is the same."""
    rest = at.shape[dim] - step
    same = index.narrow(dim, step, rest) == index.narrow(dim, 0, rest)
    factor = torch.where(same, earlier.narrow(dim, 0, rest), 1)
    return torch.cat((at.narrow(dim, 0, step), at.narrow(dim, step, rest) * factor), dim)


def _scatter_reduce_back(
    g: Any,
    self: object,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    include_self: bool,
    result: object,
) -> tuple[object, object]:
    """Return the gradients of (self, src) of ``scatter_reduce``."""
    part = src
    if src.shape != index.shape:  # a source may be larger; its other elements are not used
        part = src[tuple(map(slice, index.shape))]
    places = _Places(
        dim,
        index,
        read=lambda t: t.gather(dim, index),
        add=lambda t, s: t.scatter_add(dim, index, s),
        clear=lambda t: t.scatter(dim, index, 0),
        again=lambda t, s: t.scatter_reduce(dim, index, s, reduce, include_self=include_self),
        include_self=include_self,
    )
    grad_self, grad_src = _reduced_back(places, g, self, part, result, reduce)
    return grad_self, pad_to(grad_src, src.shape)


def _index_reduce_back(
    g: Any,
    self: object,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    include_self: bool,
    result: object,
) -> tuple[object, object]:
    """Return the gradients of (self, source) of ``index_reduce``."""
    # the index of a line is that of each of its elements
    of_each = index
    if source.dim():
        wide = [1] * source.dim()
        wide[dim] = -1
        of_each = index.reshape(wide).expand(source.shape)
    places = _Places(
        dim,
        of_each,
        read=lambda t: t.index_select(dim, index.reshape(-1)).reshape(source.shape),
        add=lambda t, s: t.index_add(dim, index, s),
        clear=lambda t: t.index_fill(dim, index, 0),
        again=lambda t, s: t.index_reduce(dim, index, s, reduce, include_self=include_self),
        include_self=include_self,
    )
    return _reduced_back(places, g, self, source, result, reduce)


register(
    "scatter_reduce.two",
    vjp={("self", "src"): _scatter_reduce_back},
    batch=index_rules.gather_or_scatter,
    cost="high",
)
register("index_reduce", vjp={("self", "source"): _index_reduce_back}, batch=index_rules.rows)
