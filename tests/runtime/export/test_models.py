"""Models of real life, exported, saved and run by torch in a process that never imports this
package, give what they give in eager."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from runtime.aot import export

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)


class Residual(nn.Module):
    """A stage of a ResNet: batch norms, writes in place, a projection, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 7, 2, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.conv, self.norm = nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.down = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.norm(self.conv(x))
        y += self.down(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(F.relu_(y), 1), 1))


class Transformer(nn.Module):
    """A block of GPT-2: tied embeddings, a causal mask in a buffer, dropout, an optional loss."""

    mask: torch.Tensor

    def __init__(self, vocabulary: int = 20, length: int = 12, d: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.qkv, self.out, self.up, self.down = (
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
        )
        self.head, self.drop = nn.Linear(d, vocabulary, bias=False), nn.Dropout(0.2)
        self.head.weight = self.tokens.weight
        self.register_buffer(
            "mask",
            torch.tril(torch.ones(length, length)).view(1, 1, length, length),
            persistent=False,
        )

    def forward(self, ids: Any, targets: Any = None, *, fused: bool = False) -> Any:
        b, t = ids.shape
        x = self.drop(self.tokens(ids) + self.positions(torch.arange(t)))
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2)
            for y in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        if fused:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))).masked_fill(
                self.mask[:, :, :t, :t] == 0, -math.inf
            )
            a = self.drop(scores.softmax(-1)) @ v
        x = x + self.out(a.transpose(1, 2).reshape(b, t, -1))
        x = x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        logits = self.head(self.norms[2](x))
        loss = (
            None
            if targets is None
            else F.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
        )
        return {"logits": logits, "loss": loss}


