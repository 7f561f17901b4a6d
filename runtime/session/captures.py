"""What keeps the gradients of leaves while a program is captured.

``.grad`` is Python's, and a capture runs the program on values that stand for its tensors. So
``backward()``, ``grad()`` and ``.grad`` ask for :data:`CAPTURE` first. ``runtime.aot`` has the only
class of this kind.
"""

from __future__ import annotations

from typing import Any, Protocol

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
    ) -> None: ...

    def grad(
        self,
        outputs: object,
        inputs: object,
        grad_outputs: object,
        retain_graph: bool | None,
        create_graph: bool,
        **options: object,
    ) -> Any: ...

    def gradient(self, tensor: object) -> Any: ...

    def assign(self, tensor: object, g: object) -> None: ...

    def retain(self, tensor: object) -> None: ...

    def require(self, tensor: object, flag: bool) -> Any: ...

    def inside(self, tree: object) -> Any:
        """``tree`` with the values of the program in place of tensors from outside."""


class _Capture(Ambient):
    """What answers ``.grad`` and ``backward()`` in the program that this thread captures."""

    def __init__(self) -> None:
        self.gradients: CapturedGradients | None = None


CAPTURE = _Capture()
