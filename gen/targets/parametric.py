"""Help both built-in targets.

For per-sample gradients: a function with parameters as a module, and the loss. For other stages:
gradients that may be missing, and calls of ``autograd.functional``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Parametric(nn.Module):
    """`f` as a module with the parameters `params`, for ``call_for_per_sample_grads``."""

    def __init__(self, function: Callable[..., Any], params: Sequence[Tensor]) -> None:
        super().__init__()
        self.f = function
        self.weights = nn.ParameterList(
            [nn.Parameter(parameter.detach().clone()) for parameter in params]
        )

    def forward(self, batch: Tensor) -> Any:
        return self.f(batch, *self.weights)


def batch_loss(outputs: Sequence[Any], samples: int, reduction: str) -> Any:
    """Return Σ|output|² over all outputs; for ``mean``, divided by the number of samples."""
    total = torch.stack([(output * output.conj()).real.sum() for output in outputs]).sum()
    if reduction == "mean":
        return total / samples
    return total


def of_samples(gradient: Tensor, reduction: str) -> Tensor:
    """Return the gradients of the samples' own losses, from the gradient of the batch's loss."""
    if reduction == "mean":
        return gradient * len(gradient)
    return gradient


def or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Return a gradient or tangent, with zeros for one that is not there."""
    if gradient is None:
        return torch.zeros_like(like)
    return gradient


def call_functional(
    module: object,
    name: str,
    f: Callable[..., Any],
    args: tuple[object, ...],
    along: tuple[object, ...],
) -> Any:
    """Return what a function of an ``autograd.functional`` says of `f`.

    Those of second derivatives take the first result alone, as they want a scalar.
    """
    function = getattr(module, name)

    def first(*xs: object) -> Any:
        return f(*xs)[0]

    of = first if name in ("hessian", "vhp", "hvp") else f
    if not along:
        return function(of, args)
    return function(of, args, along)