class Recurrent(nn.Module):
    def __init__(self, net: Callable[..., nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(20, 6), nn.Linear(8, 3)
        self.net = net(6, 4, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout)

    def forward(self, ids: Any, state: Any = None) -> Any:
        y, state = self.net(self.tokens(ids), state)
        return self.out(y), state


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        return self.attention(q, k, v, **options)


class Shared(nn.Module):
    """One layer under three names, one buffer under two, of which one is written to."""

    x: torch.Tensor
    y: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b, self.c = self.a, nn.Sequential(self.a, nn.ReLU(), self.a)
        self.register_buffer("x", torch.ones(3))
        self.register_buffer("y", self.x)

    def forward(self, t: Any) -> Any:
        self.y.add_(1)
        return self.c(self.b(t)) + self.x


class Nested(nn.Module):
    """Arguments and results of any structure, with None, numbers, and tensors of no module."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(3) * 2)}
        )
        self.constant, self.listed = torch.tensor([1.0, 2.0, 3.0]), [torch.ones(3)]

    def forward(
        self, d: Any, *rest: Any, scale: float = 2.0, extra: Any = None, **named: Any
    ) -> Any:
        y = (
            d["x"][0] * self.weights["a"]
            + d["x"][1][0] * self.weights["b"]
            + self.constant
            + self.listed[0]
        )
        for r in (*rest, *(named[key] for key in sorted(named))):
            y = y * r
        return y * scale, [None, {"y": y, "extra": extra}], (3, 2.5, True)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(20, 3, mode="mean"), nn.PReLU()

    def forward(self, ids: Any, offsets: Any) -> Any:
        return self.out(self.bag(ids, offsets))


def ids(*sizes: int) -> torch.Tensor:
    return torch.randint(0, 20, sizes)


def models() -> dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    torch.manual_seed(0)
    x, padding, causal = (
        torch.randn(2, 5, 8),
        torch.arange(5).expand(2, 5) > torch.tensor([[4], [2]]),
        torch.ones(5, 5).triu(1).bool(),
    )
    named = {"scale": 3.0, "extra": None, "u": torch.randn(3), "v": torch.randn(3)}
    return {
        "residual": (Residual(), (torch.randn(2, 3, 16, 16),), {}),
        "residual in eval": (Residual().eval(), (torch.randn(2, 3, 16, 16),), {}),
        "transformer": (Transformer(), (ids(2, 6), ids(2, 6)), {}),
        "transformer without a loss": (
            Transformer().eval(),
            (ids(2, 6),),
            {"targets": None, "fused": True},
        ),
        "LSTM with dropout": (Recurrent(nn.LSTM, 0.3), (ids(2, 5),), {}),
        "LSTM with a state": (
            Recurrent(nn.LSTM),
            (ids(2, 5), (torch.randn(4, 2, 4), torch.randn(4, 2, 4))),
            {},
        ),
        "GRU with dropout": (Recurrent(nn.GRU, 0.3), (ids(2, 3),), {}),
        "attention with padding": (
            Attention(dropout=0.1),
            (x, x, x),
            {"key_padding_mask": padding},
        ),
        "attention with a mask": (
            Attention().eval(),
            (x, x, x),
            {"attn_mask": causal, "need_weights": False},
        ),
        "attention across": (
            Attention(add_bias_kv=True, add_zero_attn=True, kdim=4, vdim=6),
            (x, *torch.randn(2, 3, 10).split([4, 6], 2)),
            {},
        ),
        "encoder": (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
            (x,),
            {"src_key_padding_mask": padding},
        ),
        "shared": (Shared(), (torch.randn(2, 3),), {}),
        "nested": (
            Nested(),
            ({"x": (torch.randn(3), [torch.randn(3)])}, torch.randn(3), torch.randn(3)),
            named,
        ),
        "bag": (Bag(), (ids(6), torch.tensor([0, 2, 4])), {}),
        "spectral norm": (
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
            (torch.randn(2, 4),),
            {},
        ),
        "weight norm": (
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            (torch.randn(2, 4),),
            {},
        ),
    }


def of_other_sizes() -> dict[str, tuple[Any, ...]]:
    """Arguments of other sizes than those of ``models()``, for programs of any size."""
    states = torch.randn(4, 3, 4), torch.randn(4, 3, 4)
    return {
        "residual in eval": (torch.randn(4, 3, 24, 20),),
        "transformer": (ids(3, 4), ids(3, 4)),
        "LSTM with a state": (ids(3, 4), states),
        "shared": (torch.randn(5, 3),),
        "nested": ({"x": (torch.randn(3), [torch.randn(3)])}, torch.randn(3), torch.randn(3)),
    }


_RUN = """
import sys, torch
sys.modules["runtime"] = None
for name in sys.argv[2:]:
    args, kwargs, expected, state = torch.load(f"{sys.argv[1]}/{name}.io", weights_only=False)
    module = torch.export.load(f"{sys.argv[1]}/{name}.pt2").module()
    torch.manual_seed(1)
    for results in expected:
        torch.testing.assert_close(module(*args, **kwargs), results, msg=lambda m: f"{name}: {m}")
    found = module.state_dict()
    assert found.keys() == state.keys(), (name, found.keys() ^ state.keys())
    torch.testing.assert_close(dict(found), dict(state), msg=lambda m: f"state of {name}: {m}")
"""


def test_a_model_is_itself_in_a_process_that_cannot_import_this_package(tmp_path: Path) -> None:
    """Two calls each: the second one meets what the first one wrote to buffers. One process for
    all, as it takes seconds to start."""
    saved = []
    for dynamic in (False, True):
        others = of_other_sizes() if dynamic else {}
        for name, (module, args, kwargs) in models().items():
            state = {key: t.clone() for key, t in module.state_dict().items()}
            before = torch.get_rng_state()
            program = export(module, args, kwargs, dynamic=dynamic)
            assert torch.get_rng_state().equal(before)
            torch.testing.assert_close(dict(module.state_dict()), state)
            saved.append(f"{name} of {'any size' if dynamic else 'these sizes'}")
            torch.export.save(program, tmp_path / f"{saved[-1]}.pt2")
            args = others.pop(name, args)
            torch.manual_seed(1)
            results = [
                pytree.tree_map_only(
                    torch.Tensor, torch.Tensor.detach, module(*copy.deepcopy(args), **kwargs)
                )
                for _ in range(2)
            ]
            torch.save(
                (args, kwargs, results, dict(module.state_dict())), tmp_path / f"{saved[-1]}.io"
            )
        assert not others
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path), *saved],
        check=True,
        env=environment,
        cwd=tmp_path,
    )


@pytest.mark.parametrize("net", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_net_of_any_length_has_its_dropout_between_layers(net: Any) -> None:
    """Torch's decomposition of a recurrent net for symbolic sizes leaves it out. With p = 1 the
    second layer gets zeros."""
    module = net(3, 4, num_layers=2, dropout=1.0)

    x = torch.randn(3, 2, 3)
    (expected, _), (found, _) = module(x), export(module, (x,), dynamic=True).module()(x)
    torch.testing.assert_close(found, expected)
