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
    """A tensor with a ``.grad`` to which a backward pass adds.

    ``_req``: whether it still requires grad. ``_edge``: its history, if it has been written to and
    so is no leaf any more. ``_lock``: a pass that adds to ``_grad`` takes it. ``_hooks`` see the
    gradient before it is added, ``_post_accumulate`` the leaf afterwards. ``_deliver`` takes a
    plain gradient to where it belongs, if that is elsewhere.
    """

    _inner: torch.Tensor
    _req: bool
    _edge: Any
    _grad: Any
    _lock: Any
    _hooks: OrderedDict[int, Callable[..., object]] | None
    _post_accumulate: OrderedDict[int, Callable[..., object]] | None
    _deliver: Callable[[torch.Tensor], None] | None

    @property
    def device(self) -> torch.device: ...

    def dtype_of_grad(self) -> torch.dtype | None:
        """Return the dtype that the gradient must have, None if it may have any."""
        ...
