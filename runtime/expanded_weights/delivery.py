"""Write the gradients of each sample to ``.grad_sample`` of the parameters, at the end of a
backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..per_sample import per_sample
from ..tape.engine import queue_callback
from ..tape.running import current_graph_task_id


class Delivery(per_sample):
    """A context in which a module or a layer runs.

    ``length``: the number of rows of ``grad_sample``. None: the number of samples.
    """

    def __init__(
        self, params: Mapping[str, torch.Tensor], batch_dim: int, reduction: str, length: int | None
    ) -> None:
        super().__init__(params, batch_dim, reduction=reduction)
        self.length = length
        self._session.arrived = self._queue
        self._of_pass: int | None = None

    def _queue(self) -> None:
        """Ask for one delivery at the end of the running backward pass."""
        if self._of_pass != current_graph_task_id():
            self._of_pass = current_graph_task_id()
            queue_callback(self._deliver)

    def _deliver(self) -> None:
        """Add the gradients to ``grad_sample`` of each parameter that the loss depends on."""
        size = len(self)
        for (_, leaf), parameter in zip(self._leaves, self._parameters, strict=True):
            if not parameter.terms:
                continue
            grad = self._dense(parameter, 0, size)
            # as in torch: the rows that a smaller batch lacks are zeros
            if self.length is not None and grad.shape[0] < self.length:
                missing = grad.new_zeros(self.length - grad.shape[0], *grad.shape[1:])
                grad = torch.cat([grad, missing])
            add_to_grad_sample(leaf, grad)
        # else the next backward pass would deliver them once more
        self._session.uses.clear()


def add_to_grad_sample(leaf: Any, grad: object) -> None:
    """Add gradients of shape (B, *leaf.shape) to those that ``leaf`` has."""
    before = getattr(leaf, "grad_sample", None)
    if before is not None:
        grad = before + grad
    leaf.grad_sample = grad
