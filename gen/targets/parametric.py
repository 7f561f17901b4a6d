"""Helpers of both built-in targets for per-sample gradients: a function with parameters as a
module, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Parametric(nn.Module):
    """`f` as a module with the parameters `params`, for ``call_for_per_sample_grads``."""

    def __init__(self, f: Callable[..., Any], params: Sequence[Tensor]) -> None:
        super().__init__()
        self.f = f
        self.held = nn.ParameterList([nn.Parameter(p.detach().clone()) for p in params])

    def forward(self, batch: Tensor) -> Any:
        return self.f(batch, *self.held)


def batch_loss(outputs: Sequence[Any], samples: int, reduction: str) -> Any:
    """Σ|output|² over all outputs; for ``mean``, divided by the number of samples."""
    total = torch.stack([(output * output.conj()).real.sum() for output in outputs]).sum()
    return total / samples if reduction == "mean" else total


def of_samples(gradient: Tensor, reduction: str) -> Tensor:
    """Return the gradients of the samples' own losses, from the gradient of the batch's loss."""
    return gradient * len(gradient) if reduction == "mean" else gradient
