"""The fused LSTM layer of ``nn.LSTM``: one direction of one layer, time first.

Gates have torch's order i, f, g, o (``torch.nn.LSTM``). First derivatives run on the fused
kernels. All other transforms run the layer in plain ops, in a loop over time with one matrix
product per step.
"""

from __future__ import annotations

from typing import Any

import torch

from ..derive.optional import add_present, map_optional, zeros_if_none
from ..record import register

_mkldnn_backward = torch.ops.aten.mkldnn_rnn_layer_backward.default
Gates = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _steps(length: int, reverse: bool) -> list[int]:
    """Return the times in the order of running."""
    times = list(range(length))
    if reverse:
        times.reverse()
    return times


def _activated(z: torch.Tensor) -> Gates:
    i, f, g, o = z.chunk(4, -1)
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


def _slopes(gates: Gates) -> list[torch.Tensor]:
    """Return the derivatives of the activations, computed from their results."""
    i, f, g, o = gates
    return [i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)]


def _biases(b_x: Any, b_h: Any, has_biases: bool) -> tuple[Any, Any]:
    """Return the biases, or zeros: ATen passes the weights in their place if there are none."""
    if has_biases:
        return b_x, b_h
    return b_x.new_zeros(b_x.shape[0]), b_h.new_zeros(b_h.shape[0])


def _run(
    x: Any, w_x: Any, w_h: Any, b_x: Any, b_h: Any, h: Any, c: Any, reverse: bool
) -> tuple[list[Gates], list[Any], list[Any]]:
    """Return the gates at each time, and the hidden and cell states in the order of running. The
    initial state comes first."""
    z = torch.nn.functional.linear(x, w_x, b_x + b_h)
    gates: list[Any] = [None] * x.shape[0]
    hidden, cell = [h], [c]
    for t in _steps(x.shape[0], reverse):
        gates[t] = i, f, g, o = _activated(z[t] + hidden[-1] @ w_h.mT)
        cell.append(f * cell[-1] + i * g)
        hidden.append(o * cell[-1].tanh())
    return gates, hidden, cell


def _ordered(states: list[Any], reverse: bool) -> torch.Tensor:
    """Return the states, given in the order of running, stacked in the order of time."""
    if reverse:
        states = states[::-1]
    return torch.stack(states)


def _layer(
    input: Any,
    weight0: Any,
    weight1: Any,
    weight2: Any,
    weight3: Any,
    hx_: Any,
    cx_: Any,
    reverse: bool,
    *settings: Any,
) -> object:
    _, _, _, _, has_biases, *_ = settings
    _, hidden, cell = _run(
        input, weight0, weight1, *_biases(weight2, weight3, has_biases), hx_, cx_, reverse
    )
    return _ordered(hidden[1:], reverse), hidden[-1], cell[-1], input.new_empty(0)


def _layer_backward(
    input: Any, w_x: Any, w_h: Any, b_x: Any, b_h: Any, hx: Any, cx: Any, output: Any, hy: Any,
    cy: Any, g_out: Any, g_hy: Any, g_cy: Any, reverse: bool, *settings: Any,
) -> Any:  # fmt: skip
    """Backpropagation through time. After the loop, one contraction over time gives each
    weight's gradient."""
    _, _, _, has_biases, *_ = settings
    gates, hidden, cell = _run(input, w_x, w_h, *_biases(b_x, b_h, has_biases), hx, cx, reverse)
    order = _steps(input.shape[0], reverse)
    d_hidden = zeros_if_none(g_hy, hidden[-1])
    d_cell = zeros_if_none(g_cy, cell[-1])
    d_z: list[Any] = [None] * len(order)
    for step in reversed(range(len(order))):
        t = order[step]
        i, f, g, o = gates[t]
        if g_out is not None:
            d_hidden = d_hidden + g_out[t]
        squashed = cell[step + 1].tanh()
        d_cell = d_cell + d_hidden * o * (1 - squashed * squashed)
        d_gates = d_cell * g, d_cell * cell[step], d_cell * i, d_hidden * squashed
        d_z[t] = torch.cat([d * s for d, s in zip(d_gates, _slopes(gates[t]), strict=True)], -1)
        d_hidden = d_z[t] @ w_h
        d_cell = d_cell * f
    d_z_all = torch.stack(d_z)
    before = _ordered(hidden[:-1], reverse)
    of_b_x = of_b_h = d_z_all.sum((0, 1))
    if not has_biases:  # the weights take their place
        of_b_x, of_b_h = torch.zeros_like(b_x), torch.zeros_like(b_h)
    flat = d_z_all.flatten(0, 1).mT
    return (
        d_z_all @ w_x,
        flat @ input.flatten(0, 1),
        flat @ before.flatten(0, 1),
        of_b_x,
        of_b_h,
        d_hidden,
        d_cell,
    )


