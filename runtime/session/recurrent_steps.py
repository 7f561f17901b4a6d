"""Run and record the steps of recurrent cells by the ops of ATen, in its order.

ATen decomposes ``gru``, ``rnn_tanh``, ``rnn_relu`` and ``lstm`` into products and activations. Here
each of these runs on inner tensors, and the tape gets the node that the op would make, without a
pass through the dispatcher. Example: the next state of a GRU is ``(h - n) * z + n``, whose three
ops make three nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..rules.ops import Op, op_of
from ..tape.op_nodes import OpNode
from ..torch_private.native_autograd import increment_version
from .composite import (
    NO_KWARGS,
    UNFLATTEN,
    Part,
    flatten_to_matrix,
    linear_of_matrix,
    run_binary,
    run_op,
)
from .tensor import SESSION

aten = torch.ops.aten
_ADD, _SUB, _MUL, _MM = (
    op_of(aten.add.Tensor),
    op_of(aten.sub.Tensor),
    op_of(aten.mul.Tensor),
    op_of(aten.mm.default),
)
_SIGMOID, _TANH, _RELU = (
    op_of(aten.sigmoid.default),
    op_of(aten.tanh.default),
    op_of(aten.relu.default),
)
_SPLIT, UNBIND = op_of(aten.unsafe_split.Tensor), op_of(aten.unbind.int)
STACK, _CAT = op_of(aten.stack.default), op_of(aten.cat.default)
_T, _UNSAFE_VIEW = op_of(aten.t.default), op_of(aten._unsafe_view.default)
_base: Any = torch.Tensor
_add_, _mul_ = _base.add_, _base.mul_

Weights = list[Part]  # weight of the input, weight of the state, and the bias of each
# (input or its gates, state, weights, whether it is the gates) -> the next state
Step = Callable[[Part, Any, Weights, bool], Any]


def run_unary(op: Op, x: Part, *rest: object, kernel: object = None) -> Part:
    """Run and record an op of one tensor. ``rest``: its other arguments. ``kernel``: an in-place
    form of the op, as for :func:`.composite.run_op`."""
    inner, edge = x
    if edge is None:
        return run_op(op, [inner, *rest], (), 0, kernel)
    return run_op(op, [inner, *rest], (edge,), 1, kernel)


# The names with an underscore write over their argument, as ATen does: it is the result of a sum or
# a split that nothing else reads.
def _sigmoid_(x: Part) -> Part:
    return run_unary(_SIGMOID, x, kernel=_base.sigmoid_)


def _tanh_(x: Part) -> Part:
    return run_unary(_TANH, x, kernel=_base.tanh_)


def run_listing(op: Op, x: Part, *rest: object) -> list[Part]:
    """Run and record an op with a list of results. Return them, all with one node."""
    outputs = op.kernel(x[0], *rest)
    if x[1] is None:
        return [(output, None) for output in outputs]
    metas = tuple([(output.shape, output.dtype) for output in outputs])
    node = OpNode.of(op, SESSION, (x[1],), metas, 1, None)
    # under pack hooks the call has gone on to ATen, see `plain_case`
    node.save_unpacked([x[0], *rest], NO_KWARGS, outputs)
    return [(output, (node, index)) for index, output in enumerate(outputs)]


def join(op: Op, parts: list[Part], dim: int) -> Part:
    """Run and record ``stack`` or ``cat`` of ``parts`` along ``dim``."""
    inner = [tensor for tensor, _ in parts]
    out = op.kernel(inner, dim)
    edges = tuple([edge for _, edge in parts])
    if edges.count(None) == len(edges):
        return out, None
    # argument 0 is a list, with an edge for each of its tensors
    node = OpNode.of(op, SESSION, edges, ((out.shape, out.dtype),), 1, {0: len(parts)})
    node.save_unpacked([inner, dim], NO_KWARGS, out)
    return out, (node, 0)


def _chunks(x: Part, number: int) -> list[Part]:
    """Return the gates of one step, from the matrix in which they lie side by side."""
    # the split of ATen's `unsafe_chunk`: its results are no views, so they can be written to
    return run_listing(_SPLIT, x, x[0].shape[1] // number, 1)


def _state_gates(h: Part, weights: Weights) -> Part:
    """Return the state's part of the gates."""
    return linear_of_matrix(h, weights[1], weights[3])


def _input_gates(x: Part, weights: Weights, ready: bool) -> Part:
    """Return the input's part of the gates. ``ready``: ``x`` is that part already."""
    if ready:
        return x
    return linear_of_matrix(x, weights[0], weights[2])


