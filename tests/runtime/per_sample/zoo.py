"""Real models of plain torch, in double precision, each with a batch and a loss.

A sample of each batch is ``tuple(x[b : b + 1] for x in batch)``, or along ``dim``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

import runtime.checkpoint as ours

B, T, N, VOCABULARY, CLASSES = 4, 5, 8, 11, 3


class Member(NamedTuple):
    """``loss``: of a batch, the mean or sum of those of its samples. ``dim``: where the samples lie
    in each tensor of the batch."""

    module: nn.Module
    batch: tuple[Tensor, ...]
    loss: Callable[..., Tensor]
    dim: int = 0


ZOO: dict[str, Callable[[], Member]] = {}


def member(name: str) -> Callable[[Callable[[], Member]], Callable[[], Member]]:
    def decorate(make: Callable[[], Member]) -> Callable[[], Member]:
        def made() -> Member:
            torch.manual_seed(0)
            found = make()
            found.module.double()
            return found

        ZOO[name] = made
        return make

    return decorate


class Of(nn.Module):
    """A module with a forward pass that is given. ``f``: takes the module and the batch."""

    def __init__(self, f: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *batch: Any) -> Any:
        return self.f(self, *batch)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def words(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape)


def classes(*shape: int) -> Tensor:
    return torch.randint(0, CLASSES, shape)


def cross_entropy(module: nn.Module, *batch: Tensor) -> Tensor:
    return F.cross_entropy(module(*batch[:-1]), batch[-1])


def squares(module: nn.Module, *batch: Tensor) -> Tensor:
    out: Tensor = module(*batch)
    return out.pow(2).sum()


def tokens(module: nn.Module, *batch: Tensor) -> Tensor:
    """The mean over the tokens of the cross entropy, as language models have it."""
    return F.cross_entropy(
        module(*batch[:-1]).reshape(-1, VOCABULARY), batch[-1].reshape(-1), ignore_index=-100
    )


def head(width: int = N) -> nn.Linear:
    return nn.Linear(width, CLASSES)


@member("MLP")
def _mlp() -> Member:
    return Member(
        nn.Sequential(nn.Linear(N, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), head(6)),
        (rows(B, N), classes(B)),
        cross_entropy,
    )


class _Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.GroupNorm(2, out)
        self.c2, self.n2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(2, out)
        self.relu = nn.ReLU(inplace=True)
        self.down = (
            None
            if stride == 1
            else nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.GroupNorm(2, out))
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.n2(self.c2(self.relu(self.n1(self.c1(x)))))
        out += x if self.down is None else self.down(x)
        found: Tensor = self.relu(out)
        return found


@member("ResNet with group norm and in-place relu")
def _resnet() -> Member:
    stem = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    )
    tail = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(6))
    return Member(
        nn.Sequential(stem, _Block(4, 4, 1), _Block(4, 6, 2), tail),
        (rows(B, 3, 8, 8), classes(B)),
        cross_entropy,
    )


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(N), nn.LayerNorm(N)
        self.qkv, self.out = nn.Linear(N, 3 * N), nn.Linear(N, N)
        self.mlp = nn.Sequential(nn.Linear(N, 2 * N), nn.GELU(), nn.Linear(2 * N, N))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


Through = Callable[[nn.Module, Tensor], Tensor]


def _language_model(through: Through | None = None) -> Member:
    """``through``: what runs a block. The loop, which is the reference, sets it to None: then the
    block runs by itself."""

    def forward(m: Any, ids: Tensor) -> Tensor:
        x = m.words(ids) + m.places(torch.arange(ids.shape[1]))
        for block in m.blocks:
            x = block(x) if m.through is None else m.through(block, x)
        return F.linear(m.norm(x), m.words.weight)

    blocks = nn.ModuleList([_Attention(), _Attention()])
    parts = {
        "words": nn.Embedding(VOCABULARY, N),
        "places": nn.Embedding(T, N),
        "blocks": blocks,
        "norm": nn.LayerNorm(N),
    }
    targets = words(B, T)
    targets[0, 2:] = -100
    return Member(Of(forward, through=through, **parts), (words(B, T), targets), tokens)


member("language model with a tied embedding")(_language_model)
member("torch's checkpoints")(
    lambda: _language_model(lambda block, x: checkpoint(block, x, use_reentrant=False))
)
member("torch's reentrant checkpoints")(
    lambda: _language_model(lambda block, x: checkpoint(block, x, use_reentrant=True))
)
member("checkpoints")(
    lambda: _language_model(lambda block, x: ours.checkpoint(block, x, use_reentrant=False))
)
member("reentrant checkpoints")(
    lambda: _language_model(lambda block, x: ours.checkpoint(block, x, use_reentrant=True))
)


@member("vision transformer with a class token")
def _vit() -> Member:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1) + m.places
        return m.head(m.norm(m.block(x))[:, 0])  # type: ignore[no-any-return]

    token, places = (nn.Parameter(rows(1, n, N)) for n in (1, 5))
    parts = {
        "patches": nn.Conv2d(3, N, 4, 4),
        "token": token,
        "places": places,
        "block": _Attention(),
        "norm": nn.LayerNorm(N),
    }
    return Member(Of(forward, head=head(), **parts), (rows(B, 3, 8, 8), classes(B)), cross_entropy)


def _recurrent(
    make: Callable[..., nn.Module], directions: int = 1, **options: Any
) -> Callable[[], Member]:
    def made() -> Member:
        layer = make(N, 6, batch_first=True, **options)
        parts = {"words": nn.Embedding(VOCABULARY, N), "layer": layer, "head": head(6 * directions)}
        module = Of(lambda m, ids: m.head(m.layer(m.words(ids))[0][:, -1]), **parts)
        return Member(module, (words(B, T), classes(B)), cross_entropy)

    return made


member("LSTM")(_recurrent(nn.LSTM))
member("GRU")(_recurrent(nn.GRU))
member("RNN")(_recurrent(nn.RNN))
member("LSTM of two layers, both ways")(_recurrent(nn.LSTM, 2, num_layers=2, bidirectional=True))
member("GRU of two layers, both ways")(_recurrent(nn.GRU, 2, num_layers=2, bidirectional=True))


@member("LSTM with projections")
def _projected() -> Member:
    module = Of(
        lambda m, x: m.layer(x)[0].mean(1), layer=nn.LSTM(N, 6, proj_size=CLASSES, batch_first=True)
    )
    return Member(module, (rows(B, T, N), classes(B)), cross_entropy)


@member("packed LSTM classifier")
def _packed() -> Member:
    def forward(m: Any, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(
            m.words(ids), lengths, batch_first=True, enforce_sorted=False
        )
        return m.head(m.layer(packed)[1][0][-1])  # type: ignore[no-any-return]

    module = Of(
        forward,
        words=nn.Embedding(VOCABULARY, N),
        layer=nn.LSTM(N, 6, batch_first=True),
        head=head(6),
    )
    return Member(module, (words(B, T), torch.tensor([3, 5, 1, 4]), classes(B)), cross_entropy)


@member("packed GRU, padded again, batch in dimension 1")
def _packed_again() -> Member:
    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(x, lengths[0], enforce_sorted=False)
        return m.head(rnn.pad_packed_sequence(m.layer(packed)[0], total_length=T)[0].sum(0))  # type: ignore[no-any-return]

    return Member(
        Of(forward, layer=nn.GRU(N, 6), head=head(6)),
        (rows(T, B, N), torch.tensor([[3, 5, 1, 4]])),
        squares,
        1,
    )


@member("multi-head attention")
def _mha() -> Member:
    module = Of(
        lambda m, x: m.head(m.a(x, x, x)[0].mean(1)),
        a=nn.MultiheadAttention(N, 2, batch_first=True),
        head=head(),
    )
    return Member(module, (rows(B, T, N), classes(B)), cross_entropy)


@member("multi-head attention with a padding mask, batch in dimension 1")
def _mha_masked() -> Member:
    keep = torch.rand(T, B) > 0.4
    keep[0] = True

    def forward(m: Any, x: Tensor, keep: Tensor) -> Tensor:
        found: Tensor = m.a(x, x, x, key_padding_mask=~keep.t())[0] * keep.unsqueeze(-1)
        return found

    return Member(Of(forward, a=nn.MultiheadAttention(N, 2)), (rows(T, B, N), keep), squares, 1)


@member("transformer encoder layer")
def _encoder() -> Member:
    layer = nn.TransformerEncoderLayer(N, 2, 12, 0.0, batch_first=True)
    return Member(
        Of(lambda m, x: m.head(m.layer(x)[:, 0]), layer=layer, head=head()),
        (rows(B, T, N), classes(B)),
        cross_entropy,
    )


@member("transformer encoder, batch in dimension 1, as many steps as samples")
def _encoder_first() -> Member:
    layer = nn.TransformerEncoderLayer(N, 2, 12, 0.0, norm_first=True)
    return Member(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (rows(B, B, N),), squares, 1
    )


@member("transformer decoder layer")
def _decoder() -> Member:
    return Member(
        nn.TransformerDecoderLayer(N, 2, 12, 0.0, batch_first=True),
        (rows(B, 3, N), rows(B, T, N)),
        squares,
    )


@member("conv-transpose autoencoder")
def _autoencoder() -> Member:
    down = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU())
    up = nn.Sequential(
        nn.ConvTranspose2d(6, 4, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 4, 2, 1),
        nn.Sigmoid(),
    )
    return Member(nn.Sequential(down, up), (rows(B, 2, 8, 8),), lambda m, x: F.mse_loss(m(x), x))


@member("embedding bag")
def _bag() -> Member:
    return Member(
        nn.Sequential(nn.EmbeddingBag(VOCABULARY, N, mode="mean"), nn.ReLU(), head()),
        (words(B, T), classes(B)),
        cross_entropy,
    )


@member("RMS norm and scale")
def _rms() -> Member:
    module = Of(
        lambda m, x: m.l(m.norm(x)) * m.scale,
        norm=nn.RMSNorm(N),
        l=nn.Linear(N, N),
        scale=nn.Parameter(rows(N)),
    )
    return Member(module, (rows(B, T, N),), squares)


@member("siamese")
def _siamese() -> Member:
    def loss(m: nn.Module, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
        both = m(torch.cat([a, b]))
        first, second = both.chunk(2)
        return F.cosine_embedding_loss(first, second, same)

    same = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    return Member(
        nn.Sequential(nn.Linear(N, N), nn.Tanh(), nn.Linear(N, 4)),
        (rows(B, N), rows(B, N), same),
        loss,
    )


@member("frozen body")
def _frozen() -> Member:
    body = nn.Sequential(nn.Linear(N, N), nn.BatchNorm1d(N).eval(), nn.ReLU()).requires_grad_(False)
    return Member(nn.Sequential(body, head()), (rows(B, N), classes(B)), cross_entropy)


@member("batch of one")
def _one() -> Member:
    return Member(
        nn.Sequential(nn.Linear(N, N), nn.LayerNorm(N), head()),
        (rows(1, N), classes(1)),
        cross_entropy,
    )


@member("mixture of experts")
def _experts() -> Member:
    def forward(m: Any, x: Tensor) -> Tensor:
        flat = x.reshape(-1, N)
        gates, chosen = m.gate(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(m.experts):
            row, slot = torch.where(chosen == number)
            out.index_add_(0, row, expert(flat[row]) * gates[row, slot, None])
        return out.view_as(x)

    experts = nn.ModuleList(
        nn.Sequential(nn.Linear(N, 6), nn.GELU(), nn.Linear(6, N)) for _ in range(3)
    )
    return Member(Of(forward, gate=nn.Linear(N, 3), experts=experts), (rows(B, T, N),), squares)


@member("weight norm and spectral norm")
def _normed() -> Member:
    plain, spectral = (
        parametrizations.weight_norm(nn.Linear(N, 6)),
        parametrizations.spectral_norm(nn.Linear(6, N)).eval(),
    )
    return Member(nn.Sequential(plain, nn.Tanh(), spectral), (rows(B, N),), squares)


@member("low-rank adaptation of a frozen layer")
def _lora() -> Member:
    base = nn.Linear(N, N).requires_grad_(False)
    down, up = nn.Linear(N, 2, bias=False), nn.Linear(2, CLASSES, bias=False)
    module = Of(
        lambda m, x: m.base(x)[:, :CLASSES] + 0.5 * m.up(m.down(x)), base=base, down=down, up=up
    )
    return Member(module, (rows(B, N), classes(B)), cross_entropy)


@member("LSTM, batch in dimension 1, as many steps as samples")
def _square() -> Member:
    return Member(Of(lambda m, x: m.layer(x)[0], layer=nn.LSTM(N, 6)), (rows(B, B, N),), squares, 1)


@member("causal convolutions, dilated, with a skip")
def _wavenet() -> Member:
    def forward(m: Any, x: Tensor) -> Tensor:
        for conv, gate in zip(m.convs, m.gates, strict=True):
            padded = F.pad(x, (2 * conv.dilation[0], 0))
            x = x + conv(padded).tanh() * gate(padded).sigmoid()
        return m.head(x.mean(-1))  # type: ignore[no-any-return]

    convs, gates = (nn.ModuleList(nn.Conv1d(4, 4, 3, dilation=d) for d in (1, 2)) for _ in range(2))
    return Member(
        Of(forward, convs=convs, gates=gates, head=head(4)),
        (rows(B, 4, 7), classes(B)),
        cross_entropy,
    )


@member("U-net with instance norm")
def _unet() -> Member:
    def forward(m: Any, x: Tensor) -> Tensor:
        low = F.leaky_relu(m.norm(m.down(x)), inplace=True)
        up = F.interpolate(m.mid(low), scale_factor=2, mode="bilinear")
        return m.last(torch.cat([x, up], 1))  # type: ignore[no-any-return]

    parts = {
        "down": nn.Conv2d(2, 4, 3, 2, 1),
        "norm": nn.InstanceNorm2d(4, affine=True),
        "mid": nn.Conv2d(4, 4, 3, 1, 1, groups=2),
    }
    return Member(Of(forward, last=nn.Conv2d(6, 1, 1), **parts), (rows(B, 2, 8, 8),), squares)
