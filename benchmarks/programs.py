"""The programs that are timed: each a scalar function of its parameters and one input, in a small and a larger size."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Program:
    """`loss(x, *parameters)` is a scalar; `x` holds one sample, `batch` several along dimension 0."""

    name: str
    loss: Callable[..., Tensor]
    x: Tensor
    batch: Tensor
    parameters: tuple[Tensor, ...]


def pointwise_chain(size: int, length: int = 20) -> Program:
    def loss(x: Tensor, scale: Tensor) -> Tensor:
        for _ in range(length):
            x = torch.tanh(x * scale)
        return x.sum()

    return Program(f"pointwise chain, {size}×{size}", loss, torch.randn(size, size), torch.randn(8, size, size), (torch.randn(size, size),))


def mlp(width: int) -> Program:
    def loss(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = torch.relu(torch.nn.functional.linear(x, w1, b1))
        return torch.nn.functional.linear(hidden, w2, b2).square().mean()

    shapes = [(width, width), (width,), (10, width), (10,)]
    parameters = tuple(torch.randn(shape) / width**0.5 for shape in shapes)
    return Program(f"MLP, width {width}", loss, torch.randn(width), torch.randn(16, width), parameters)


def programs() -> list[Program]:
    """Every program, small sizes first; the values are seeded."""
    torch.manual_seed(0)
    return [pointwise_chain(8), mlp(16), pointwise_chain(256), mlp(512)]
