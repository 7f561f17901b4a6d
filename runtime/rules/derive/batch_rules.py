"""Define the batch rules that many families share.

A rule is ``rule(func, size, batched, args, kwargs) -> result`` (or a tuple or list of results).
``batched`` says which positional arguments are batched (for a list argument, a tuple of bools). A
batched argument is the *physical* tensor: its dimension 0 is the batch dimension, of length
``size``. Every result is physical as well, with the batch dimension at 0.

Example: ``lambda func, size, batched, args, kwargs: func(args[0])`` is the rule of ``sin``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from .optional import map_optional

BatchRule = Callable[..., Any]


def exact(rule: BatchRule) -> BatchRule:
    """Mark a rule that refuses every call that one element would refuse.

    For any other rule, an element is checked first (``runtime.func.element_check``).
    """
    rule.exact = True  # type: ignore[attr-defined]
    return rule


def expand(t: Any, batched: object, size: int) -> Any:
    """Return the physical tensor of an argument: (size, *shape), by stride 0 if it has no batch.

    ``t``: the argument as a rule gets it. None stays None. ``batched``: its flag.
    """
    if batched or t is None:
        return t
    return t.unsqueeze(0).expand(size, *t.shape)


def expand_tensors(size: int, batched: Any, args: Any) -> list[Any]:
    """Return the arguments, with each tensor expanded to the batch as by :func:`expand`."""
    actual = list(args)
    for index, (argument, is_batched) in enumerate(zip(args, batched, strict=True)):
        if isinstance(argument, torch.Tensor):
            actual[index] = expand(argument, is_batched, size)
    return actual


def insert_dims(t: torch.Tensor, size: int, number: int) -> torch.Tensor:
    """Return a physical tensor with ``number`` dimensions of size one behind the batch dimension.
    The logical tensor broadcasts as if it had them in front.

    Example: (B, n) with two more dimensions is (B, 1, 1, n).
    """
    return t.reshape(size, *(1,) * number, *t.shape[1:])


def positional(args: Arguments, at: int, default: object) -> Any:
    """Return argument ``at`` of a call, or ``default`` if the call ends before it."""
    if at < len(args):
        return args[at]
    return default


def _category(dtype: torch.dtype) -> int:
    """Rank the kinds of numbers: of two dtypes, the one of the higher kind wins a promotion."""
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    if dtype is torch.bool:
        return 0
    return 1


def with_flags_of_keywords(rule: BatchRule) -> BatchRule:
    """Mark a rule that also takes ``named`` if the call has keyword arguments: for each of them,
    whether it is batched."""
    rule.takes_flags_of_keywords = True  # type: ignore[attr-defined]
    return rule


@exact
def elementwise(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> Any:
    """Run a broadcasting op on a batch. Batched arguments are reshaped so that all batch dimensions
    stand before the widest argument."""
    if len(args) == 1:
        return func(args[0], **kwargs)
    ranks = [
        argument.dim() - (is_batched is True)
        for argument, is_batched in zip(args, batched, strict=True)
        if isinstance(argument, torch.Tensor)
    ]
    # the logical ranks decide how the elements broadcast
    rank = max(ranks)
    if rank == 0:
        return func(*_as_vectors(args, batched), **kwargs)
    # of equal ranks: the batch dimension is in front of each, or broadcasts
    if min(ranks) == rank:
        return func(*args, **kwargs)
    actual = list(args)
    for index, is_batched in enumerate(batched):
        if is_batched is not True:
            continue
        a = actual[index]
        missing = rank + 1 - a.dim()
        if not missing:
            continue
        # a batch of scalars has a dimension now, and would take part in the promotion of dtypes
        if a.dim() == 1:
            a = _scalar_promotion(a, args, batched)
        actual[index] = a.reshape(size, *(1,) * missing, *a.shape[1:])
    return func(*actual, **kwargs)


def _as_vectors(args: Arguments, batched: BatchFlags) -> list[object]:
    """Return the arguments, with each unbatched 0-d tensor as a vector.

    Two 0-d tensors promote each other. A batch of 0-d tensors is physically a vector, which a 0-d
    tensor would not promote."""
    device = next(
        argument.device
        for argument, is_batched in zip(args, batched, strict=True)
        if is_batched is True
    )
    actual = list(args)
    for index, (argument, is_batched) in enumerate(zip(args, batched, strict=True)):
        # a 0-d tensor may lie on another device than the rest, which a vector may not
        if is_batched is False and isinstance(argument, torch.Tensor) and argument.device == device:
            actual[index] = argument.reshape(1)
    return actual


def aligned(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run an elementwise kernel (of oneDNN) that does not broadcast and takes no overlapping
    memory: on expanded, contiguous arguments."""
    actual = list(args)
    for index, (argument, is_batched) in enumerate(zip(args, batched, strict=True)):
        if isinstance(argument, torch.Tensor):
            actual[index] = expand(argument, is_batched, size).contiguous()
    return func(*actual, **kwargs)


