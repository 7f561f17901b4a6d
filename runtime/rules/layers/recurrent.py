"""Register the fused LSTM layer of ``nn.LSTM``: one direction of one layer, time first.

Gates have torch's order i, f, g, o (``torch.nn.LSTM``). First derivatives run on the fused
kernels. All other transforms run the layer in plain ops, in a loop over time with one matrix
product per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..derive.optional import add_present, map_optional, zeros_if_none
from ..record import register

Tensor = torch.Tensor
_mkldnn_backward = torch.ops.aten.mkldnn_rnn_layer_backward.default
Gates = tuple[Tensor, Tensor, Tensor, Tensor]
"""The gates i, f, g and o of one time after their activations, each (N, hidden)."""

# Shapes of this file: T times, N sequences.
#
# input: (T, N, n)         w_x = weight0: (4 * hidden, n)        b_x = weight2: (4 * hidden,)
# h, hx, c, cx: (N, hidden)  w_h = weight1: (4 * hidden, hidden)   b_h = weight3: (4 * hidden,)
# z: (N, 4 * hidden), the gates of one time before their activations
#
# The parameters of a registered formula have the names of the op's schema, and `_t` for a tangent.


def _running_order(length: int, reverse: bool) -> list[int]:
    """List the times in the order in which the loop visits them."""
    times = list(range(length))
    if reverse:
        times.reverse()
    return times


def _activate(z: Tensor) -> Gates:
    """Split (N, 4 * hidden) into the four gates, and apply the activation of each."""
    i, f, g, o = z.chunk(4, -1)
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


def _activation_derivatives(gates: Gates) -> Gates:
    """Return the derivatives of the activations, computed from the activations' results."""
    i, f, g, o = gates
    return i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)


def _biases_or_zeros(b_x: Tensor, b_h: Tensor, has_biases: bool) -> tuple[Tensor, Tensor]:
    """Return the biases, each (4 * hidden,), or zeros for a layer without biases.

    For such a layer ATen passes the two weights once more in place of the biases.
    """
    if has_biases:
        return b_x, b_h
    return b_x.new_zeros(b_x.shape[0]), b_h.new_zeros(b_h.shape[0])


def _run(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor,
    b_h: Tensor,
    h: Tensor,
    c: Tensor,
    reverse: bool,
) -> tuple[list[Gates], list[Tensor], list[Tensor]]:
    """Run the layer in plain ops.

    Returns three lists. ``gates`` has the gates by time. ``hidden`` and ``cell`` have T + 1 states
    in the order of running: the initial state, then the state after each step.
    """
    z = torch.nn.functional.linear(x, w_x, b_x + b_h)
    gates: list[Any] = [None] * x.shape[0]
    hidden, cell = [h], [c]
    for t in _running_order(x.shape[0], reverse):
        gates[t] = i, f, g, o = _activate(z[t] + hidden[-1] @ w_h.mT)
        cell.append(f * cell[-1] + i * g)
        hidden.append(o * cell[-1].tanh())
    return gates, hidden, cell


def _stack_by_time(states: list[Tensor], reverse: bool) -> Tensor:
    """Stack T states, listed in the order of running, as (T, N, hidden) in the order of time."""
    if reverse:
        states = states[::-1]
    return torch.stack(states)


