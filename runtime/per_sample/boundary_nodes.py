"""Define nodes at which the tape of a followed batch begins, refuses a gradient, or notes a sum
over the samples.

With ``losses.sum().backward()``, the gradient passes a :class:`Pool` before the sum, so the session
knows that each sample's loss has the cotangent 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..rules.samples.places import Tensor
from ..session.tensor import SESSION
from ..tape.nodes import Edge, Input, Node

WRITTEN_ELSEWHERE = (
    "per_sample: a tensor is used whose memory has been written to through detach() or .data. "
    "Write to the tensor itself, or to a copy."
)


class ParameterInput(Input):
    """Where the tape begins at a parameter. Its uses are taps, so no cotangent of a whole
    batch may come here."""

    __slots__ = ("name_",)

    def __init__(self, inner: Tensor, name: str) -> None:
        super().__init__(SESSION, inner)
        self.name_ = name  # `name` is a method of nodes

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Raise: a cotangent of the parameter itself belongs to no sample."""
        raise RuntimeError(
            f"per_sample: the loss depends on {self.name_} by a term without samples, so its "
            "gradient belongs to no sample. If the term comes from the batch, mark the batch: "
            "x = grads.batch(x). If it does not, as a weight decay, compute its gradient outside."
        )


class Refusal(Node):
    """Stands before a mixture. A gradient that arrives is an error."""

    __slots__ = ("why",)

    def __init__(self, edge: Edge, metas: object, why: str) -> None:
        super().__init__(SESSION, (edge,), metas)
        self.why = why

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Raise with the sentence that says what is mixed."""
        raise RuntimeError(self.why)


class Pool(Node):
    """Stands before a sum or mean over the samples, and notes which it is when a
    gradient comes by."""

    __slots__ = ("note",)

    def __init__(self, edge: Edge, metas: object, note: Callable[[], None]) -> None:
        super().__init__(SESSION, (edge,), metas)
        self.note = note

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Note the sum or mean, and pass the gradients on."""
        self.note()
        return tuple(grads)