def _scalar_promotion(a: torch.Tensor, args: Arguments, batched: BatchFlags) -> torch.Tensor:
    """Return ``a``, a batch of 0-d tensors, with the dtype that type promotion gives beside a wider
    tensor of the same category.

    A logical 0-d tensor does not promote that tensor. Physically ``a`` has a dimension and would
    promote it.
    """
    for other, is_batched in zip(args, batched, strict=True):
        if not isinstance(other, torch.Tensor) or other.dtype is a.dtype:
            continue
        # a scalar of a higher category does promote, as a float does an integer tensor
        is_scalar = other.dim() - bool(is_batched) == 0
        if not is_scalar and _category(a.dtype) == _category(other.dtype):
            return a.to(other.dtype)
    return a


def shift(dim: int, rank: int) -> int:
    """Return the physical dimension for a logical one. ``rank`` is the logical rank."""
    if rank == 0:
        rank = 1
    if not -rank <= dim < rank:
        # The words are ATen's, whose own message would count the batch dimension.
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, "
            f"{rank - 1}], but got {dim})"
        )
    return dim % rank + 1


def along(*positions: int, scalar_ok: bool = True) -> BatchRule:
    """Return the batch rule of ops on one batched tensor (argument 0), with dimensions at
    ``positions``: an int, a list of ints, or None for all.

    ATen allows dimension 0 of a 0-d tensor. So a logical 0-d tensor gets a dimension of one element
    for the call.
    """

    def rule(func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords) -> object:
        """Run the op on the physical dimensions."""
        x = args[0]
        rank = x.dim() - 1
        actual = list(args)
        for position in positions:
            # a call that leaves the dimensions out means all, which must not include the batch
            actual.extend([None] * (position + 1 - len(actual)))
            actual[position] = _physical_dims(actual[position], rank)
        # the dimension of one element stands for dimension 0 of the scalar
        if rank == 0:
            actual[0] = x.unsqueeze(1)
            return each(func(*actual, **kwargs), lambda output: _without_made_dim(output, size))
        return func(*actual, **kwargs)

    return exact(rule)


def shift_each(dim: Any, rank: int) -> int | list[int]:
    """Return the physical dimensions for a logical one, or for a list of them: :func:`shift`."""
    if isinstance(dim, (list, tuple)):
        return [shift(d, rank) for d in dim]
    return shift(dim, rank)


def _physical_dims(dim: object, rank: int) -> int | list[int]:
    """Return the physical dimensions. None and an empty list mean all logical ones: without a list
    the kernel would reduce the batch too."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(1, rank + 1)) or [1]  # of a scalar: the dimension made for the call
    return shift_each(dim, rank)


def _without_made_dim(out: torch.Tensor, size: int) -> torch.Tensor:
    """Return the result of a 0-d element without the dimension that was made for the call."""
    if out.numel() == size:
        return out.reshape(size)
    return out


def each(out: Any, f: Callable[[torch.Tensor], object]) -> Any:
    """Return ``f(result)``, or ``f`` of each of several results.

    None, in place of a result that the caller did not ask for, stays None.
    """
    if not isinstance(out, (tuple, list)):
        return f(out)
    results = [map_optional(f, output) for output in out]
    if type(out) is list:
        return results
    return tuple(results)


def trailing(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    """Run an op that takes any number of leading dimensions on every tensor, as ``bmm``. Unbatched
    tensors are expanded."""
    return func(*expand_tensors(size, batched, args), **kwargs)


def sizes(position: int) -> BatchRule:
    """Return the batch rule of ops with a size argument (``view``, ``expand`` of equal rank,
    ``new_zeros``). It puts the batch size in front."""

    def rule(func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords) -> object:
        actual = list(args)
        actual[position] = [size, *actual[position]]
        return func(*actual, **kwargs)

    return rule


def shaped_by_one(rule: BatchRule) -> BatchRule:
    """Return ``rule`` for kernels that cannot compute the shape of a result from an empty batch. It
    runs them on one element of zeros instead."""

    def batch(func: object, size: int, batched: Any, args: Any, kwargs: object) -> Any:
        """Run the rule, for an empty batch on one element, of whose results nothing is taken."""
        if size:
            return rule(func, size, batched, args, kwargs)
        # some kernels refuse a batch without elements, or read its first one
        one = list(args)
        for index, (argument, is_batched) in enumerate(zip(args, batched, strict=True)):
            if is_batched is True:
                one[index] = argument.new_zeros((1, *argument.shape[1:]))
        return each(rule(func, 1, batched, one, kwargs), lambda output: output[:0])

    return batch
