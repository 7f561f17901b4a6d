"""Register ops that join, repeat, reorder, pad or copy. Every element of the result is an element
of an argument or a constant."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import BatchingError
from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ...torch_private.native_functions import assert_async
from ..derive import batch_rules as batch
from ..derive.families import linear
from ..derive.fixed_layouts import dims, fold, same
from ..record import overload, register

# Copies


def _copy_batch(
    func: Kernel, size: int, batched: object, args: Sequence[torch.Tensor], kwargs: Keywords
) -> object:
    """Copy a batch, with its strides if the call asks for a memory format. A format describes the
    logical tensor, and the physical one has one dimension more."""
    if kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
        kwargs = {**kwargs, "memory_format": torch.preserve_format}
    return func(*args, **kwargs)


@batch.exact
def _overwritten(
    func: object, size: int, batched: BatchFlags, args: Sequence[torch.Tensor], kwargs: object
) -> object:
    """Run ``copy`` on a batch. The result has the shape of the first argument, which does not
    broadcast, and a batch if either has one."""
    whole = batch.expand(args[0], batched[0], size)
    return batch.elementwise(func, size, (True, *batched[1:]), [whole, *args[1:]], kwargs)


linear("clone", {"self": lambda g: g}, _copy_batch)
linear("_to_copy", {"self": lambda g: g}, _copy_batch)
linear(
    "copy",
    {"src": lambda g: g, "self": lambda g: torch.zeros_like(g)},
    _overwritten,
    in_place=True,
    family="inplace",
)

# Joins


def _cat_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Join batches. ATen ignores empty vectors, which a batch would make matrices."""
    tensors, dim = args[0], batch.positional(args, 1, 0)
    full = [
        batch.expand(tensor, is_batched, size)
        for tensor, is_batched in zip(tensors, batched[0], strict=True)
    ]
    # what was an empty vector has two dimensions now, and is left out as ATen would do
    rank = max(tensor.dim() for tensor in full) - 1
    joined = [tensor for tensor in full if tensor.dim() == rank + 1 or tensor.numel()]
    return func(joined, batch.shift(dim, rank))


def _cat_back(
    g: torch.Tensor, tensors_shape: Sequence[Sequence[int]], dim: int
) -> list[torch.Tensor]:
    """Cut the cotangent into pieces. ATen accepts empty vectors among the tensors; each of them
    gets an empty one."""
    out, start = [], 0
    for shape in tensors_shape:
        if len(shape) == 1 and shape[0] == 0:
            out.append(g.new_zeros(0))
            continue
        out.append(g.narrow(dim, start, shape[dim]))
        start += shape[dim]
    return out


def _stack_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Stack batches along a physical dimension."""
    tensors, dim = args[0], batch.positional(args, 1, 0)
    full = [
        batch.expand(tensor, is_batched, size)
        for tensor, is_batched in zip(tensors, batched[0], strict=True)
    ]
    return func(full, batch.shift(dim, full[0].dim()))


def _block_diag(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a block-diagonal matrix. A vector is a block of one row."""
    blocks = list(tensors)
    for index, tensor in enumerate(blocks):
        if tensor.dim() < 2:
            blocks[index] = tensor.reshape(1, -1)
    width = sum(block.shape[1] for block in blocks)
    dtype = blocks[0].dtype
    for block in blocks:
        dtype = torch.promote_types(dtype, block.dtype)
    # each block with zeros on both sides, below the one before
    rows, left = [], 0
    for block in blocks:
        rows.append(torch.constant_pad_nd(block.to(dtype), [left, width - left - block.shape[1]]))
        left += block.shape[1]
    return torch.cat(rows)


linear("cat", {"tensors": _cat_back}, _cat_batch, family="joining")
linear("stack", {"tensors": lambda g, dim: list(g.unbind(dim))}, _stack_batch, family="joining")
register("block_diag", decomposition=_block_diag, family="joining")

# Repeats and reorderings


def _repeat_back(
    g: torch.Tensor, self_shape: Sequence[int], repeats: Sequence[int]
) -> torch.Tensor:
    """Sum the cotangents of all copies."""
    if not repeats:
        return g.reshape(self_shape)
    # each dimension of the result is (copies, elements)
    lead = len(repeats) - len(self_shape)
    split: list[int] = []
    for n_copies, n in zip(repeats, [1] * lead + list(self_shape), strict=True):
        split += [n_copies, n]
    copies = list(range(0, len(split), 2))
    return g.reshape(split).sum(copies).reshape(self_shape)


def _repeat_batch(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: object
) -> object:
    x, repeats = args
    return func(batch.insert_dims(x, size, len(repeats) - x.dim() + 1), [1, *repeats])


def _roll_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Roll the elements of a batch, which are flattened if the call names no dimension."""
    x, shifts, *where = args
    if not x.numel():  # ATen does not check the dimensions then
        return x.clone()
    if not where or not where[0]:  # rolls the flattened tensor
        return func(x.reshape(size, -1), shifts, [1]).reshape(x.shape)
    return func(x, shifts, [batch.shift(dim, x.dim() - 1) for dim in where[0]])


def _interleave_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Return the index of the repeated element at each place of the result, found by bisection. The
    number of places must be known."""
    total = kwargs.get("output_size")
    if total is None:
        raise BatchingError(
            "vmap: repeat_interleave with a batch of repeats returns results whose shapes differ "
            "between the elements of the batch; pass output_size if they do not"
        )
    (repeats,) = args
    assert_async((repeats >= 0).all(), "repeats can not be negative")
    assert_async((repeats.sum(1) == total).all(), "allocated size does not match required size")
    places = torch.arange(total, device=repeats.device).repeat(size, 1)
    return torch.searchsorted(repeats.cumsum(1), places, right=True)


register("repeat_interleave.Tensor", nondiff=True, batch=_interleave_batch, family="joining")
linear("repeat", {"self": _repeat_back}, _repeat_batch)
linear("flip", {"self": lambda g, dims: g.flip(dims)}, dims(1))
linear("roll", {"self": lambda g, shifts, dims: g.roll([-s for s in shifts], dims)}, _roll_batch)
linear("rot90", {"self": lambda g, k, dims: g.rot90(-k, dims)}, dims(2))

# Triangles and diagonals

linear("tril", {"self": lambda g, diagonal: g.tril(diagonal)}, same)
linear("triu", {"self": lambda g, diagonal: g.triu(diagonal)}, same)
linear(
    "diag_embed",
    {"self": lambda g, offset, dim1, dim2: g.diagonal(offset, dim1, dim2)},
    dims(2, 3, extra=1),
)
register("trace", decomposition=lambda self: self.diagonal().sum(), family="joining")

# Padding

register(
    "constant_pad_nd",
    vjp={"self": lambda g, pad: torch.constant_pad_nd(g, [-p for p in pad])},
    jvp={"self": lambda self_t, pad: torch.constant_pad_nd(self_t, pad)},
    batch=same,
    family="linear",
)


def _padding(name: str, rank: int) -> None:
    """Register a padding by elements of the tensor, and its backward op. Each is the transpose of
    the other."""
    forward, backward = overload(name), overload(f"{name}_backward")
    linear(name, {"self": lambda g, self, padding: backward(g, self, padding)}, fold(rank))
    linear(
        f"{name}_backward",
        {
            "grad_output": lambda g, padding: forward(g, padding),
            "self": lambda g: torch.zeros_like(g),
        },
        fold(rank),
    )


for _n in (1, 2, 3):
    _padding(f"reflection_pad{_n}d", _n + 2)
    _padding(f"replication_pad{_n}d", _n + 2)
