"""What the rows of families share: the row itself, gradients, and the kinds of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gen.outcomes import Unsuitable

Results = tuple[Any, ...]
REFUSALS = (NotImplementedError, RuntimeError, TypeError, ValueError)
"""The classes of errors by which torch refuses."""
Program = Callable[..., Sequence[Tensor]]


class BackwardError(RuntimeError):
    """Say that torch computed a result and then failed in its backward pass, so that a report
    tells that from a call which torch refuses."""


@dataclass(frozen=True)
class Row:
    """A program of a family.

    ``definition`` computes the same from plain dense tensors. ``may_refuse``: whether torch lacks
    much of the family, so that an error by which torch refuses is right, too.
    """

    program: Callable[..., Results]
    definition: Callable[..., Results]
    may_refuse: bool = False

    def __call__(self, *args: Any, **options: Any) -> Results:
        try:
            return described(self.program(*args, **options))
        except BackwardError:
            raise  # torch gave a result, so it does not lack the program
        except REFUSALS as error:
            if not self.may_refuse:
                raise
            raise Unsuitable(f"refused: {error}") from error

    def by_definition(self, *args: Any, **options: Any) -> Results:
        """Return what the program gives by its definition."""
        return described(self.definition(*args, **options))


def described(results: Sequence[Any]) -> Results:
    """Return results behind their number and shapes.

    A check looks past dimensions of size 1 in which a reference differs, and these numbers are
    compared exactly.
    """
    tensors = [torch.as_tensor(one) for one in results]
    ranks = [len(tensors), *(size for one in tensors for size in (one.ndim, *one.shape))]
    return torch.tensor(ranks), *tensors


def leaves_of(*inputs: Tensor) -> list[Tensor]:
    """Return copies of tensors that require grad."""
    return [x.detach().clone().requires_grad_() for x in inputs]


def weighted(results: Sequence[Tensor]) -> Tensor:
    """Return the sum of all entries, each with a weight of its own, so that no two gradients of
    entries are equal."""
    total = torch.zeros((), dtype=torch.float64)
    start = 1.0
    for one in results:
        if not one.is_floating_point() and not one.is_complex():
            continue
        weights = (torch.arange(one.numel(), dtype=torch.float64) + start).cos().reshape(one.shape)
        total = total + (_real(one) * weights).sum()
        start += 0.5
    return total


def _real(x: Tensor) -> Tensor:
    """Return a real tensor that depends on both parts of a complex one."""
    if x.is_complex():
        return x.real + 0.3 * x.imag
    return x


def gradients(results: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the weighted sum of results. A leaf without a part has zeros."""
    loss = weighted(results)
    if not loss.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    try:
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
    except NotImplementedError:
        raise
    except REFUSALS as error:
        raise BackwardError(f"the backward pass of a result raises {error!r}") from error
    return [
        torch.zeros_like(x) if one is None else one for one, x in zip(found, leaves, strict=True)
    ]


def detached(results: Sequence[Tensor]) -> list[Tensor]:
    """Return results without their histories."""
    return [one.detach() for one in results]
