"""What a node keeps between forward and backward: version checks and pack/unpack hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you "
    "need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)


class _Hooks(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = []
        self.disabled: str | None = None


HOOKS = _Hooks()


class Packed:
    """A saved tensor that went through a pack hook; ``unpack`` gets it back."""

    __slots__ = ("payload", "unpack")

    def __init__(self, payload: Any, unpack: Callable[[Any], Any]) -> None:
        self.payload = payload
        self.unpack = unpack


class Saved:
    """One saved tensor with the version that it had."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version

    def check(self, node: str) -> torch.Tensor:
        t = self.tensor
        if t._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{t.type() if type(t) is torch.Tensor else t.dtype} {list(t.shape)}], which is saved by {node}, "
                f"is at version {t._version}; "
                f"expected version {self.version} instead. Hint: clone the tensor before the operation that modifies it, "
                "or enable anomaly detection to find the operation that failed to compute its gradient."
            )
        return t
