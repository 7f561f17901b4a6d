"""A function with guessed arguments: its results and gradients, or why they cannot be compared.

call = Call(torch.sin, [{"shape": [4, 3]}])
call.gradients(call.arguments(seed=1))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gen.samples.descriptions import build

__all__ = ["Call", "NotUsableError", "floating_results", "is_leaf", "leaves_of"]

Tensor = torch.Tensor


class NotUsableError(Exception):
    """A call returned nothing that could be compared."""


@dataclass(frozen=True)
class Call:
    """A function with arguments for it, as a sample describes them."""

    function: Callable[..., Any]
    described: list[Any]

    def arguments(self, dtype: str = "float64", seed: int = 0) -> list[Any]:
        """Return the arguments of a draw."""
        torch.manual_seed(seed)
        source = [{"args": self.described}]
        return list(next(build(source, getattr(torch, dtype), "cpu"))[0])

    def results(self, arguments: Sequence[Any]) -> list[Tensor]:
        """Return the floating results.

        Raises NotUsableError if there are none, or one is not finite.
        """
        if not any(isinstance(each, dict) for each in self.described):
            raise NotUsableError("it takes no tensor that could be guessed")
        results = self.function(*arguments)
        floating = floating_results(results)
        if not floating:
            raise NotUsableError(f"it returned {type(results).__name__}, no floating tensor")
        if not all(bool(x.isfinite().all()) for x in floating):
            raise NotUsableError("its result is not finite")
        return floating

    def gradients(self, arguments: Sequence[Any], create_graph: bool = False) -> list[Tensor]:
        """Return the gradients of a weighted sum of the results, one for each leaf."""
        results = [x for x in self.results(arguments) if x.requires_grad]
        if not results:
            return []
        # Weights that differ, since the gradient of a plain sum is often zero.
        total = torch.stack([(x * _weights(x)).sum().double() for x in results]).sum()
        leaves = leaves_of(arguments)
        gradients = torch.autograd.grad(total, leaves, create_graph=create_graph, allow_unused=True)
        return [each for each in gradients if each is not None]


def floating_results(results: Any) -> list[Tensor]:
    several = results if isinstance(results, tuple | list) else [results]
    return [x for x in several if isinstance(x, Tensor) and x.is_floating_point()]


def _weights(x: Tensor) -> Tensor:
    """Return numbers between 0.5 and 1.5, in the shape of a result."""
    return torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).reshape(x.shape)


def leaves_of(arguments: Sequence[Any]) -> list[Tensor]:
    return [each for each in arguments if is_leaf(each)]


def is_leaf(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
