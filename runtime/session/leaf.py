"""Plain torch tensors that require grad, as leaves of our tape. The gradient is added where torch would add it."""

from __future__ import annotations

import torch

from ..seam.levels import Value
from .tensor import Tensor, wrap


def as_leaf(t: torch.Tensor) -> torch.Tensor:
    """``t`` as a value. A plain leaf that requires grad becomes a leaf of our tape, whose gradient is added to ``t.grad``."""
    if isinstance(t, Value):
        return t
    if not t.requires_grad:
        return wrap(t)
    if t.grad_fn is not None:
        raise RuntimeError(
            "a tensor recorded by torch's own autograd is used in a computation that this package differentiates; the gradient cannot "
            "cross. Make the inputs of that computation with runtime.wrap(x, requires_grad=True), or detach this tensor."
        )
    leaf = wrap(t.detach(), requires_grad=True)

    def deliver(value: Tensor) -> None:
        g = value.grad
        if g is not None:
            plain = g._inner
            t.grad = plain if t.grad is None else t.grad + plain
            value.grad = None

    leaf.register_post_accumulate_grad_hook(deliver)
    return leaf
