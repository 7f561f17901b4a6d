"""``layer_norm``, ``group_norm``, ``instance_norm``: scale and shift act on a normalized input that depends on one sample only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from .layer import Gradients, layer, need_batch
from .utils import sum_over_all_but_batch_and_last_n

aten = torch.ops.aten


@layer(F.layer_norm, ops="native_layer_norm")
def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Gradients:
    n = len(normalized_shape)
    need_batch("layer_norm", input, n + 1)
    normalized, mean, rstd = torch.native_layer_norm(input, normalized_shape, None, None, eps)
    return {
        "input": lambda g: aten.native_layer_norm_backward(g, input, normalized_shape, mean, rstd, weight, None, [True, False, False])[0],
        "weight": lambda g: sum_over_all_but_batch_and_last_n(g * normalized, n),
        "bias": lambda g: sum_over_all_but_batch_and_last_n(g, n),
    }


def _by_channel(t: torch.Tensor) -> torch.Tensor:
    """(N, C, *spatial) -> (N, C)."""
    return t.flatten(2).sum(2) if t.dim() > 2 else t


def _grouped(x: torch.Tensor, groups: int, weight: torch.Tensor | None, eps: float) -> Gradients:
    n, c = x.shape[:2]
    x = x.contiguous()
    size = math.prod(x.shape[2:])
    normalized, mean, rstd = torch.native_group_norm(x, None, None, n, c, size, groups, eps)

    def for_input(g: torch.Tensor) -> torch.Tensor:
        wanted = [True, False, False]
        out: torch.Tensor = aten.native_group_norm_backward(g.contiguous(), x, mean, rstd, weight, n, c, size, groups, wanted)[0]
        return out

    return {"input": for_input, "weight": lambda g: _by_channel(g * normalized), "bias": _by_channel}


@layer(F.group_norm, ops="native_group_norm")
def group_norm(
    input: torch.Tensor, num_groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> Gradients:
    need_batch("group_norm", input, 2)
    return _grouped(input, num_groups, weight, eps)


@layer(F.instance_norm, ops="native_batch_norm")
def instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Gradients:
    need_batch("instance_norm", input, 3)
    if use_input_stats:
        return _grouped(input, input.shape[1], weight, eps)  # one group per channel
    channel = (1, -1, *(1,) * (input.dim() - 2))
    if running_mean is None or running_var is None:
        raise RuntimeError("instance_norm needs running_mean and running_var if use_input_stats is False")
    rstd: torch.Tensor = (running_var + eps).rsqrt().view(channel)
    normalized = (input - running_mean.view(channel)) * rstd
    return {
        "input": lambda g: g * rstd if weight is None else g * (rstd * weight.view(channel)),
        "weight": lambda g: _by_channel(g * normalized),
        "bias": _by_channel,
    }
