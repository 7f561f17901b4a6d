"""Batch rules for ops with a fixed layout, and small helpers that they share. ``batch_rules.py``
explains what a rule is."""

from __future__ import annotations

from typing import Any

import torch

from .batch_rules import BatchRule, each, expand, shift_each


def filled(func: Any, args: Any) -> list[Any]:
    """Return the positional arguments of a call, with the schema's defaults for those that the
    dispatcher left out."""
    rest = func._schema.arguments[len(args) :]
    return [*args, *(a.default_value for a in rest if not a.kwarg_only)]


def same(func: Any, size: int, batched: object, args: Any, kwargs: Any) -> Any:
    """Batch rule of ops on one tensor that use only trailing dimensions. The batch is one more
    leading dimension."""
    return func(*args, **kwargs)


def dims(*positions: int, extra: int = 0) -> BatchRule:
    """Batch rule of ops on tensors of equal rank, all expanded to the batch, with dimension
    arguments (or their defaults) at ``positions``.

    A dimension argument is an int or a list of ints. An empty list stays empty. ``extra``:
    how many more dimensions the result has than argument 0, if the dimension arguments count
    those of the result.
    """

    def rule(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        actual = filled(func, args)
        rank = extra
        for index, (a, b) in enumerate(zip(args, batched, strict=True)):
            if isinstance(a, torch.Tensor):
                actual[index] = expand(a, b, size)
                if index == 0:
                    rank += actual[index].dim() - 1
        for p in positions:
            actual[p] = shift_each(actual[p], rank)
        return func(*actual, **kwargs)

    return rule


def fold(*ranks: int, size_at: int | None = None) -> BatchRule:
    """Batch rule of ops on ``(N, C, *spatial)`` or ``(C, *spatial)``. It folds the batch into
    N, or makes it N.

    ``ranks``: the ranks of the tensor arguments with N; the last one holds for all further tensors.
    ``size_at``: the position of an argument that gives the full size of a result.
    """

    def rule(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        actual = list(args)
        inner: int | None = None
        seen = 0
        for index, (a, b) in enumerate(zip(args, batched, strict=True)):
            if not isinstance(a, torch.Tensor):
                continue
            rank = ranks[min(seen, len(ranks) - 1)]
            seen += 1
            a = expand(a, b, size)
            # some kernels read indices by raw pointer, without strides
            if not b or not a.is_floating_point():
                a = a.contiguous()
            if a.dim() == rank + 1:
                inner = a.shape[1]
                a = a.reshape(size * inner, *a.shape[2:])
            actual[index] = a
        if size_at is not None and inner is not None:
            actual[size_at] = [size * inner, *actual[size_at][1:]]
        out = func(*actual, **kwargs)
        if inner is None:
            return out
        return each(out, lambda o: o.reshape(size, inner, *o.shape[1:]))

    return rule


def broadcast_shape(*shapes: object) -> torch.Size:
    """``torch.broadcast_shapes`` with a type annotation."""
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-any-return]


def pad_to(part: torch.Tensor, shape: Any) -> torch.Tensor:
    """``part`` padded with zeros at the end of each dimension to ``shape``."""
    if part.shape == shape:
        return part
    pad: list[int] = []
    for n, m in zip(reversed(shape), reversed(part.shape), strict=True):
        pad += [0, n - m]
    return torch.constant_pad_nd(part, pad)
