"""Define batch rules for ops with a fixed layout, and small helpers that they share.
``batch_rules.py`` explains what a rule is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from .batch_rules import BatchRule, each, expand, shift_each


def filled(func: Any, args: Any) -> list[Any]:
    """Return the positional arguments of a call, with the schema's defaults for those that the
    dispatcher left out."""
    rest = func._schema.arguments[len(args) :]
    return [*args, *(argument.default_value for argument in rest if not argument.kwarg_only)]


def same(func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords) -> object:
    """Run an op on one tensor that uses only trailing dimensions. The batch is one more leading
    dimension."""
    return func(*args, **kwargs)


def dims(*positions: int, extra: int = 0) -> BatchRule:
    """Return the batch rule of ops on tensors of equal rank, all expanded to the batch, with
    dimension arguments (or their defaults) at ``positions``.

    A dimension argument is an int or a list of ints. An empty list stays empty. ``extra``: how many
    more dimensions the result has than argument 0, if the dimension arguments count those of the
    result.
    """

    def rule(
        func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
    ) -> object:
        """Run the op on the physical dimensions of expanded tensors."""
        # negative dimensions count from the end, so all are counted in the physical rank
        actual = filled(func, args)
        rank = extra
        for index, (argument, is_batched) in enumerate(zip(args, batched, strict=True)):
            if isinstance(argument, torch.Tensor):
                actual[index] = expand(argument, is_batched, size)
                if index == 0:
                    rank += actual[index].dim() - 1
        for position in positions:
            actual[position] = shift_each(actual[position], rank)
        return func(*actual, **kwargs)

    return rule


def fold(*ranks: int, size_at: int | None = None) -> BatchRule:
    """Return the batch rule of ops on ``(N, C, *spatial)`` or ``(C, *spatial)``. It folds the batch
    into N, or makes it N.

    ``ranks``: the ranks of the tensor arguments with N; the last one holds for all further tensors.
    ``size_at``: the position of an argument that gives the full size of a result.
    """

    def rule(
        func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
    ) -> object:
        """Run the op with the batch in N, and split N of its results again."""
        actual = list(args)
        inner: int | None = None
        seen = 0
        for index, (tensor, is_batched) in enumerate(zip(args, batched, strict=True)):
            if not isinstance(tensor, torch.Tensor):
                continue
            # the last of the ranks is that of all further tensors
            rank = ranks[min(seen, len(ranks) - 1)]
            seen += 1
            tensor = expand(tensor, is_batched, size)
            # some kernels read indices by raw pointer, without strides
            if not is_batched or not tensor.is_floating_point():
                tensor = tensor.contiguous()
            # an argument with N: the batch is folded into it; without N, the batch is N
            if tensor.dim() == rank + 1:
                inner = tensor.shape[1]
                tensor = tensor.reshape(size * inner, *tensor.shape[2:])
            actual[index] = tensor
        if size_at is not None and inner is not None:
            # the size argument counts the folded samples too
            actual[size_at] = [size * inner, *actual[size_at][1:]]
        out = func(*actual, **kwargs)
        if inner is None:
            return out
        return each(out, lambda output: output.reshape(size, inner, *output.shape[1:]))

    return rule


def broadcast_shape(*shapes: object) -> torch.Size:
    """Return ``torch.broadcast_shapes``, with a type annotation."""
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-any-return]


def pad_to(part: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return ``part`` padded with zeros at the end of each dimension to ``shape``."""
    if part.shape == shape:
        return part
    pad: list[int] = []
    for size, m in zip(reversed(shape), reversed(part.shape), strict=True):
        pad += [0, size - m]
    return torch.constant_pad_nd(part, pad)
