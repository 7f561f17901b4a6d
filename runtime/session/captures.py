"""Declares what answers ``.grad`` and ``backward()`` while a program is captured.

``.grad`` is Python's, and a capture runs the program on values that stand for its tensors. So
``backward()``, ``grad()`` and ``.grad`` ask for :data:`CAPTURE` first. ``runtime.aot`` has the only
class of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from ..seam.ambient import Ambient


class CapturedGradients(Protocol):
    """The gradients of one capture. The arguments are those of ``torch.autograd.backward``,
    ``torch.autograd.grad``, ``t.grad``, ``t.retain_grad()`` and ``t.requires_grad_()``."""

    def backward(
        self,
        tensors: object,
        grad_tensors: object,
        retain_graph: bool | None,
        create_graph: bool,
        inputs: object,
    ) -> None:
        """Do ``torch.autograd.backward``."""
        ...

    def grad(
        self,
        outputs: object,
        inputs: object,
        grad_outputs: object,
        retain_graph: bool | None,
        create_graph: bool,
        **options: object,
    ) -> Any:
        """Do ``torch.autograd.grad``."""
        ...

    def gradient(self, tensor: torch.Tensor) -> object:
        """Return ``tensor.grad``."""
        ...

    def assign(self, tensor: torch.Tensor, g: object) -> None:
        """Do ``tensor.grad = g``."""
        ...

    def drop(self, tensors: Iterable[torch.Tensor]) -> None:
        """Assign None to the gradients of ``tensors`` that nobody has read yet."""
        ...

    def retain(self, tensor: Any) -> None:
        """Do ``tensor.retain_grad()``."""
        ...

    def require(self, tensor: torch.Tensor, flag: bool) -> object:
        """Do ``tensor.requires_grad_(flag)``."""
        ...

    def inside(self, tree: object) -> Any:
        """Return ``tree`` with the values of the program in place of tensors from outside."""


class _Capture(Ambient):
    """``gradients``: what answers ``.grad`` and ``backward()`` in the program that this thread
    captures."""

    def __init__(self) -> None:
        self.gradients: CapturedGradients | None = None


CAPTURE = _Capture()
