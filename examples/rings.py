"""Data and a model for the examples of per-sample gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def two_rings(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points of two classes, one around the other. Shapes (n, 2) and (n,)."""
    labels = torch.arange(n) % 2
    angle = torch.rand(n, generator=generator) * 2 * torch.pi
    radius = 1.0 + 1.5 * labels + 0.2 * torch.randn(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def classifier(seed: int, width: int = 16, outputs: int = 2) -> nn.Module:
    """A small model, whose first weights follow from ``seed``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs))