def _layer_vjp(
    gs: Any, input: Any, weight0: Any, weight1: Any, weight2: Any, weight3: Any, hx_: Any, cx_: Any,
    result0: Any, result1: Any, result2: Any, result3: Any, reverse: Any, mode: Any,
    hidden_size: Any, num_layers: Any, has_biases: Any, train: Any, bidirectional: Any,
    batch_sizes: Any, batch_first: Any,
) -> Any:  # fmt: skip
    g_out, g_hy, g_cy = (map_optional(lambda g: g.contiguous(), g) for g in gs[:3])
    if all(g is None for g in (g_out, g_hy, g_cy)):
        return (None,) * 7
    return _mkldnn_backward(
        input, weight0, weight1, weight2, weight3, hx_, cx_, result0, result1, result2, g_out, g_hy,
        g_cy, reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes,
        batch_first, result3,
    )  # fmt: skip


def _layer_jvp(
    input: Any, weight0: Any, weight1: Any, weight2: Any, weight3: Any, hx_: Any, cx_: Any,
    reverse: Any, has_biases: Any, input_t: Any, weight0_t: Any, weight1_t: Any, weight2_t: Any,
    weight3_t: Any, hx__t: Any, cx__t: Any,
) -> Any:  # fmt: skip
    """Return the tangents of the results. The tangents of the states are carried along the loop; an
    absent tangent is zero."""

    if not has_biases:
        weight2_t = weight3_t = None
    gates, hidden, cell = _run(
        input, weight0, weight1, *_biases(weight2, weight3, has_biases), hx_, cx_, reverse
    )
    from_input = add_present(
        map_optional(lambda t: t @ weight0.mT, input_t),
        map_optional(lambda t: input @ t.mT, weight0_t),
        weight2_t,
        weight3_t,
    )

    def outer(t: int) -> Any:
        """Return what the input and the biases give at time ``t``. Biases alone are the same at
        all times."""
        if from_input is None or from_input.dim() == 1:
            return from_input
        return from_input[t]

    def of_weight(step: int) -> Any:
        """Return what the tangent of the recurrent weight gives in a step."""
        return map_optional(lambda t: hidden[step] @ t.mT, weight1_t)

    h_t, c_t = zeros_if_none(hx__t, hx_), zeros_if_none(cx__t, cx_)
    hidden_t = []
    for step, t in enumerate(_steps(input.shape[0], bool(reverse))):
        i, f, g, o = gates[t]
        z_t = add_present(h_t @ weight1.mT, outer(t), of_weight(step))
        i_t, f_t, g_t, o_t = (
            d * s for d, s in zip(z_t.chunk(4, -1), _slopes(gates[t]), strict=True)
        )
        c_t = f_t * cell[step] + f * c_t + i_t * g + i * g_t
        squashed = cell[step + 1].tanh()
        h_t = o_t * squashed + o * (1 - squashed * squashed) * c_t
        hidden_t.append(h_t)
    return _ordered(hidden_t, reverse), h_t, c_t, None


_WEIGHTS = ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")
register(
    "mkldnn_rnn_layer",
    vjp={_WEIGHTS: _layer_vjp},
    jvp=_layer_jvp,
    decomposition=_layer,
    nondiff=(3,),
    cost="high",
    family="recurrent",
)
# The kernel of the backward reads a workspace that only the forward kernel fills.
register(
    "mkldnn_rnn_layer_backward",
    decomposition=_layer_backward,
    workspace=True,
    cost="high",
    family="recurrent",
)
