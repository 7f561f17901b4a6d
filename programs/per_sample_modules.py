"""Per-sample gradients of modules. The reference is a loop over the samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn

from programs.sample_gradients import Of, answers, answers_of, by_loop_of, filled, mean_of, rows_of
from programs.tools import Results, beside, own

F = nn.functional


# --- modules --------------------------------------------------------------------------------------


def tied_layers(x: Tensor) -> Results:
    """A weight that two layers share, and one that is used transposed, beside a bias of its own."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return answers_of(
        x,
        Of(lambda m, a: m.b(m.a(a).tanh()) @ m.a.weight.sin(), a=first, b=second),
        (rows_of(x, 3),),
    )


def layers_of_sequences(x: Tensor) -> Results:
    """Layers on sequences, on rows of rows and on one more dimension, where a mean is taken
    over the samples."""
    return answers_of(
        x,
        Of(lambda m, a: m.b(m.a(a).relu().flatten(1)), a=nn.Linear(2, 3), b=nn.Linear(12, 2)),
        (rows_of(x, 2, 2, 2),),
        mean_of,
    )


def convolutions(x: Tensor) -> Results:
    """Groups, strides, dilations and modes of padding, in one, two and three dimensions."""
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1, groups=2, padding_mode="circular"),
        nn.Tanh(),
        nn.Conv1d(4, 2, 2, stride=2, dilation=2, padding="valid", bias=False),
        nn.Unflatten(1, (1, 2)),
        nn.Conv2d(1, 2, (2, 1), padding=(1, 0), padding_mode="zeros"),
        nn.Unflatten(1, (2, 1)),
        nn.Conv3d(2, 1, (1, 2, 1), padding="same"),
    )
    return answers_of(x, model, (rows_of(x, 2, 6),))


def transposed_convolutions(x: Tensor) -> Results:
    model = nn.Sequential(
        nn.ConvTranspose1d(2, 4, 2, stride=2, groups=2),
        nn.Unflatten(1, (2, 2)),
        nn.ConvTranspose2d(2, 1, 2, padding=1),
    )
    return answers_of(x, model, (rows_of(x, 2, 3),), mean_of)


def normalizations(x: Tensor) -> Results:
    """Those that a sample has alone, with and without weights, and batch norm with
    fixed statistics."""
    fixed = nn.BatchNorm1d(4).eval()
    fixed.running_mean, fixed.running_var = torch.linspace(0, 1, 4), torch.linspace(1, 2, 4)
    model = nn.Sequential(
        nn.GroupNorm(2, 4),
        nn.InstanceNorm1d(4, affine=True),
        fixed,
        nn.LayerNorm((4, 3)),
        nn.RMSNorm(3),
        nn.LayerNorm(3, elementwise_affine=False),
        nn.GroupNorm(1, 4, affine=False),
        nn.PReLU(4),
    )
    return answers_of(
        x,
        model,
        (rows_of(x, 4, 3),),
        lambda m, a: (m(a) * torch.linspace(0, 1, 12, dtype=a.dtype).reshape(4, 3)).sin().sum(),
    )


def recurrent_layers(x: Tensor) -> Results:
    """Both directions, several layers, projections and initial states that are learned, with
    the batch in front."""
    f = lambda m, a: (  # noqa: E731
        m.a(a)[0].sum((1, 2))
        + m.b(a)[1][0].sin().sum((0, 2))
        + m.c(a, m.h.sin())[0].tanh().flatten(1).sum(1)
    )
    parts = {
        "a": nn.GRU(2, 2, num_layers=2, bidirectional=True, batch_first=True),
        "b": nn.LSTM(2, 3, proj_size=2, batch_first=True),
        "c": nn.RNN(2, 2, nonlinearity="relu", bias=False, batch_first=True),
    }
    module = Of(lambda m, a: f(m, a), h=nn.Parameter(torch.zeros(1, 1, 2)), **parts)  # type: ignore[no-untyped-call]
    module.f = lambda m, a: (
        m.a(a)[0].sum((1, 2))
        + m.b(a)[1][0].sin().sum((0, 2))
        + m.c(a, m.h.sin().expand(1, len(a), 2).contiguous())[0].tanh().flatten(1).sum(1)
    )
    return answers_of(x, module, (rows_of(x, 3, 2),), lambda m, a: m(a).square().sum())


def recurrent_cells(x: Tensor) -> Results:
    """Cells that are called for each time, and a layer with time in front of the batch."""

    def steps(m: Any, a: Tensor) -> Tensor:
        h = c = a.new_zeros(a.shape[1], 2)
        for row in a:
            h, c = m.cell(row, (h, c))
            h = m.other(row, h)
        return m.layer(a)[0].sum(0) + h  # type: ignore[no-any-return]

    module = Of(
        steps, cell=nn.LSTMCell(2, 2), other=nn.GRUCell(2, 2, bias=False), layer=nn.LSTM(2, 2)
    )
    return answers_of(x, module, (rows_of(x, 3, 2).transpose(0, 1).contiguous(),), dim=1)


