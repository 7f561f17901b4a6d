"""Layers as functions of a batch and their parameters: the ways in which weights are used that no
single function of torch has."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def time_first_lstm(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """One LSTM layer of x (B, T, n), which runs with the time in front: all its states (B, T, h),
    and the last cells (B, h)."""
    zeros = x.new_zeros(1, x.shape[0], w_hh.shape[1])
    out, _, cells = torch.lstm(
        x.transpose(0, 1),
        (zeros, zeros),
        [w_ih, w_hh, b_ih, b_hh],
        True,
        1,
        0.0,
        False,
        False,
        False,
    )
    return out.transpose(0, 1), cells[0]


def projected_lstm(x: Tensor, w_ih: Tensor, w_hh: Tensor, w_hr: Tensor) -> Tensor:
    """An LSTM layer without biases whose states (B, T, p) are projections of those of h numbers."""
    state, cells = (
        x.new_zeros(1, x.shape[0], w_hr.shape[0]),
        x.new_zeros(1, x.shape[0], w_hr.shape[1]),
    )
    return torch.lstm(x, (state, cells), [w_ih, w_hh, w_hr], False, 1, 0.0, False, False, True)[0]


def two_way_gru(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, w_ih_back: Tensor, w_hh_back: Tensor
) -> Tensor:
    """Both directions of a GRU layer without biases."""
    zeros = x.new_zeros(2, x.shape[0], w_hh.shape[1])
    return torch.gru(
        x, zeros, [w_ih, w_hh, w_ih_back, w_hh_back], False, 1, 0.0, False, True, True
    )[0]


def learned_start(x: Tensor, start: Tensor, w_ih: Tensor, w_hh: Tensor) -> Tensor:
    """A plain recurrent layer with rectifiers, whose first state (h,) is learned."""
    return torch.rnn_relu(
        x,
        start.expand(1, x.shape[0], -1).contiguous(),
        [w_ih, w_hh],
        False,
        1,
        0.0,
        False,
        False,
        True,
    )[0]


def cell_by_cell(x: Tensor, w_ih: Tensor, w_hh: Tensor) -> Tensor:
    """The last state of a GRU cell that is called once for each time."""
    state = x.new_zeros(x.shape[0], w_hh.shape[1])
    for t in range(x.shape[1]):
        state = torch.gru_cell(x[:, t], state, w_ih, w_hh)
    return state


def tied_embedding(words: Tensor, table: Tensor) -> Tensor:
    """The scores of all words after the mean of some, by one table for both: (B, words)."""
    return F.embedding(words, table).mean(1) @ table.t()


def bag_of_words(words: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Means and sums of rows of a table."""
    return F.embedding_bag(words, table, mode="mean"), F.embedding_bag(
        words, table, mode="sum", padding_idx=1
    )


def transposed_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """With a stride, groups and an output padding."""
    return F.conv_transpose1d(x, weight, bias, stride=2, padding=1, output_padding=1, groups=2)


def normalized_weight(x: Tensor, length: Tensor, direction: Tensor) -> Tensor:
    """Weight normalization (Salimans and Kingma 2016)."""
    return F.linear(x, length * direction / direction.norm(dim=1, keepdim=True))


def low_rank(x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """A layer and its low-rank adaptation (Hu et al. 2021)."""
    return F.linear(x, weight) + 0.5 * F.linear(F.linear(x, down), up)


def siamese(x: Tensor, weight: Tensor) -> Tensor:
    """The distance of two halves of each sample under one layer."""
    left, right = x.chunk(2, dim=1)
    return (F.linear(left, weight).tanh() - F.linear(right, weight).tanh()).square().sum(1)


def grouped_queries(x: Tensor, w_q: Tensor, w_kv: Tensor, w_out: Tensor) -> Tensor:
    """Causal attention with two heads of queries and one of keys and values. x: (B, T, n)."""
    q = F.linear(x, w_q).unflatten(-1, (2, -1)).transpose(1, 2)
    k, v = (part.unsqueeze(1).expand_as(q) for part in F.linear(x, w_kv).chunk(2, dim=-1))
    return F.linear(
        F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2), w_out
    )


def experts(x: Tensor, gate: Tensor, weights: Tensor) -> Tensor:
    """A mixture of layers (E, m, n), weighted by a softmax over them."""
    return torch.einsum("be,bn,emn->bm", F.linear(x, gate).softmax(-1), x, weights)


def class_token(x: Tensor, token: Tensor, places: Tensor, weight: Tensor) -> Tensor:
    """A learned token before each sequence, and learned places added to it all."""
    tokens = torch.cat([token.expand(x.shape[0], 1, -1), x], dim=1) + places
    return F.linear(F.layer_norm(tokens, tokens.shape[-1:]), weight)[:, 0]
