"""Training programs that know nothing of the runtime."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.block(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


def programs() -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Name, model and inputs; the same on every call."""
    torch.manual_seed(0)
    yield (
        "mlp",
        nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)),
        torch.randn(16, 10),
    )
    convolutions = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    yield "cnn", nn.Sequential(*convolutions, nn.Linear(8 * 7 * 7, 4)), torch.randn(8, 3, 16, 16)
    yield "transformer", Transformer(), torch.randint(0, 20, (8, 12))
    yield "lstm", Recurrent(), torch.randint(0, 20, (8, 12))


def losses(name: str, optimizer: str, steps: int) -> list[float]:
    """The loss at every step of training."""
    model, x = next((copy.deepcopy(m), x) for n, m, x in programs() if n == name)
    y = torch.arange(len(x)) % 4
    opt: torch.optim.Optimizer
    if optimizer == "SGD":
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    else:
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    out = []
    torch.manual_seed(1)
    for _ in range(steps):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out
