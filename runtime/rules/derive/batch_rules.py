"""Batch rules that many families share.

A rule is ``rule(func, size, batched, args, kwargs) -> result`` (or a tuple or list of results).
``batched`` says which positional arguments are batched (for a list argument, a tuple of bools). A
batched argument is the *physical* tensor: its dimension 0 is the batch dimension, of length
``size``. Every result is physical as well, with the batch dimension at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BatchRule = Callable[..., Any]


def exact(rule: BatchRule) -> BatchRule:
    """Mark a rule that refuses every call that one element would refuse.

    For any other rule, an element is checked first (``runtime.func.element_check``).
    """
    rule.exact = True  # type: ignore[attr-defined]
    return rule


def expand(t: Any, batched: Any, size: int) -> Any:
    """Return the physical tensor of an argument. An unbatched one is expanded to the batch without
    a copy."""
    return t if batched or t is None else t.unsqueeze(0).expand(size, *t.shape)


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def with_flags_of_keywords(rule: BatchRule) -> BatchRule:
    """Mark a rule that also takes ``named`` if the call has keyword arguments: for each of them,
    whether it is batched."""
    rule.takes_flags_of_keywords = True  # type: ignore[attr-defined]
    return rule


@exact
def elementwise(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Batch rule of broadcasting ops. It reshapes batched arguments so that all batch dimensions
    stand before the widest argument."""
    if len(args) == 1:
        return func(args[0], **kwargs)
    ranks = [
        a.dim() - (b is True)
        for a, b in zip(args, batched, strict=True)
        if isinstance(a, torch.Tensor)
    ]
    rank = max(ranks)
    if rank == 0:
        return func(*_as_vectors(args, batched), **kwargs)
    if min(ranks) == rank:
        return func(*args, **kwargs)
    actual = list(args)
    for i, b in enumerate(batched):
        if b is True:
            a = actual[i]
            missing = rank + 1 - a.dim()
            if missing:
                if a.dim() == 1:
                    a = _scalar_promotion(a, args, batched)
                actual[i] = a.reshape(size, *(1,) * missing, *a.shape[1:])
    return func(*actual, **kwargs)


def _as_vectors(args: Any, batched: Any) -> list[Any]:
    """Return the arguments, with each unbatched 0-d tensor as a vector.

    Two 0-d tensors promote each other. A batch of 0-d tensors is physically a vector, which a 0-d
    tensor would not promote."""
    device = next(a.device for a, b in zip(args, batched, strict=True) if b is True)
    return [
        a.reshape(1) if b is False and isinstance(a, torch.Tensor) and a.device == device else a
        for a, b in zip(args, batched, strict=True)
    ]


def aligned(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Batch rule of elementwise kernels (oneDNN's) that do not broadcast and take no overlapping
    memory: expanded, contiguous arguments."""
    actual = [
        expand(a, b, size).contiguous() if isinstance(a, torch.Tensor) else a
        for a, b in zip(args, batched, strict=True)
    ]
    return func(*actual, **kwargs)


def _scalar_promotion(a: torch.Tensor, args: Any, batched: Any) -> torch.Tensor:
    """``a``, a batch of 0-d tensors, cast to the dtype that type promotion gives beside a wider
    tensor of the same category.

    A logical 0-d tensor does not promote that tensor. Physically ``a`` has a dimension and
    would promote it.
    """
    for other, b in zip(args, batched, strict=True):
        wider = (
            isinstance(other, torch.Tensor)
            and other.dim() - bool(b) > 0
            and other.dtype is not a.dtype
        )
        if wider and _category(a.dtype) == _category(other.dtype):
            return a.to(other.dtype)
    return a


def shift(dim: int, rank: int) -> int:
    """Return the physical dimension for a logical one. ``rank`` is the logical rank."""
    if rank == 0:
        rank = 1
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, "
            f"{rank - 1}], but got {dim})"
        )
    return dim % rank + 1


def along(*positions: int, scalar_ok: bool = True) -> BatchRule:
    """Batch rule of ops on one batched tensor (argument 0), with dimensions at ``positions``: an
    int, a list of ints, or None for all.

    ATen allows dimension 0 of a 0-d tensor. So a logical 0-d tensor gets a dimension of one
    element for the call.
    """

    def rule(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        x = args[0]
        rank = x.dim() - 1
        actual = list(args)
        for p in positions:
            d = actual[p] if p < len(actual) else None
            if d is None or (isinstance(d, (list, tuple)) and not d):
                d = list(range(1, rank + 1)) or [1]
                actual.extend([None] * (p + 1 - len(actual)))
                actual[p] = d
            elif isinstance(d, (list, tuple)):
                actual[p] = [shift(k, rank) for k in d]
            else:
                actual[p] = shift(d, rank)
        if rank == 0:
            actual[0] = x.unsqueeze(1)
            out = func(*actual, **kwargs)
            return _each(out, lambda o: o.reshape(size) if o.numel() == size else o)
        return func(*actual, **kwargs)

    return exact(rule)


def _each(out: Any, f: Callable[[Any], Any]) -> Any:
    if type(out) is list:
        return [f(o) for o in out]
    return tuple(map(f, out)) if isinstance(out, tuple) else f(out)


def trailing(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Batch rule of ops that take any number of leading dimensions on every tensor, as ``bmm``. It
    expands unbatched tensors."""
    actual = [
        expand(a, b, size) if isinstance(a, torch.Tensor) else a
        for a, b in zip(args, batched, strict=True)
    ]
    return func(*actual, **kwargs)


def sizes(position: int) -> BatchRule:
    """Batch rule of ops with a size argument (``view``, ``expand`` of equal rank, ``new_zeros``).
    It puts the batch size in front."""

    def rule(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        actual = list(args)
        actual[position] = [size, *actual[position]]
        return func(*actual, **kwargs)

    return rule


def shaped_by_one(rule: BatchRule) -> BatchRule:
    """``rule`` for kernels that cannot compute the shape of a result from an empty batch. It runs
    them on one element of zeros instead."""

    def batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        if size:
            return rule(func, size, batched, args, kwargs)
        one = [
            a.new_zeros((1, *a.shape[1:])) if b is True else a
            for a, b in zip(args, batched, strict=True)
        ]
        out = rule(func, 1, batched, one, kwargs)
        if isinstance(out, torch.Tensor):
            return out[:0]
        return tuple(None if o is None else o[:0] for o in out)

    return batch
