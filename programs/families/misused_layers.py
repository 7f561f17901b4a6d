"""Layers of torch.nn with states, masks, offsets and indices as arguments, to be called with wrong
ones.

    lstm(x, h, c)       # nn.LSTM(3, 4)(x, (h, c))

A layer is made once in a process, in single precision and in eval mode, with drawn parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn

_SEED = 42


class Layer:
    """A layer that is called with tensors alone. `arrange` makes its arguments of them."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        arrange: Callable[..., tuple[Any, ...]] = lambda *tensors: tensors,
    ) -> None:
        self._make = make
        self._arrange = arrange

    @cached_property
    def module(self) -> nn.Module:
        """Return the layer. Its parameters are drawn from a seed of their own."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(_SEED)
            return self._make().eval()

    def __call__(self, *tensors: Any) -> Any:
        """Return what the layer gives."""
        return self.module(*self._arrange(*tensors))


def _with_pair(x: Any, h: Any, c: Any) -> tuple[Any, ...]:
    """Return a state of two tensors as the second argument."""
    return x, (h, c)


lstm = Layer(lambda: nn.LSTM(3, 4), _with_pair)
projected_lstm = Layer(lambda: nn.LSTM(3, 4, proj_size=2), _with_pair)
gru = Layer(lambda: nn.GRU(3, 4))
rnn = Layer(lambda: nn.RNN(3, 4))
lstm_cell = Layer(lambda: nn.LSTMCell(3, 4), _with_pair)
gru_cell = Layer(lambda: nn.GRUCell(3, 4))
rnn_cell = Layer(lambda: nn.RNNCell(3, 4))
bilinear = Layer(lambda: nn.Bilinear(3, 4, 2))
embedding = Layer(lambda: nn.Embedding(5, 3))
bags = Layer(lambda: nn.EmbeddingBag(5, 3, mode="sum"), lambda i, offsets, w: (i, offsets, w))
attention = Layer(
    lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    lambda q, k, v, padding, mask: (q, k, v, padding, True, mask),
)
encoder_layer = Layer(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
decoder_layer = Layer(lambda: nn.TransformerDecoderLayer(4, 2, 8, batch_first=True))
batch_norm = Layer(lambda: nn.BatchNorm2d(3))
instance_norm = Layer(lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True))
unpooling = Layer(lambda: nn.MaxUnpool2d(2))
ctc_loss = Layer(nn.CTCLoss)
adaptive_loss = Layer(lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [2, 5]))
