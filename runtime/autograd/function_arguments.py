"""Compares and exchanges the arguments and outputs of a custom Function where it passes a level.

Example: a grad level runs ``forward`` with the inner tensors of its values (:func:`lowered`). If
``forward`` returns one of them, the caller must get the value back (:func:`position_of`).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..seam.levels import Level, Value
from ..seam.user_code import noted, settled
from ..torch_private.pytrees import pytree
from .function_node import FunctionCtx

_grad_enabled = torch.is_grad_enabled


def lowered(level: Level, tree: pytree.PyTree) -> pytree.PyTree:
    """Return ``tree`` with each value of ``level`` replaced by its inner tensor."""

    def inner_of(value: Any) -> object:
        if value._level is level:
            return value._inner
        return value

    return exchanged(tree, inner_of)


def exchanged(tree: pytree.PyTree, exchange: Callable[[Any], object]) -> pytree.PyTree:
    """Return ``tree`` with ``exchange(v)`` in place of each value. If all stay it is ``tree``
    itself: a Function may change a dictionary that it is given, or keep it."""
    if isinstance(tree, Value):
        return exchange(tree)
    leaves, spec = pytree.tree_flatten(tree)
    inner = [exchange(leaf) if isinstance(leaf, Value) else leaf for leaf in leaves]
    if not any(map(operator.is_not, leaves, inner)):
        return tree
    return pytree.tree_unflatten(inner, spec)


class RebuiltContainers:
    """The containers of tensors that a Function gets in place of those that the caller gives.

    What it changes in them would be lost, so that :meth:`refuse_changes` raises.
    """

    def __init__(self, given: Sequence[object], inner: Sequence[object]) -> None:
        # an argument that is the caller's own object may change, and a tensor is no container
        rebuilt = [
            tree
            for before, tree in zip(given, inner, strict=True)
            if tree is not before and not isinstance(tree, torch.Tensor)
        ]
        self._contents = [(tree, *pytree.tree_flatten(tree)) for tree in rebuilt]

    def refuse_changes(self, cls: type) -> None:
        """Raise ``RuntimeError`` if one of them has other items by now."""
        for tree, leaves, spec in self._contents:
            # by identity: a write to a tensor in it is not lost, another item in its place is
            present_leaves, present_spec = pytree.tree_flatten(tree)
            if present_spec != spec or any(map(operator.is_not, present_leaves, leaves)):
                raise noted(
                    RuntimeError(
                        f"{cls.__name__} changes a list or dictionary of tensors that it is given, "
                        "which a transform or a captured program has in place of the caller's. "
                        "Return what it adds, or change the container outside of the Function."
                    )
                )


def position_of(tensor: object, tensors: Sequence[object]) -> int | None:
    """Return the position of the object ``tensor`` itself among ``tensors``."""
    return next((index for index, each in enumerate(tensors) if each is tensor), None)


def check_marks(ctx: FunctionCtx, outs: Sequence[object], inputs: Sequence[object]) -> None:
    """Raise unless every argument of ``mark_dirty`` is among the outputs ``outs``. Warn if one is
    not among ``inputs``, as ``forward`` got them."""
    for dirty in ctx.dirty_tensors:
        if position_of(dirty, outs) is None:
            raise settled(
                RuntimeError(
                    "Some elements marked as dirty during the forward method were not returned as "
                    "output. Return from forward every tensor that it gives to mark_dirty."
                )
            )
        recording = _grad_enabled() and any(ctx.needs_input_grad)
        if recording and position_of(dirty, inputs) is None:
            warnings.warn(
                (
                    "ctx.mark_dirty() received a tensor that was not an input. "
                    "It is for inputs that forward has written to."
                ),
                UserWarning,
                stacklevel=4,
            )