def _layer(
    input: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hx_: Tensor,
    cx_: Tensor,
    reverse: bool,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the layer in plain ops.

    Returns the hidden states of all times, the last hidden state, the last cell state, and the
    workspace, which is empty: only the fused backward kernel would read it.
    """
    _batch_sizes, _mode, _hidden_size, _num_layers, has_biases, *_ = settings
    biases = _biases_or_zeros(weight2, weight3, has_biases)
    _, hidden, cell = _run(input, weight0, weight1, *biases, hx_, cx_, reverse)
    return _stack_by_time(hidden[1:], reverse), hidden[-1], cell[-1], input.new_empty(0)


def _layer_backward(
    input: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor, hx: Tensor, cx: Tensor,
    output: Tensor, hy: Tensor, cy: Tensor, g_out: Tensor | None, g_hy: Tensor | None,
    g_cy: Tensor | None, reverse: bool, *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Backpropagate through time.

    ``g_out``: (T, N, hidden), the cotangent of the hidden states. ``g_hy`` and ``g_cy``: (N,
    hidden), of the last hidden and cell state. None is zero.

    Returns the gradients of ``input``, of the two weights, the two biases and the two initial
    states. After the loop, one contraction over time gives each weight's gradient.
    """
    _mode, _hidden_size, _num_layers, has_biases, *_ = settings
    biases = _biases_or_zeros(b_x, b_h, has_biases)
    gates, hidden, cell = _run(input, w_x, w_h, *biases, hx, cx, reverse)
    order = _running_order(input.shape[0], reverse)
    d_hidden = zeros_if_none(g_hy, hidden[-1])
    d_cell = zeros_if_none(g_cy, cell[-1])
    d_z: list[Any] = [None] * len(order)
    for step in reversed(range(len(order))):
        t = order[step]
        i, f, g, o = gates[t]
        if g_out is not None:
            d_hidden = d_hidden + g_out[t]
        # cell[step] is the state before the step, cell[step + 1] the one after it
        tanh_cell = cell[step + 1].tanh()
        d_cell = d_cell + d_hidden * o * (1 - tanh_cell * tanh_cell)
        d_gates = d_cell * g, d_cell * cell[step], d_cell * i, d_hidden * tanh_cell
        slopes = _activation_derivatives(gates[t])
        d_z[t] = torch.cat([d * slope for d, slope in zip(d_gates, slopes, strict=True)], -1)
        d_hidden = d_z[t] @ w_h
        d_cell = d_cell * f
    d_z_all = torch.stack(d_z)
    hidden_before = _stack_by_time(hidden[:-1], reverse)
    d_b_x = d_b_h = d_z_all.sum((0, 1))
    if not has_biases:  # the weights stand in the place of the biases, and get zeros there
        d_b_x, d_b_h = torch.zeros_like(b_x), torch.zeros_like(b_h)
    d_z_by_gate = d_z_all.flatten(0, 1).mT  # (4 * hidden, T * N)
    return (
        d_z_all @ w_x,
        d_z_by_gate @ input.flatten(0, 1),
        d_z_by_gate @ hidden_before.flatten(0, 1),
        d_b_x,
        d_b_h,
        d_hidden,
        d_cell,
    )


def _layer_vjp(
    gs: Sequence[Tensor | None], input: Tensor, weight0: Tensor, weight1: Tensor, weight2: Tensor,
    weight3: Tensor, hx_: Tensor, cx_: Tensor, result0: Tensor, result1: Tensor, result2: Tensor,
    result3: Tensor, reverse: bool, mode: int, hidden_size: int, num_layers: int, has_biases: bool,
    train: bool, bidirectional: bool, batch_sizes: Any, batch_first: bool,
) -> Any:  # fmt: skip
    """Return the gradients of the seven arguments named in ``_DIFFERENTIABLE``.

    The fused backward kernel computes them from the four results of the forward kernel.
    """
    # gs[3] would be the cotangent of the workspace, which has no derivative
    g_out, g_hy, g_cy = (map_optional(lambda g: g.contiguous(), g) for g in gs[:3])
    if all(g is None for g in (g_out, g_hy, g_cy)):
        return (None,) * 7
    return _mkldnn_backward(
        input, weight0, weight1, weight2, weight3, hx_, cx_, result0, result1, result2, g_out, g_hy,
        g_cy, reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes,
        batch_first, result3,
    )  # fmt: skip


def _layer_jvp(
    input: Tensor, weight0: Tensor, weight1: Tensor, weight2: Tensor, weight3: Tensor, hx_: Tensor,
    cx_: Tensor, reverse: bool, has_biases: bool, input_t: Tensor | None, weight0_t: Tensor | None,
    weight1_t: Tensor | None, weight2_t: Tensor | None, weight3_t: Tensor | None,
    hx__t: Tensor | None, cx__t: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, None]:  # fmt: skip
    """Return the tangents of the four results, that of the workspace being zero.

    The loop carries the tangents of the states. An absent tangent is zero.
    """
    if not has_biases:  # the weights stand in the place of the biases
        weight2_t = weight3_t = None
    biases = _biases_or_zeros(weight2, weight3, has_biases)
    gates, hidden, cell = _run(input, weight0, weight1, *biases, hx_, cx_, reverse)
    # what does not depend on the states, of all times at once
    from_input: Tensor | None = add_present(
        map_optional(lambda x_t: x_t @ weight0.mT, input_t),
        map_optional(lambda w_t: input @ w_t.mT, weight0_t),
        weight2_t,
        weight3_t,
    )

    def input_term(t: int) -> Tensor | None:
        """Return the part of the tangent of ``z`` at time ``t`` that comes from the input, its
        weight and the biases. Tangents of biases alone have no time dimension."""
        if from_input is None or from_input.dim() == 1:
            return from_input
        return from_input[t]

    def recurrent_weight_term(step: int) -> Tensor | None:
        """Return the part of the tangent of ``z`` in a step that comes from ``weight1_t``."""
        return map_optional(lambda w_t: hidden[step] @ w_t.mT, weight1_t)

    h_t, c_t = zeros_if_none(hx__t, hx_), zeros_if_none(cx__t, cx_)
    hidden_t = []
    for step, t in enumerate(_running_order(input.shape[0], bool(reverse))):
        i, f, g, o = gates[t]
        z_t = add_present(h_t @ weight1.mT, input_term(t), recurrent_weight_term(step))
        slopes = _activation_derivatives(gates[t])
        # c = f * c + i * g and h = o * tanh(c), by the product rule
        i_t, f_t, g_t, o_t = (d * slope for d, slope in zip(z_t.chunk(4, -1), slopes, strict=True))
        c_t = f_t * cell[step] + f * c_t + i_t * g + i * g_t
        tanh_cell = cell[step + 1].tanh()
        h_t = o_t * tanh_cell + o * (1 - tanh_cell * tanh_cell) * c_t
        hidden_t.append(h_t)
    return _stack_by_time(hidden_t, reverse), h_t, c_t, None


_DIFFERENTIABLE = ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")
register(
    "mkldnn_rnn_layer",
    vjp={_DIFFERENTIABLE: _layer_vjp},
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
