"""What both shipped targets need for per-sample gradients: a function with parameters as a module, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Parametric(nn.Module):
    """`f` as a module that holds `params`, which is what ``call_for_per_sample_grads`` takes."""

    def __init__(self, f: Callable[..., Any], params: Sequence[Tensor]) -> None:
        super().__init__()
        self.f = f
        self.held = nn.ParameterList([nn.Parameter(p.detach().clone()) for p in params])

    def forward(self, batch: Tensor) -> Any:
        return self.f(batch, *self.held)


def batch_loss(outputs: Sequence[Any], samples: int, reduction: str) -> Any:
    """Σ|output|² over all outputs, or that over the number of samples."""
    total = torch.stack([(output * output.conj()).real.sum() for output in outputs]).sum()
    return total / samples if reduction == "mean" else total


def of_samples(gradient: Tensor, reduction: str) -> Tensor:
    """The gradient of a batch of samples by the batch's loss, as that of each sample by its own."""
    return gradient * len(gradient) if reduction == "mean" else gradient
