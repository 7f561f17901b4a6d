"""Makes tensors of nested lists of numbers with tensors among them: ``x.new_tensor([a, 2.0])``.
It also tells numbers that a program reads, ``float(a)``, from those that torch takes of a tensor.

Torch reads the numbers below Python, and a value has no memory there. So a value that is a number
is replaced by the plain tensor under it. A value that differs between the elements of a batch, or
stands for an input of a graph, is no number. Then the list is stacked of tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..torch_private.pytrees import pytree
from . import factories
from .ambient import Ambient
from .shells import VALUES
from .user_code import noted, settled


class _Reads(Ambient):
    """Whether a method that reads the number of a value runs now, such as ``item()``."""

    by_method: bool = False


_READS = _Reads()
READ_OF_NUMBER = torch.ops.aten._local_scalar_dense.default
"""The op by which torch reads the number of a tensor."""


def reading_method(name: str) -> Callable[..., Any]:
    """Return the method of a value that reads its number as ``torch.Tensor``'s of this name."""

    def read(self: torch.Tensor) -> Any:
        before, _READS.by_method = _READS.by_method, True
        try:
            # looked up now, as a capture exchanges some methods
            return getattr(torch.Tensor, name)(self)
        finally:
            _READS.by_method = before

    read.__name__ = name
    read.__doc__ = f"Return a number, as ``torch.Tensor.{name}``."
    return read


def refuse_taken_number() -> None:
    """Raise ``TypeError`` where torch takes a tensor with a derivative for a number.

    ``torch.add(x, x, alpha=y)`` is of a number ``y``. Torch refuses a tensor that requires grad
    there, by a flag which values do not have.
    """
    if _READS.by_method:
        return
    raise noted(
        settled(
            TypeError(
                "a function of torch takes a number here, and gets a tensor whose derivative would "
                "be lost. Pass float(x) if it is a constant, or compute with operators of tensors"
            )
        )
    )


def readable(data: Any) -> Any:
    """Return ``data`` with plain tensors in place of the values that torch may read."""
    if isinstance(data, (list, tuple)):
        return list(map(readable, data))
    # a level that keeps a history has the element inside, and torch drops the history as well
    number = data
    while type(number) in VALUES and number._level.keeps_history:
        number = number._inner
    if type(number) in VALUES:
        return data
    return number


def has_values(data: object) -> bool:
    """Return whether ``data``, which is :func:`readable`, is a list with values in it."""
    return isinstance(data, (list, tuple)) and any(
        type(leaf) in VALUES for leaf in pytree.tree_leaves(data)
    )


def stacked(data: Any, dtype: torch.dtype | None, device: Any) -> torch.Tensor:
    """Return a tensor of nested lists with values in them, without a history. Without ``dtype``, it
    has the type that holds all of them."""
    if dtype is None:
        dtype = functools.reduce(torch.promote_types, map(_dtype, pytree.tree_leaves(data)))
    if isinstance(data, torch.Tensor):  # of a plain one, too, `torch.tensor` would warn
        return data.detach().to(device, dtype)
    if isinstance(data, list) and has_values(data):
        return torch.stack([stacked(item, dtype, device) for item in data])
    return factories.tensor(data, dtype=dtype, device=device)


def _dtype(leaf: object) -> torch.dtype:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    return factories.tensor(leaf).dtype
