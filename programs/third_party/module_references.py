"""The modules of `modules`, by loops over numbers."""

import math
from typing import Any

import torch
from torch import Tensor


def _affine(weight: Tensor, x: list[float], bias: Tensor | None = None) -> list[float]:
    rows = [sum(w * a for w, a in zip(row, x, strict=True)) for row in weight.tolist()]
    return rows if bias is None else [r + b for r, b in zip(rows, bias.tolist(), strict=True)]


def _sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a))


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.tensor([_affine(weight, row, bias) for row in x.tolist()], dtype=torch.float64)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    found = []
    for row in x.reshape(-1, x.shape[-1]).tolist():
        mean = sum(row) / len(row)
        deviation = math.sqrt(sum((a - mean) ** 2 for a in row) / len(row) + 1e-5)
        found.append(
            [
                (a - mean) / deviation * w + b
                for a, w, b in zip(row, weight.tolist(), bias.tolist(), strict=True)
            ]
        )
    return torch.tensor(found, dtype=torch.float64).reshape(x.shape)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return layer_norm(x.T, torch.ones(len(x)), torch.zeros(len(x))).T * weight + bias


def lstm_cell(
    x: Tensor, w_input: Tensor, w_hidden: Tensor, b_input: Tensor, b_hidden: Tensor
) -> Any:
    """From a state of zeros."""
    hidden, state = [], []
    for row in x.tolist():
        gates = [
            a + b for a, b in zip(_affine(w_input, row, b_input), b_hidden.tolist(), strict=True)
        ]
        size = len(gates) // 4
        enter, _, new, leave = (gates[k * size : (k + 1) * size] for k in range(4))
        state.append([_sigmoid(i) * math.tanh(g) for i, g in zip(enter, new, strict=True)])
        hidden.append([_sigmoid(o) * math.tanh(c) for o, c in zip(leave, state[-1], strict=True)])
    return torch.tensor(hidden, dtype=torch.float64), torch.tensor(state, dtype=torch.float64)


def masked_attention(x: Tensor, hidden: Tensor, *parameters: Tensor) -> Tensor:
    heads = 2
    w_in, b_in, w_out, b_out = parameters
    width = x.shape[-1] // heads
    found = []
    for sample, mask in zip(x.tolist(), hidden.tolist(), strict=True):
        projected = [_affine(w_in, row, b_in) for row in sample]
        for query in projected:
            joined: list[float] = []
            for head in range(heads):
                own = slice(head * width, (head + 1) * width)
                keys = [
                    p[x.shape[-1] : 2 * x.shape[-1]][own]
                    for p, h in zip(projected, mask, strict=True)
                    if not h
                ]
                values = [
                    p[2 * x.shape[-1] :][own] for p, h in zip(projected, mask, strict=True) if not h
                ]
                scores = [
                    math.exp(
                        sum(q * k for q, k in zip(query[own], key, strict=True)) / math.sqrt(width)
                    )
                    for key in keys
                ]
                joined += [
                    sum(s * v[i] for s, v in zip(scores, values, strict=True))
                    / (sum(scores) or 1.0)
                    for i in range(width)
                ]
            found.append(_affine(w_out, joined, b_out))
    return torch.tensor(found, dtype=torch.float64).reshape(x.shape)


def scored_layer(x: Tensor, *parameters: Tensor) -> Tensor:
    w_in, b_in, w_out, b_out, w_first, b_first, w_second, b_second, *norms = (
        p.double() for p in parameters
    )
    added, heads, found = torch.arange(9, dtype=x.dtype).reshape(3, 3).sin().double(), 2, []
    for sample in x.double():
        query, key, value = (sample @ w_in.T + b_in).chunk(3, 1)
        parts = zip(query.chunk(heads, 1), key.chunk(heads, 1), value.chunk(heads, 1), strict=True)
        attended = torch.cat(
            [(q @ k.T / math.sqrt(q.shape[1]) + added).softmax(1) @ v for q, k, v in parts], 1
        )
        inner = layer_norm(sample + attended @ w_out.T + b_out, *norms[:2])
        outer = inner + (inner @ w_first.T + b_first).clamp(min=0) @ w_second.T + b_second
        found.append(layer_norm(outer, *norms[2:]))
    return torch.stack(found)
