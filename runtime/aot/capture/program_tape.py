"""Record a program that is captured on a tape.

A program may ask the tape for gradients as it asks the session: by ``backward()``, ``grad()`` and
``.grad``, see :mod:`.leaf_gradients`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ...seam.memory import refuse_data
from ...session.captures import CAPTURE
from ...tape.grad_level import GradLevel
from ...tape.metas import meta_of
from ...tape.nodes import Node


class Argument(Node):
    """End a path at an argument of the program.

    Unlike an input of a transform it is no leaf, so the program may write to it.
    """

    __slots__ = ()

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> tuple[()]:
        """Return nothing: no path leads further."""
        return ()


class ProgramTape(GradLevel):
    """Record a program. The paths of its inputs end in :class:`Argument` nodes."""

    __slots__ = ()
    runs_ctx_forward = packs = releases_written = follows_bases = True
    leaves_parts = False

    def input(self, outer: torch.Tensor) -> Any:
        """Return ``outer`` as an argument of the program that requires grad."""
        return self.wrap(outer, (Argument(self, (), (meta_of(outer, outer.dtype),)), 0))

    def retain_grad_of(self, value: object) -> None:
        """Do ``value.retain_grad()``; in a capture its gradient is stored there."""
        if CAPTURE.gradients is None:
            super().retain_grad_of(value)
        else:
            CAPTURE.gradients.retain(value)

    def refuse_data(self) -> NoReturn:
        """Refuse a write to ``.data``."""
        refuse_data()
