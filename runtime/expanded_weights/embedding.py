"""``embedding``: each sample adds its output gradients to the rows that it looked up."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .layer import Gradients, layer, need_batch


@layer(F.embedding, ops="embedding")
def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Gradients:
    need_batch("embedding", input, 2)
    rows, width = weight.shape

    def for_weight(g: torch.Tensor) -> torch.Tensor:
        n = len(input)
        places = (input.reshape(n, -1) + rows * torch.arange(n, device=input.device).unsqueeze(1)).reshape(-1)
        values = g.reshape(-1, width)
        if scale_grad_by_freq:
            counts = torch.zeros(n * rows, dtype=g.dtype, device=g.device).index_add_(0, places, torch.ones_like(values[:, 0]))
            values = values / counts[places].unsqueeze(1)
        out = g.new_zeros(n * rows, width).index_add_(0, places, values).view(n, rows, width)
        if padding_idx is not None:
            out[:, padding_idx] = 0
        return out

    return {"weight": for_weight}
