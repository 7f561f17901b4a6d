"""Eight small ops as a user would write them: ordinary torch code, vectorized.

Each is a row of matrix.yaml. `examples/reference.py` has the same functions as scalar loops.
"""

import torch
from torch import Tensor


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)², elementwise; any shape."""
    return torch.relu(x).square()


def soft_threshold(x: Tensor, threshold: float = 0.5) -> Tensor:
    """The proximal map of `threshold`·|x|: shrink towards zero, elementwise; any shape."""
    return torch.sign(x) * torch.relu(x.abs() - threshold)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x / √(mean of x² over the last dimension + eps) · weight; x [..., D], weight [D]."""
    if x.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"the last dimension of x is {x.shape[-1]}, but weight has {weight.shape[0]} entries"
        )
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def geglu(x: Tensor, gate: Tensor) -> Tensor:
    """x · gelu(gate), elementwise; both of one shape."""
    return x * torch.nn.functional.gelu(gate)


def rotary(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the two halves of the last dimension by `angle`; x [..., 2D], angle [..., D]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² for every pair; a [N, D], b [M, D] -> [N, M]."""
    return a.square().sum(-1, keepdim=True) - 2 * a @ b.mT + b.square().sum(-1)


def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross entropy against (1 − smoothing)·onehot + smoothing/C; logits [N, C], target [N] of
    class indices -> scalar."""
    log_p = torch.log_softmax(logits, dim=-1)
    hit = log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return -((1 - smoothing) * hit + smoothing * log_p.mean(-1)).mean()


def moving_average(x: Tensor, decay: float = 0.75) -> Tensor:
    """y_t = decay·y_{t−1} + (1 − decay)·x_t over the last dimension, y_{−1} = 0; x [..., T]."""
    steps = x.shape[-1]
    places = torch.arange(steps, device=x.device)
    lag = places.unsqueeze(-1) - places
    weights = torch.where(lag >= 0, decay ** lag.clamp(min=0).to(x.dtype), 0.0) * (1 - decay)
    return x @ weights.to(x.dtype).mT
