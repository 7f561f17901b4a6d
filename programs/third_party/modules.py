"""Modules of torch.nn as functions of an input and their parameters, and samples of these."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Made = Callable[[], nn.Module]
_SHAPES = dict[str, tuple[Made, tuple[int, ...]]]
MODULES: _SHAPES = {
    "linear": (lambda: nn.Linear(3, 2), (4, 3)),
    "conv": (lambda: nn.Conv2d(2, 3, 2, padding=1, groups=1), (2, 2, 3, 3)),
    "batch_norm": (lambda: nn.BatchNorm1d(3, track_running_stats=False), (4, 3)),
    "batch_norm_of_running": (lambda: nn.BatchNorm1d(3).eval(), (4, 3)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "layer_norm": (lambda: nn.LayerNorm(3), (2, 4, 3)),
    "rms_norm": (lambda: nn.RMSNorm(3, eps=1e-6), (2, 4, 3)),
    "prelu": (lambda: nn.PReLU(3), (4, 3)),
    "rnn": (lambda: nn.RNN(3, 2, batch_first=True), (2, 4, 3)),
    "lstm": (lambda: nn.LSTM(3, 2, num_layers=2, batch_first=True), (2, 4, 3)),
    "gru": (lambda: nn.GRU(3, 2, bidirectional=True, batch_first=True), (2, 4, 3)),
    "lstm_cell": (lambda: nn.LSTMCell(3, 2), (4, 3)),
    "gru_cell": (lambda: nn.GRUCell(3, 2), (4, 3)),
    "attention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (2, 3, 4)),
    "encoder_layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True),
        (2, 3, 4),
    ),
    "scored_layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True).eval(),
        (2, 3, 4),
    ),
    "decoder_layer": (
        lambda: nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        (2, 3, 4),
    ),
    "mixed": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 2, 2), nn.GELU(), nn.AvgPool1d(2), nn.Flatten(), nn.LazyLinear(2)
        ),
        (3, 2, 5),
    ),
}
_TWICE = ("decoder_layer",)  # called with the input as both arguments
_THRICE = ("attention",)


@cache
def _skeleton(name: str, dtype: torch.dtype) -> nn.Module:
    """The module. Its samples make it, so that a call of it draws no numbers."""
    make, shape = MODULES[name]
    module = make()
    if any(isinstance(part, nn.LazyLinear) for part in module.modules()):
        module(torch.zeros(shape))
    return module.to(dtype)


def _of(name: str) -> Callable[..., Any]:
    def call(x: Tensor, *parameters: Tensor) -> Any:
        module = _skeleton(name, x.dtype)
        names = [key for key, _ in module.named_parameters()]
        times = 3 if name in _THRICE else 2 if name in _TWICE else 1
        return functional_call(module, dict(zip(names, parameters, strict=True)), (x,) * times)

    return call


def _samples(name: str) -> Callable[..., Iterator[Any]]:
    def samples(dtype: torch.dtype, device: str) -> Iterator[Any]:
        module, (_, shape) = _skeleton(name, dtype), MODULES[name]
        yield {"args": [torch.randn(shape, dtype=dtype, requires_grad=True), *module.parameters()]}

    return samples


linear, conv, batch_norm, batch_norm_of_running = map(
    _of, ("linear", "conv", "batch_norm", "batch_norm_of_running")
)
group_norm, layer_norm, rms_norm, prelu = map(
    _of, ("group_norm", "layer_norm", "rms_norm", "prelu")
)
rnn, lstm, gru, lstm_cell, gru_cell = map(_of, ("rnn", "lstm", "gru", "lstm_cell", "gru_cell"))
attention, encoder_layer, decoder_layer, mixed = map(
    _of, ("attention", "encoder_layer", "decoder_layer", "mixed")
)


def masked_attention(x: Tensor, hidden: Tensor, *parameters: Tensor) -> Tensor:
    """The result of ``nn.MultiheadAttention`` without those keys where `hidden` is true. Where that
    hides all, attention is to nothing."""
    module = _skeleton("attention", x.dtype)
    names = [key for key, _ in module.named_parameters()]
    result: Tensor = functional_call(
        module, dict(zip(names, parameters, strict=True)), (x, x, x), {"key_padding_mask": hidden}
    )[0]
    return result


def scored_layer(x: Tensor, *parameters: Tensor) -> Tensor:
    """The result of ``nn.TransformerEncoderLayer`` in eval mode, with numbers that are added to the
    scores of attention."""
    module = _skeleton("scored_layer", x.dtype)
    names = [key for key, _ in module.named_parameters()]
    scores = torch.arange(9, dtype=x.dtype, device=x.device).reshape(3, 3).sin()
    result: Tensor = functional_call(
        module, dict(zip(names, parameters, strict=True)), (x,), {"src_mask": scores}
    )
    return result


def samples_of_masked_attention(dtype: torch.dtype, device: str) -> Iterator[Any]:
    """A mask that hides some keys, and one that hides all keys of one sample."""
    module = _skeleton("attention", dtype)
    for hidden in ([[False, True], [False, False]], [[True, True], [False, True]]):
        yield {
            "args": [
                torch.randn(2, 2, 4, dtype=dtype, requires_grad=True),
                torch.tensor(hidden),
                *module.parameters(),
            ]
        }


def __getattr__(name: str) -> Any:
    if name.startswith("samples_of_") and name.removeprefix("samples_of_") in MODULES:
        return _samples(name.removeprefix("samples_of_"))
    raise AttributeError(name)
