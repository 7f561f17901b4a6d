"""Draws whose result is known, and draws of factories under a transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Op = Callable[..., object]


def only_draws(op: Op) -> Op:
    """Mark a function whose results are draws and nothing else, as ATen marks its ops: a batch of
    them is compared by what they share."""
    op.tags = (torch.Tag.nondeterministic_seeded,)  # type: ignore[attr-defined]
    return op


@only_draws
def factories(x: Tensor) -> tuple[Tensor, ...]:
    """Draws of the shape of x by every factory: uniform, normal and whole numbers, with a generator
    and without one."""
    size = list(x.shape)
    own: Any = {"generator": torch.default_generator}
    return (
        torch.rand(size, dtype=x.dtype),
        torch.rand(size, dtype=x.dtype, **own),
        torch.randn(size, dtype=x.dtype),
        torch.randn(size, dtype=x.dtype, **own),
        torch.randint(1000, size),
        torch.randint(1000, size, **own),
        torch.randint(-500, 500, size),
        torch.randint(-500, 500, size, **own),
    )


def _bits(x: Tensor) -> Tensor:
    """Zeros and ones that depend on x and change with its last digits."""
    return ((x * 64).floor() % 2).abs()


@only_draws
def sure_coins(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draws with probabilities zero and one, which are the probabilities, in x's shape."""
    bits = _bits(x)
    return (
        torch.bernoulli(bits),
        torch.ops.aten.bernoulli.Tensor(x, bits),
        torch.binomial(torch.ones_like(bits), bits),
    )


@only_draws
def places_without_spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Where normal draws of mean 0.5 are that mean: those with a spread of zero."""
    bits = _bits(x)
    return torch.normal(0.5, bits) == 0.5, torch.normal(torch.full_like(x, 0.5), bits) == 0.5


@only_draws
def uniform_on_its_grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whether uniform draws in float64 are multiples of the smallest number that they can be, by a
    factory of each kind."""
    made, alike = torch.rand(list(x.shape), dtype=x.dtype), torch.rand_like(x)
    return (made * 2.0**53) % 1 == 0, (alike * 2.0**53) % 1 == 0
