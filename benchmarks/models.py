"""Models of published kinds as modules of torch, with inputs. Sizes are those of the tiny
configurations that libraries test with."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Model:
    """`make()` gives a module with seeded parameters; `x` is its input. A step differentiates the
    mean square of its result."""

    name: str
    make: Callable[[], nn.Module]
    x: Tensor


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        if self.causal:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        result: Tensor = self.out(attended)
        return result


class Block(nn.Module):
    """`first`: whether layer norm comes before attention and MLP (GPT-2) or after (BERT)."""

    def __init__(self, width: int, heads: int, *, causal: bool, first: bool) -> None:
        super().__init__()
        self.first = first
        self.attention = SelfAttention(width, heads, causal)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """Token and position embeddings, blocks, and logits by the token embedding: weights are tied,
    as in both papers."""

    def __init__(
        self, vocabulary: int, length: int, width: int, heads: int, depth: int, *, gpt: bool
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            [Block(width, heads, causal=gpt, first=gpt) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Residual(nn.Module):
    """Two convolutions of 3×3 with batch norm, and the shortcut of He et al. (2015)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = (
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(hidden + self.shortcut(x))


def resnet18() -> nn.Module:
    channels = (64, 64, 128, 256, 512)
    blocks = []
    for i, (before, after) in enumerate(itertools.pairwise(channels)):
        blocks += [Residual(before, after, 1 if i == 0 else 2), Residual(after, after, 1)]
    stem = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)
    )


def small_cnn() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(x)[0][:, -1])
        return result


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return make()

    return made


def models() -> list[Model]:
    torch.manual_seed(1)
    ids = torch.randint(0, 1000, (2, 32))
    kinds: list[tuple[str, Callable[[], nn.Module], Tensor]] = [
        (
            "MLP",
            lambda: nn.Sequential(
                nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
            ),
            torch.randn(32, 64),
        ),
        ("CNN", small_cnn, torch.randn(8, 3, 32, 32)),
        (
            "transformer block",
            lambda: Block(128, 4, causal=False, first=True),
            torch.randn(4, 64, 128),
        ),
        ("GPT-2 tiny", lambda: LanguageModel(1000, 64, 32, 4, 5, gpt=True), ids),
        ("BERT tiny", lambda: LanguageModel(1000, 64, 128, 2, 2, gpt=False), ids),
        ("ResNet-18", resnet18, torch.randn(1, 3, 64, 64)),
        ("LSTM", LSTM, torch.randn(8, 16, 32)),
    ]
    return [Model(name, _seeded(make), x) for name, make, x in kinds]
