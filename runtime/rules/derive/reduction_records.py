"""Make records of reductions from a partial derivative, and share helpers for shapes with and
without the reduced dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, Keywords
from ..record import Formula, Record, asking, made_of, parameters, register
from . import batch_rules
from .batch_rules import BatchRule
from .families import conj_of, scaled

Dims = int | Sequence[int] | None


def dims_of(dim: Dims, rank: int) -> list[int]:
    """Return the reduced dimensions as non-negative numbers. ``None`` and ``[]`` mean all; a 0-d
    tensor has none."""
    if rank == 0:
        return []
    if isinstance(dim, int):
        return [dim % rank]
    if not dim:
        return list(range(rank))
    return sorted({each % rank for each in dim})


def restored(t: torch.Tensor, rank: int, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    """Return a result (or its cotangent) with each reduced dimension as a dimension of length
    one. With ``keepdim`` it has them already.

    ``rank``: that of the argument. Example: of a (2, 3, 4) tensor, summed over 1, the result (2, 4)
    becomes (2, 1, 4).
    """
    if not keepdim:
        # in rising order, so that each number is that of the final shape
        for reduced in dims_of(dim, rank):
            t = t.unsqueeze(reduced)
    return t


def count_of(shape: Sequence[int], dim: Dims) -> int:
    """Return the number of elements that are reduced to each element of the result."""
    count = 1
    for reduced in dims_of(dim, len(shape)):
        count *= shape[reduced]
    return count


def summed(t: torch.Tensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    """Return the sum over ``dim``, which may be None or ``[]`` for all. A 0-d tensor is returned as
    it is."""
    dims = dims_of(dim, t.dim())
    if not dims:
        return t
    return t.sum(dims, keepdim=keepdim)


def reduction(
    names: str,
    partial: Formula,
    batch: BatchRule,
    *,
    dim: bool = True,
    cost: str = "low",
    product: Callable[[Any, Any], Any] = scaled,
) -> Record:
    """Register reductions by their partial derivative ``p = d result/d element``, a tensor that
    broadcasts against ``self``, or a pair ``(where, p)``: :func:`.families.scaled`.

    The vjp is ``g·conj(p)``, the jvp ``sum(t·p)``. If ``partial`` asks for ``result``, it gets it
    with the reduced dimensions as dimensions of length one. Some reductions of complex arguments
    have a real result (norms, variances). For these ``p`` is the conjugate of torch's gradient, and
    the jvp is the real part of the sum, which the dual level takes. ``dim=False``: the op has no
    dimension arguments and reduces everything. ``product``: what multiplies with ``p``.
    """
    # `partial` gets the result in the shape that broadcasts, so its position must be known
    asks = parameters(partial)
    at = asks.index("result") if "result" in asks else None
    geometry = ["self_shape"]
    if dim:
        geometry += ["dim", "keepdim"]

    def field(shape: Any, dims: Dims, keepdim: bool, values: Sequence[Any]) -> Any:
        """Return the partial derivative, with the result in the shape that broadcasts."""
        values = list(values)
        if at is not None:
            values[at] = restored(values[at], len(shape), dims, keepdim)
        return partial(*values)

    def split(rest: Sequence[Any]) -> tuple[Dims, bool, Sequence[Any]]:
        """Split what a formula gets into dimensions, ``keepdim`` and the values for ``partial``."""
        if not dim:
            return None, False, rest
        dims, keepdim, *values = rest
        return dims, keepdim, values

    def backward(g: torch.Tensor, shape: Sequence[int], *rest: object) -> object:
        """Return the cotangent of each element: the result's, times the conjugate of ``p``."""
        dims, keepdim, values = split(rest)
        g = restored(g, len(shape), dims, keepdim)
        slope = conj_of(field(shape, dims, keepdim, values))
        # a partial derivative that is a number leaves the reduced dimensions of length one
        return product(g, slope).expand(shape)

    def forward(t: torch.Tensor, shape: object, *rest: object) -> Any:
        """Return the tangent of the result: the sum of those of the elements, times ``p``."""
        dims, keepdim, values = split(rest)
        return summed(product(t, field(shape, dims, keepdim, values)), dims, keepdim)

    # the page of records shows these texts with the author's formula in the braces
    vjp = asking("g", *geometry, *asks)(made_of("g * conj({})", partial, backward))
    jvp = asking("self_t", *geometry, *asks)(made_of("sum(self_t * {})", partial, forward))
    return register(
        names,
        vjp={"self": vjp},
        jvp={"self": jvp},
        batch=batch,
        cost=cost,
        family="reduction",
    )


def selecting(
    names: str, batch: BatchRule, dim: str = "dim", keepdim: bool = True, cost: str = "low"
) -> None:
    """Register ops that pick elements along a dimension and return (values, indices), such as
    ``max`` and ``kthvalue``.

    ``dim``: the name of the op's dimension argument. ``keepdim=False``: the op has no argument
    ``keepdim`` and its results always keep the dimension, as those of ``sort``. The vjp scatters
    the cotangent to the indices, and the jvp gathers the tangents there."""

    def backward(
        g: torch.Tensor, shape: Sequence[int], indices: torch.Tensor, d: int, has_dim: bool = True
    ) -> torch.Tensor:
        """Scatter the cotangents to the elements that were picked."""
        if shape and not has_dim:
            g, indices = g.unsqueeze(d), indices.unsqueeze(d)
        # No index occurs twice along `d`: it is one pick, or a permutation. So nothing is to be
        # added.
        return g.new_zeros(shape).scatter(d, indices, g)

    def forward(
        t: torch.Tensor, indices: torch.Tensor, d: int, has_dim: bool = True
    ) -> tuple[Any, Any]:
        """Pick the tangents of the elements that were picked."""
        if t.dim() and not has_dim:
            return t.gather(d, indices.unsqueeze(d)).squeeze(d), None
        return t.gather(d, indices), None

    extra = []
    if keepdim:
        extra.append("keepdim")
    for name in names.split():
        register(
            name,
            vjp={"self": asking("g", "self_shape", "result1", dim, *extra)(backward)},
            jvp=asking("self_t", "result1", dim, *extra)(forward),
            batch=batch,
            cost=cost,
            family="selection",
        )


def rows(x: torch.Tensor) -> torch.Tensor:
    """Return a physical batch with the shape (batch, elements)."""
    if x.dim() > 1:
        return x.flatten(1)
    return x.unsqueeze(1)  # a batch of numbers, each a row of one element


def whole(per_row: Callable[..., object]) -> BatchRule:
    """Return the batch rule of ops that reduce everything. ``per_row`` reduces dimension 1 of
    (batch, elements)."""

    def rule(func: object, size: int, batched: object, args: Arguments, kwargs: Keywords) -> object:
        return per_row(rows(args[0]), *args[1:], **kwargs)

    return rule


def along_default(position: int, default: int = -1) -> BatchRule:
    """Return ``batch_rules.along`` for an int dimension argument that the caller may leave out."""
    along = batch_rules.along(position)

    def rule(func: object, size: int, batched: object, args: Arguments, kwargs: object) -> object:
        if len(args) <= position:
            args = [*args, default]
        return along(func, size, batched, args, kwargs)

    return rule