def _gru_cell(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    """Return the next state of a GRU cell, by the ops of ATen in its order."""
    # the gates lie in torch's order: reset, update, new
    of_input = _chunks(_input_gates(x, weights, ready), 3)
    of_state = _chunks(_state_gates(h, weights), 3)
    reset = _sigmoid_(run_binary(_ADD, of_state[0], of_input[0], _add_))
    update = _sigmoid_(run_binary(_ADD, of_state[1], of_input[1], _add_))
    candidate = _tanh_(run_binary(_ADD, of_input[2], run_binary(_MUL, of_state[2], reset)))
    # h' = (h - n)·z + n in place of (1 - z)·n + z·h: one product less, and ATen's rounding
    difference = run_binary(_SUB, h, candidate)
    out = run_binary(_ADD, run_binary(_MUL, difference, update), candidate, _add_)
    if not ready:
        # in a cell ATen's last product is in place, with a copy saved: its result has
        # one more version
        increment_version([out[0]])
    return out


def _total(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    """Return the sum of both parts of the gates, written over the state's part, as in ATen."""
    return run_binary(_ADD, _state_gates(h, weights), _input_gates(x, weights, ready), _add_)


def _tanh_cell(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    return run_unary(_TANH, _total(x, h, weights, ready))


def _relu_cell(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    return run_unary(_RELU, _total(x, h, weights, ready))


def _lstm_cell(
    x: Part, state: tuple[Part, Part], weights: Weights, ready: bool
) -> tuple[Part, Part]:
    """Return the next state of an LSTM cell, hidden part and memory, by the ops of ATen in its
    order."""
    # the gates lie in torch's order: input, forget, cell, output
    parts = _chunks(_total(x, state[0], weights, ready), 4)
    input_gate, forget_gate = _sigmoid_(parts[0]), _sigmoid_(parts[1])
    candidate, output_gate = _tanh_(parts[2]), _sigmoid_(parts[3])
    old, added = run_binary(_MUL, forget_gate, state[1]), run_binary(_MUL, input_gate, candidate)
    memory = run_binary(_ADD, old, added, _add_)
    return run_binary(_MUL, output_gate, run_unary(_TANH, memory)), memory


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell. ATen has a list of two states for an LSTM, and one tensor for any
    other kind."""

    advance: Step
    gates: int
    is_paired: bool = False  # the state has a hidden part and a memory, and the first is the output

    def list_states(self, hx: Any) -> list[Any]:
        """List the tensors of the state argument ``hx``."""
        if self.is_paired:
            return list(hx)
        return [hx]

    def join_states(self, states: Sequence[object]) -> Any:
        """Return the argument of which these are the tensors."""
        if self.is_paired:
            return states
        return states[0]

    def output_of(self, state: Any) -> Part:
        """Return the part of a state that is the output of its step."""
        output: Part = state[0] if self.is_paired else state
        return output


CELLS = {
    "gru": Cell(_gru_cell, gates=3),
    "rnn_tanh": Cell(_tanh_cell, gates=1),
    "rnn_relu": Cell(_relu_cell, gates=1),
    "lstm": Cell(_lstm_cell, gates=4, is_paired=True),
}


def _sequence_gates(x: Part, weights: Weights) -> Part:
    """Return ``linear`` of a whole sequence: the input's part of the gates of all steps."""
    tensor, edge = x
    weight, bias = weights[0], weights[2]
    sizes = [*tensor.shape[:2], weight[0].shape[0]]
    if tensor.is_contiguous():
        return run_unary(UNFLATTEN, linear_of_matrix(flatten_to_matrix(x), weight, bias), sizes)
    # ATen's `linear` uses `addmm` only for a contiguous stack, else `matmul`, and adds the bias
    # no node for the reshape: an input that is not contiguous has no edge here, see `copies_input`
    rows: Part = (tensor.reshape(-1, tensor.shape[2]), edge)
    whole = run_binary(_MM, rows, run_unary(_T, weight))
    return run_binary(_ADD, run_unary(_UNSAFE_VIEW, whole, sizes), bias, _add_)


def _run_direction(
    cell: Cell, x: Part, state: object, weights: Weights, backwards: bool
) -> tuple[Part, object]:
    """Return the outputs of one direction of a layer, in the order of time, and its last state."""
    # the input's part of all steps is one product, and the state's part is one for each step
    gates = run_listing(UNBIND, _sequence_gates(x, weights), 0)
    outputs: list[Part] = []
    if backwards:
        gates.reverse()
    for gate in gates:
        state = cell.advance(gate, state, weights, True)
        outputs.append(cell.output_of(state))
    if backwards:
        outputs.reverse()
    return join(STACK, outputs, 0), state


def run_layers(
    cell: Cell, x: Part, states: list[object], weights: list[Weights], directions: int
) -> tuple[Part, list[Any]]:
    """Return the outputs of the last layer, with time as the first dimension, and the last state of
    every layer and direction."""
    last: list[Any] = []
    for first in range(0, len(weights), directions):
        outputs: list[Part] = []
        for index in range(first, first + directions):
            output, state = _run_direction(
                cell, x, states[index], weights[index], backwards=index > first
            )
            outputs.append(output)
            last.append(state)
        # both directions read the same input, and the next layer reads both
        x = outputs[0]
        if directions == 2:
            x = join(_CAT, outputs, 2)
    return x, last
