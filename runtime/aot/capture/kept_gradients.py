"""Keep the gradient of one leaf of a captured program, in memory of its own.

    entry = KeptGradient(p)
    entry.value = as_gradient(g, p, others)     # g itself, or a copy if others share its memory

:mod:`.leaf_gradients` has all gradients of a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...functionalize.functional_value import FunctionalValue
from ...seam.levels import Value
from ...seam.user_code import settled
from ...tape.accumulate import has_required_layout, laid_out
from ...trace.outside import address
from ...trace.provenance import here
from ...trace.trace_value import TracedValue


@dataclass
class KeptGradient:
    """Store the gradient of one leaf."""

    # The tensor from outside, or the key of an argument. None for a leaf of the program itself.
    leaf: object
    like: object = None  # the value that stands for the leaf
    value: Any = None
    known: bool = False  # whether `value` is the gradient. If not, nobody has read it yet
    changed: bool = False  # whether a call is to assign it
    added: bool = False  # whether a backward pass has added to it


def refuse_misfit(g: object, tensor: torch.Tensor) -> None:
    """Raise if ``g`` is no gradient for ``tensor``: no tensor, or one of another shape or dtype."""
    if not isinstance(g, torch.Tensor):
        what = type(g).__name__
    elif g.shape != tensor.shape or g.dtype is not tensor.dtype:
        what = f"{g.dtype}{list(g.shape)}"
    else:
        return
    raise settled(
        RuntimeError(
            f"the program assigns a gradient to a tensor {tensor.dtype}{list(tensor.shape)} "
            f"that is a {what}.{here()}"
        )
    )


def memory_of(value: object) -> int:
    """Return a number for the memory of ``value``, 0 if it is no value of a program."""
    while isinstance(value, Value) and not isinstance(value, (FunctionalValue, TracedValue)):
        value = value._inner
    if isinstance(value, FunctionalValue):
        return id(value._store.memory)
    # in a trace without functionalization memory is that of the real or fake tensor below
    if isinstance(value, TracedValue) and value.layout is torch.strided:
        return address(value)
    return 0


def as_gradient(grad: torch.Tensor, like: object, others: set[int]) -> Any:
    """Return ``grad`` in memory of its own, with the strides that the gradient of ``like`` has.

    ``like``: the value of a leaf. ``others``: the memories that the gradient must not share. Its
    own joins them.
    """
    if like is None:
        like = grad
    # a later pass adds to the gradient in place, and would change whatever shares its memory
    if not has_required_layout(grad, like) or memory_of(grad) in others:
        grad = laid_out(grad, like)
    others.add(memory_of(grad))
    return grad
