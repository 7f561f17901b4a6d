"""Calls that a graph has in another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .call_facts import WITHOUT_MEMORY
from .provenance import here

aten = torch.ops.aten


def _drawn_between(
    x: torch.Tensor, low: Any, high: Any, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """The numbers of ``aten.random.from``, by an op that draws the same."""
    if high is None:
        raise RuntimeError(
            f"random_({low}, None) has no upper end, which a graph cannot say. Give it one.{here()}"
        )
    drawn: torch.Tensor
    if generator is None:
        drawn = aten.randint_like.low_dtype(x, low, high)
    else:
        drawn = aten.randint_like.low_generator_dtype(x, low, high, generator=generator)
    return drawn


def _redrawn_between(
    x: torch.Tensor, low: Any, high: Any, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return x.copy_(_drawn_between(x, low, high, generator=generator))


# The names of two ops are no Python, so that no module can be generated from a graph that has them.
# The third gives a tensor without memory. A value of a level does not show that to the dispatcher,
# and a kernel would read the memory.
OTHERWISE: dict[Any, Callable[..., Any]] = {
    getattr(aten.random, "from"): _drawn_between,
    getattr(aten.random_, "from"): _redrawn_between,
    WITHOUT_MEMORY: aten.zeros.default,
}
