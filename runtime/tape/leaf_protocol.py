"""Declares what a backward pass uses of a tensor whose ``.grad`` it writes.

``session/tensor.py`` has such tensors. The tape does not import it, since the session imports the
tape.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Leaf(Protocol):
    """A tensor with a ``.grad`` to which a backward pass adds."""

    _inner: torch.Tensor
    # whether it still requires grad
    _req: bool
    # its history, if it has been written to and so is no leaf any more
    _edge: Any
    _grad: Any
    # a pass that adds to ``_grad`` takes it
    _lock: Any
    # see the gradient before it is added
    _hooks: OrderedDict[int, Callable[..., object]] | None
    # see the leaf after the gradient is added
    _post_accumulate: OrderedDict[int, Callable[..., object]] | None
    # takes a plain gradient to where it belongs, if that is elsewhere
    _deliver: Callable[[torch.Tensor], None] | None

    @property
    def device(self) -> torch.device: ...

    def dtype_of_grad(self) -> torch.dtype | None:
        """Return the dtype that the gradient must have, None if it may have any."""
        ...