def packed_sequences(x: Tensor) -> Results:
    """Sequences of different lengths, packed: one sample each."""
    lengths, y = [3, 2, 1], rows_of(x, 3, 2)
    module = Of(lambda m, packed: m.a(packed), a=nn.GRU(2, 2, batch_first=True)).double()
    filled(module)
    params = list(module.parameters())

    def loss(packed: Any) -> Tensor:
        out, last = module(packed)
        return rnn.pad_packed_sequence(out, batch_first=True)[0].sin().sum() + last.square().sum()  # type: ignore[no-any-return]

    context = own("per_sample.per_sample")
    if context is None:
        one = lambda i: rnn.pack_padded_sequence(y[i : i + 1], [lengths[i]], batch_first=True)  # noqa: E731
        return beside(x, *answers(by_loop_of(lambda i: loss(one(i)), 3, params), params))  # type: ignore[no-untyped-call]
    with context(params, reduction="sum") as grads:
        grads.expect(3)
        loss(rnn.pack_padded_sequence(y, lengths, batch_first=True)).backward()
    return beside(x, *answers(grads, params))


def attention_layers(x: Tensor) -> Results:
    """Attention with a mask that all samples share, and a layer of an encoder."""
    mask = torch.triu(torch.full((2, 2), -torch.inf, dtype=torch.float64), 1)

    def f(m: Any, a: Tensor) -> Tensor:
        b = m.encoder(a)
        return m.attention(b, a, a, attn_mask=mask, need_weights=False)[  # type: ignore[no-any-return]
            0
        ] + F.scaled_dot_product_attention(a, b, b)

    parts = {
        "encoder": nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True),
        "attention": nn.MultiheadAttention(4, 2, batch_first=True, bias=False),
    }
    return answers_of(x, Of(f, **parts), (rows_of(x, 2, 4),), mean_of)


def embeddings(x: Tensor) -> Results:
    """Tables by rows, bags that are sums and means, a padding word, and weights of the words."""
    words = torch.tensor([[0, 1, 1], [2, 0, 3], [3, 3, 3]])

    def f(m: Any, a: Tensor, k: Tensor) -> Tensor:
        bags = m.sums(a, per_sample_weights=k) + m.means(a)
        return (  # type: ignore[no-any-return]
            m.table(a).mean(1) + bags + m.table.weight[a[:, 0]] @ m.table.weight.t() @ m.sums.weight
        )

    parts = {
        "table": nn.Embedding(4, 2, padding_idx=3),
        "sums": nn.EmbeddingBag(4, 2, mode="sum"),
        "means": nn.EmbeddingBag(4, 2, mode="mean", padding_idx=1),
    }
    return answers_of(x, Of(f, **parts), (words, rows_of(x, 3)))


def computed_weights(x: Tensor) -> Results:
    """Weights that are computed of parameters: by norm and direction, orthogonal ones, and
    by a sum of two."""
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    f = lambda m, a: F.linear(m.a(a), (m.b + m.c.exp()).t() @ m.b.relu(), m.c.mean(1))  # noqa: E731
    return answers_of(
        x,
        Of(f, a=layer, b=nn.Parameter(torch.zeros(2, 2)), c=nn.Parameter(torch.zeros(2, 2))),
        (rows_of(x, 3),),
    )


def general_ops(x: Tensor) -> Results:
    """Ops of parameters without factors: bilinear forms, einsum, scans, distances,
    gather and solves."""

    def f(m: Any, a: Tensor) -> Tensor:
        first = torch.cdist(a.unsqueeze(1), m.w.unsqueeze(0)).squeeze(1).cumsum(1)
        second = torch.einsum("bi,ij,bj->b", a, m.w, a).unsqueeze(1) + F.bilinear(
            a, a.sin(), m.t, m.w[0, :2]
        ).sum(1, keepdim=True)
        picked = (
            m.w.unsqueeze(0).expand(len(a), 3, 3).gather(2, a.argsort(1).unsqueeze(2)).squeeze(2)
        )
        return (  # type: ignore[no-any-return]
            first * second
            + picked
            + torch.linalg.solve(
                m.w @ m.w.t() + torch.eye(3, dtype=a.dtype), a.unsqueeze(2)
            ).squeeze(2)
        )

    return answers_of(
        x,
        Of(f, w=nn.Parameter(torch.zeros(3, 3)), t=nn.Parameter(torch.zeros(2, 3, 3))),
        (rows_of(x, 3),),
    )


def complex_layers(x: Tensor) -> Results:
    """Parameters that are complex, and real ones of complex inputs."""
    y = torch.complex(rows_of(x, 3), rows_of(x, 6)[:, 3:])
    f = lambda m, a: torch.view_as_real(F.linear(a, torch.view_as_complex(m.w)) * m.s)  # noqa: E731
    module = Of(f, w=nn.Parameter(torch.zeros(2, 3, 2)), s=nn.Parameter(torch.zeros(2)))
    return answers_of(x, module, (y,))
