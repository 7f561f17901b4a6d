"""Small models of every kind of use that a parameter has, in double precision, each with a
batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _By(nn.Module):
    """A linear layer, a scale, and a forward pass that is given."""

    def __init__(self, f: Callable[[_By, Tensor], Tensor], width: int = 3) -> None:
        super().__init__()
        self.l = nn.Linear(width, width)
        self.s = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self, x)


class _First(nn.Module):
    """A module whose first result counts."""

    def __init__(self, module: nn.Module, *, repeats: int = 1) -> None:
        super().__init__()
        self.module = module
        self.repeats = repeats

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(*[x] * self.repeats)[0]
        return out


class _Words(nn.Module):
    def __init__(self, tied: bool, padding_idx: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=padding_idx)
        self.places = nn.Parameter(torch.randn(5, 4))
        self.head = None if tied else nn.Linear(4, 7, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.words(x) + self.places)
        return F.linear(h, self.words.weight) if self.head is None else self.head(h)


class _Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 4, mode="mean")
        self.l = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.l(self.bag(x))
        return out


def _vision() -> Tensor:
    return torch.randn(4, 2, 6, 6)


def _rows() -> Tensor:
    return torch.randn(5, 3)


def _sequences() -> Tensor:
    return torch.randn(4, 4, 8)  # as many samples as steps


def _tokens() -> Tensor:
    return torch.randint(0, 7, (6, 5))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)), _rows),
    "layers on sequences": (
        lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3)),
        _sequences,
    ),
    "CNN with group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 3, 3, stride=2),
        ),
        _vision,
    ),
    "convolution in groups, dilated": (
        lambda: nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1), groups=2),
        _vision,
    ),
    "convolution with string padding": (
        lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"),
        _vision,
    ),
    "convolution of rank 1": (lambda: nn.Conv1d(4, 3, 2), _sequences),
    "convolution of rank 3": (lambda: nn.Conv3d(1, 2, 2), lambda: torch.randn(3, 1, 3, 3, 3)),
    "one window": (lambda: nn.Conv2d(2, 3, 6), _vision),
    "transposed convolution, RMS norm": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3, stride=2), nn.RMSNorm(13)),
        _vision,
    ),
    "instance norm": (lambda: nn.InstanceNorm2d(2, affine=True), _vision),
    "embedding and places": (lambda: _Words(tied=False, padding_idx=0), _tokens),
    "tied embedding": (lambda: _Words(tied=True), _tokens),
    "embedding bag": (_Bags, _tokens),
    "attention": (
        lambda: _First(nn.MultiheadAttention(8, 2, batch_first=True), repeats=3),
        _sequences,
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        _sequences,
    ),
    "LSTM": (lambda: _First(nn.LSTM(8, 4, batch_first=True)), _sequences),
    "GRU of two layers both ways": (
        lambda: _First(nn.GRU(8, 3, 2, batch_first=True, bidirectional=True)),
        _sequences,
    ),
    "RNN": (lambda: _First(nn.RNN(8, 3, batch_first=True)), _sequences),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), _rows),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), _rows),
    "bilinear": (
        lambda: _By(
            lambda m, x: torch.einsum("bi,ij,bj->b", x, m.l.weight, x * m.s) + m.l.bias.sum()
        ),
        _rows,
    ),
    "scale": (lambda: _By(lambda m, x: m.l(x) * m.s), _rows),
    "weight by attribute": (lambda: _By(lambda m, x: x @ m.l.weight.mT + m.l.bias * m.s), _rows),
    "weight that is computed": (
        lambda: _By(lambda m, x: F.linear(x, m.l.weight * m.s + 1, m.l.bias.exp())),
        _rows,
    ),
    "written in place": (lambda: _By(lambda m, x: m.l(x).mul_(m.s).add_(m.s)), _rows),
    "class token": (
        lambda: _By(lambda m, x: torch.cat([m.s.expand(1, 1, 3), m.l(x.unsqueeze(1))], 1)),
        _rows,
    ),
    "used twice": (lambda: _By(lambda m, x: m.l(torch.tanh(m.l(x))) * m.s), _rows),
    "indexed": (lambda: _By(lambda m, x: x * m.l.weight[(x[:, 0] > 0).long()] + m.s[1]), _rows),
    "unused parameter": (lambda: _By(lambda m, x: x * m.s), _rows),
    "chosen by where": (lambda: _By(lambda m, x: torch.where(x > 0, m.l(x), m.s)), _rows),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The model of that name and its batch."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    x = batch()
    return make().double(), x.double() if x.is_floating_point() else x
