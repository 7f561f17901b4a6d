"""The tape of a program that is captured. A program may ask it for gradients as it asks the
session: by ``backward()``, ``grad()`` and ``.grad``, see :mod:`.leaf_gradients`."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ...seam.memory import refuse_data
from ...session.captures import CAPTURE
from ...tape.grad_level import GradLevel
from ...tape.metas import meta_of
from ...tape.nodes import Node


class Argument(Node):
    """The end of a path: an argument of the program. Unlike an input of a transform it is no leaf,
    so that the program may write to it."""

    __slots__ = ()

    def apply(self, grads: list[Any], wanted: object, create_graph: bool) -> tuple[Any, ...]:
        return ()


class ProgramTape(GradLevel):
    """The tape of a program. Its inputs end in :class:`Argument` nodes."""

    __slots__ = ()
    runs_ctx_forward = packs = releases_written = follows_bases = True
    leaves_parts = False

    def input(self, outer: torch.Tensor) -> Any:
        return self.wrap(outer, (Argument(self, (), (meta_of(outer, outer.dtype),)), 0))

    def retain_grad_of(self, value: object) -> None:
        if CAPTURE.gradients is None:
            super().retain_grad_of(value)
        else:
            CAPTURE.gradients.retain(value)

    def refuse_data(self) -> NoReturn:
        refuse_data()
