"""Three small models that are trained for a few steps, where their argument is.

    perceptron(x)        # the losses of three steps, and the parameters after them

Parameters begin with numbers of a formula, as each device draws others. What comes out on a device
is compared with the same program on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["convolutional", "perceptron", "transformer"]

_STEPS = 3
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def _prepared(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a model on the device of `x`, in its dtype, with numbers of a formula."""
    model = model.to(x.device, x.dtype)
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            numbers = torch.arange(parameter.numel(), dtype=torch.float64, device="cpu")
            drawn = ((numbers + place) * 1.7).sin() / 3
            parameter.copy_(drawn.reshape(parameter.shape))
    return model


def _trained(model: nn.Module, x: Tensor, optimizer: Optimizer) -> tuple[Tensor, ...]:
    """Return the losses of a few steps, and the parameters after them."""
    x = x.detach()
    labels = torch.arange(len(x), device=x.device) % 2
    parameters = list(_prepared(model, x).parameters())
    stepped = optimizer(parameters)
    losses = []
    for _ in range(_STEPS):
        loss = F.cross_entropy(model(x), labels)
        stepped.zero_grad()
        loss.backward()
        stepped.step()
        losses.append(loss.detach())
    return *losses, *(parameter.detach() for parameter in parameters)


def perceptron(x: Tensor) -> tuple[Tensor, ...]:
    """Train two linear layers by AdamW. `x` has 6 columns."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    return _trained(model, x, lambda ps: torch.optim.AdamW(ps, 0.01))


def convolutional(x: Tensor) -> tuple[Tensor, ...]:
    """Train a convolution, a norm and a linear layer by Adam. `x` has the sizes (n, 2, 6, 6)."""
    # A bias before a norm has a gradient of rounding alone, which Adam makes a step of full size.
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    model.append(nn.Linear(12, 2))
    return _trained(model, x, lambda ps: torch.optim.Adam(ps, 0.01))


class _Transformer(nn.Module):
    """One layer of attention over a line, and a linear layer over its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 12, dropout=0.0, activation="gelu", batch_first=True
        )
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.layer(x).mean(1))
        return result


def transformer(x: Tensor) -> tuple[Tensor, ...]:
    """Train a layer of attention by gradient descent with momentum. `x` has the sizes (n, length,
    8)."""
    return _trained(_Transformer(), x, lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9))
