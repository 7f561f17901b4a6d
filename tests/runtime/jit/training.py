"""Programs that train a small module, eager and jitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runtime import jit

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
    """One step of training: the mean square of what ``model`` gives."""

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def left(module: nn.Module) -> list[Tensor | None]:
    """What a step leaves in ``module``."""
    gradients = [None if p.grad is None else p.grad.detach().clone() for p in module.parameters()]
    return [
        *(p.detach().clone() for p in module.parameters()),
        *gradients,
        *(b.clone() for b in module.buffers()),
    ]


def assert_equal_bits(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) is (b is None)
        if a is not None and b is not None:
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.equal(a, b)


def both(program: Callable[[Wrap], list[Tensor | None]]) -> None:
    """``program(wrap)`` is the same list for jitted steps as for eager ones."""
    assert_equal_bits(program(jit), program(lambda f: f))
