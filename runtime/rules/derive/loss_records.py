"""Elementwise losses: a record from their partial derivatives, for each reduction
(none, mean, sum)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..record import Formula, Record, asking, made_of, overload, parameters, register

NONE, MEAN, SUM = range(3)  # ATen's numbers
_broadcast_shapes: Any = torch.broadcast_shapes
_broadcast_tensors: Any = torch.broadcast_tensors


def scaled(g: torch.Tensor, reduction: int, n: int) -> torch.Tensor:
    """The cotangent of each element's loss for the cotangent ``g`` of the reduced loss
    of ``n`` elements."""
    return g / max(n, 1) if reduction == MEAN else g


def reduced(each: torch.Tensor, reduction: int) -> torch.Tensor:
    return each.mean() if reduction == MEAN else each.sum() if reduction == SUM else each


def reduced_rows(each: torch.Tensor, reduction: int) -> torch.Tensor:
    """The reduced loss of each element of a physical batch."""
    if reduction == NONE or each.dim() == 1:
        return each
    return each.flatten(1).mean(1) if reduction == MEAN else each.flatten(1).sum(1)


def broadcasted(size: int, batched: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """``args`` with all tensors broadcast to one physical shape."""
    at = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
    rank = max(args[i].dim() - bool(batched[i]) for i in at)
    shaped = [
        args[i].reshape(size, *(1,) * (rank + 1 - args[i].dim()), *args[i].shape[1:])
        if batched[i]
        else args[i].unsqueeze(0)
        for i in at
    ]
    out = list(args)
    for i, t in zip(at, _broadcast_tensors(*shaped), strict=True):
        out[i] = t
    return out


def elementwise_loss(
    name: str, *, abstract: Formula | None = None, divided_last: bool = False, **partials: Formula
) -> Record:
    """Register a real loss of ``self`` and ``target``, which broadcast: ``NAME=d loss/d NAME`` for
    each element. ``divided_last``: whether the gradient of a mean is divided after the product with
    the cotangent, which rounds as ATen does."""
    arguments = overload(name)._schema.arguments
    at = [a.name for a in arguments].index("reduction")
    defaults = [a.default_value for a in arguments]

    vjp: dict[str, Formula] = {}
    jvp: dict[str, Formula] = {}
    geometry = ("reduction", "self_shape", "target_shape")
    for argument, partial in partials.items():

        def backward(
            g: torch.Tensor,
            reduction: int,
            a: Any,
            b: Any,
            *values: Any,
            partial: Formula = partial,
        ) -> Any:
            n = math.prod(_broadcast_shapes(a, b))
            return (
                scaled(partial(*values) * g, reduction, n)
                if divided_last
                else scaled(g, reduction, n) * partial(*values)
            )

        def forward(
            t: torch.Tensor,
            reduction: int,
            a: Any,
            b: Any,
            *values: Any,
            partial: Formula = partial,
        ) -> Any:
            return reduced((t * partial(*values)).expand(_broadcast_shapes(a, b)), reduction)

        vjp[argument] = asking("g", *geometry, *parameters(partial))(
            made_of("g * {}", partial, backward)
        )
        jvp[argument] = asking(f"{argument}_t", *geometry, *parameters(partial))(
            made_of(f"{argument}_t * {{}}", partial, forward)
        )

    def batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        reduction: Any = args[at] if len(args) > at else defaults[at]
        actual = broadcasted(size, batched, args)
        actual += defaults[len(actual) : at + 1]
        actual[at] = NONE
        return reduced_rows(func(*actual, **kwargs), reduction)

    return register(name, vjp=vjp, jvp=jvp, batch=batch, abstract=abstract, family="loss")
