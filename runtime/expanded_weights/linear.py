"""``linear``: an outer product per sample, summed over the other dimensions of the sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .layer import Gradients, layer, need_batch
from .utils import sum_over_all_but_batch_and_last_n


@layer(F.linear, ops="mm addmm")
def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Gradients:
    need_batch("linear", input, 2)
    x = input.conj()

    def for_weight(g: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            return g.unsqueeze(2) * x.unsqueeze(1)
        return torch.bmm(g.flatten(1, -2).mT, x.flatten(1, -2))

    return {
        "input": lambda g: g.matmul(weight.conj()),
        "weight": for_weight,
        "bias": lambda g: sum_over_all_but_batch_and_last_n(g, 1),
    }
