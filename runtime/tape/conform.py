"""Converts a cotangent to the shape and dtype of the tensor that it belongs to.

Example: a bias of shape (5,) was added to a matrix of shape (8, 5). Its cotangent arrives as
(8, 5), and the sum over dimension 0 makes it (5,).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..rules.record import NestedMeta, extent
from ..rules.tensors.nested import values
from ..seam.dispatch import run_batchwise
from ..seam.user_code import settled
from .node_protocol import TapeNode


def sum_to(grad: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Undo broadcasting: sum ``grad`` over the dimensions that a tensor of ``shape``
    was expanded along."""

    def sum_broadcast(tensor: torch.Tensor, batched: tuple[bool]) -> torch.Tensor:
        """Sum a tensor, or each of a batch, see :func:`run_batchwise`."""
        # `tensor` may have one more dimension in front, that of a batch, which stays
        first = int(batched[0])
        lead = tensor.dim() - len(shape)
        stretched = [
            index + lead
            for index, size in enumerate(shape)
            if size == 1 and tensor.shape[index + lead] != 1
        ]
        dims = [*range(first, lead), *stretched]
        if not dims and lead == first:
            return tensor
        # only dimensions in front are summed, and they go without a `reshape`
        if len(dims) == lead - first:
            return tensor.sum(dims)
        tensor = tensor.sum(dims, keepdim=True)
        if lead > first:
            tensor = tensor.reshape((*tensor.shape[:first], *shape))
        return tensor

    if type(grad) is not torch.Tensor:
        return run_batchwise(sum_broadcast, grad)  # type: ignore[no-any-return]
    if grad.shape[1:] == shape:
        return grad.sum(0)  # every bias, at half the price
    return grad.sum_to_size(shape)


def conform(g: torch.Tensor, meta: Any, node: TapeNode | None, index: int) -> torch.Tensor:
    """Convert ``g``, result ``index`` of ``node``, to the shape and dtype in ``meta``.

    Undo broadcasting by a sum. Take the real part for a real tensor. Raise if ``g`` is not a
    broadcast of that shape. ``node``: None if ``g`` is a cotangent of a root.
    """
    shape, dtype = meta
    if type(shape) is NestedMeta:
        return _conform_nested(g, shape, node, index)
    if g.is_nested:
        raise _misfit(g, shape, node, index)
    if g.shape != shape:
        if not _is_broadcast(g.shape, shape):
            raise _misfit(g, shape, node, index)
        g = sum_to(g, shape)
    if dtype is not None and g.dtype is not dtype:  # a leaf may take gradients of any dtype
        if g.dtype.is_complex and not dtype.is_complex:
            g = torch.real(g)
        if g.dtype is not dtype:
            g = g.to(dtype)
    return g


def _is_broadcast(wide: torch.Size, shape: torch.Size) -> bool:
    """Return whether a tensor of ``shape`` can be broadcast to the sizes ``wide``."""
    lead = len(wide) - len(shape)
    if lead < 0:
        return False
    pairs = zip(shape, wide[lead:], strict=True)
    return all(size == wide_size or size == 1 for size, wide_size in pairs)


def _conform_nested(
    g: torch.Tensor, meta: NestedMeta, node: TapeNode | None, index: int
) -> torch.Tensor:
    """Do what :func:`conform` does, for a nested tensor. The result is contiguous, because kernels
    that add nested tensors need that."""
    if extent(g) != meta:
        raise _misfit(g, meta, node, index)
    if meta.dtype is not None and g.dtype is not meta.dtype:
        if g.dtype.is_complex and not meta.dtype.is_complex:
            g = meta.view(torch.real(values(g)))
        g = g.to(meta.dtype)
    if g.is_contiguous():
        return g
    return g.contiguous()


def _misfit(
    grad: torch.Tensor, expected: object, node: TapeNode | None, index: int
) -> RuntimeError:
    """Return the error for a gradient that does not fit ``expected``: a shape, or the
    ``NestedMeta`` of a nested tensor."""
    name = "GraphRoot" if node is None else node.name()
    return settled(
        RuntimeError(
            f"Function {name} returned an invalid gradient at index {index} - got "
            f"{_text_of(extent(grad))} but expected shape compatible with {_text_of(expected)}"
        )
    )


def _text_of(extent: Any) -> str:
    """Return a shape as errors show it: a list of sizes, or a nested tensor's own text."""
    if type(extent) is NestedMeta:
        return f"{extent}"
    return f"{list(extent)}"
