"""The ops of `examples/ops.py` as scalar loops: slow, obvious, and independent of torch's kernels.

Each takes tensors and returns a tensor. In between it computes with Python floats in nested loops.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _each(f: Callable[..., float], *tensors: Tensor) -> Tensor:
    """The tensor of `f(*entries)` at each position. The tensors have one shape."""
    columns = [t.reshape(-1).tolist() for t in tensors]
    return torch.tensor(
        [f(*entries) for entries in zip(*columns, strict=True)], dtype=torch.float64
    ).reshape(tensors[0].shape)


def _each_row(f: Callable[..., list[float]], *tensors: Tensor) -> Tensor:
    """The tensor of `f(*rows)`, where rows run along the last dimension. The other dimensions of
    the tensors agree."""
    lead = tensors[0].shape[:-1]
    count = math.prod(lead)
    columns = [t.reshape(count, t.shape[-1]).tolist() for t in tensors]
    rows = [f(*entries) for entries in zip(*columns, strict=True)]
    width = len(rows[0]) if rows else tensors[0].shape[-1]
    return torch.tensor(rows, dtype=torch.float64).reshape(*lead, width)


def squared_relu(x: Tensor) -> Tensor:
    return _each(lambda v: v * v if v > 0 else 0.0, x)


def soft_threshold(x: Tensor, threshold: float = 0.5) -> Tensor:
    def one(v: float) -> float:
        if v > threshold:
            return v - threshold
        return v + threshold if v < -threshold else 0.0

    return _each(one, x)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    scale = weight.tolist()

    def row(values: list[float]) -> list[float]:
        mean_square = sum(v * v for v in values) / len(values)
        return [v / math.sqrt(mean_square + eps) * w for v, w in zip(values, scale, strict=True)]

    return _each_row(row, x)


def geglu(x: Tensor, gate: Tensor) -> Tensor:
    return _each(lambda v, g: v * g * 0.5 * (1 + math.erf(g / math.sqrt(2))), x, gate)


def rotary(x: Tensor, angle: Tensor) -> Tensor:
    def row(values: list[float], angles: list[float]) -> list[float]:
        half = len(angles)
        turned = [0.0] * (2 * half)
        for i, a in enumerate(angles):
            turned[i] = values[i] * math.cos(a) - values[half + i] * math.sin(a)
            turned[half + i] = values[i] * math.sin(a) + values[half + i] * math.cos(a)
        return turned

    return _each_row(row, x, angle)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    rows_a, rows_b = a.tolist(), b.tolist()
    table = [[sum((p - q) ** 2 for p, q in zip(i, j, strict=True)) for j in rows_b] for i in rows_a]
    return torch.tensor(table, dtype=torch.float64).reshape(len(rows_a), len(rows_b))


def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    total = 0.0
    rows = logits.tolist()
    for row, label in zip(rows, target.tolist(), strict=True):
        peak = max(row)
        log_sum = peak + math.log(sum(math.exp(v - peak) for v in row))
        for i, v in enumerate(row):
            share = (1 - smoothing) * (i == label) + smoothing / len(row)
            total -= share * (v - log_sum)
    return torch.tensor(total / len(rows), dtype=torch.float64)


def moving_average(x: Tensor, decay: float = 0.75) -> Tensor:
    def row(values: list[float]) -> list[float]:
        state, out = 0.0, []
        for v in values:
            state = decay * state + (1 - decay) * v
            out.append(state)
        return out

    return _each_row(row, x)
