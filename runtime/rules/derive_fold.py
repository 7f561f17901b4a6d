"""Batch rules for ops of a fixed layout, and the small pieces that they share.

See ``derive_batch.py`` for what a rule is; these are the ones that need to know more of an op than that it broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .derive_batch import BatchRule, expand, shift


def filled(func: Any, args: Any) -> list[Any]:
    """Positional arguments of a call with the schema's defaults for those that the dispatcher left out."""
    rest = func._schema.arguments[len(args) :]
    return [*args, *(a.default_value for a in rest if not a.kwarg_only)]


def same(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Ops on one tensor that only look at trailing dimensions: the batch is one more leading dimension."""
    return func(*args, **kwargs)


def dims(*positions: int, extra: int = 0) -> BatchRule:
    """Ops on tensors of one rank (all expanded to the batch) with dimension arguments at ``positions``, defaults included.

    An int or a list of ints, an empty list staying empty. ``extra``: dimensions that the result, which the argument counts, has more.
    """

    def rule(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        actual = filled(func, args)
        rank = extra
        for i, (a, b) in enumerate(zip(args, batched, strict=True)):
            if isinstance(a, torch.Tensor):
                actual[i] = expand(a, b, size)
                if i == 0:
                    rank += actual[i].dim() - 1
        for p in positions:
            d = actual[p]
            actual[p] = [shift(k, rank) for k in d] if isinstance(d, (list, tuple)) else shift(d, rank)
        return func(*actual, **kwargs)

    return rule


def fold(*ranks: int, size_at: int | None = None) -> BatchRule:
    """Ops on ``(N, C, *spatial)`` that may also go without N: the batch becomes, or is multiplied into, N.

    ``ranks``: of the tensor arguments with N, the last repeated; ``size_at``: an argument that is the full size of a result.
    """

    def rule(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        actual = list(args)
        inner: int | None = None
        seen = 0
        for i, (a, b) in enumerate(zip(args, batched, strict=True)):
            if not isinstance(a, torch.Tensor):
                continue
            rank = ranks[min(seen, len(ranks) - 1)]
            seen += 1
            a = expand(a, b, size)
            if not b or not a.is_floating_point():  # some kernels read indices through a raw pointer
                a = a.contiguous()
            if a.dim() == rank + 1:
                inner = a.shape[1]
                a = a.reshape(size * inner, *a.shape[2:])
            actual[i] = a
        if size_at is not None and inner is not None:
            actual[size_at] = [size * inner, *actual[size_at][1:]]
        out = func(*actual, **kwargs)
        return out if inner is None else each(out, lambda o: o.reshape(size, inner, *o.shape[1:]))

    return rule


def broadcast_shape(*shapes: Any) -> torch.Size:
    """``torch.broadcast_shapes``, typed."""
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-any-return]


def each(out: Any, f: Callable[[torch.Tensor], Any]) -> Any:
    """``f`` of a result or of all of several; ones that the op was told to leave out stay ``None``."""
    if isinstance(out, (tuple, list)):
        return type(out)(o if o is None else f(o) for o in out) if type(out) in (tuple, list) else tuple(each(list(out), f))
    return f(out)


def back_to(part: torch.Tensor, shape: Any) -> torch.Tensor:
    """``part``, which fills a leading corner of ``shape``, with zeros in the rest."""
    if part.shape == shape:
        return part
    pad: list[int] = []
    for n, m in zip(reversed(shape), reversed(part.shape), strict=True):
        pad += [0, n - m]
    return torch.constant_pad_nd(part, pad)
