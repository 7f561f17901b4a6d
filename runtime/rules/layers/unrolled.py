"""Run one direction of an LSTM, GRU or RNN layer over time, and backpropagate to its gates.

    unrolled = Unrolled("lstm", x, [h, c], weights, sizes=[3, 3, 2], reverse=False)
    cotangents = unrolled.pull(g_out, [g_h, None])

The gradients of the weights are contracted over time once, as ``gates.mT @ x`` and
``gates.mT @ before``. So what a per-sample gradient needs are the cotangents of the gates at each
time. The loops are over time, with kernels for all sequences. The order of the gates is torch's: i,
f, g, o of an LSTM (Hochreiter and Schmidhuber 1997), r, z, n of a GRU (Cho et al. 2014).

Sequences may have several lengths. They are sorted by falling length, so the first ``sizes[t]`` of
them have a time ``t``. In shapes, S is the number of sequences, T that of times, n the size of the
input, p that of the hidden state, and G that of all gates together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..derive.optional import map_optional, zeros_if_none

Tensor = torch.Tensor


class Weights(NamedTuple):
    """The weights of one direction of one layer.

    In shapes, G is the size of the hidden state times the number of gates.
    """

    # (G, n), of the input.
    x: Tensor
    # (G, p), of the hidden state.
    h: Tensor
    # (G,), or None. So is `b_h`.
    b_x: Tensor | None
    b_h: Tensor | None
    # (p, hidden), of an LSTM whose hidden state is a projection, else None.
    projection: Tensor | None


class Cotangents(NamedTuple):
    """The result of the backward pass of S sequences of T times.

    It is zero after the end of a sequence.
    """

    # (S, T, G), of the part of the gates that the input gives.
    z_x: Tensor
    # (S, T, G), of the part of the gates that the hidden state gives.
    z_h: Tensor
    # (S, T, p), the hidden state before each time.
    before: Tensor
    # The cotangents of the initial states.
    initial: list[Tensor]
    # (S, T, p), the cotangent of the hidden state. None without a projection.
    projected: Tensor | None
    # (S, T, hidden), the argument of the projection. None without a projection.
    unprojected: Tensor | None


class _SavedStep(NamedTuple):
    """The tensors that one step saves for the backward pass."""

    # The hidden state before the step.
    before: Tensor
    # The arguments of :meth:`_Cell.back`.
    parts: tuple[Tensor, ...]
    # The hidden state before its projection. None without a projection.
    unprojected: Tensor | None


class _StepCotangents(NamedTuple):
    """One time of the :class:`Cotangents`, for the sequences that have it."""

    z_x: Tensor
    z_h: Tensor
    before: Tensor
    projected: Tensor | None
    unprojected: Tensor | None


class Unrolled:
    """One run over time.

    ``x``: (S, T, n). ``initial``: the hidden state, (S, p), and of an LSTM the cell state, (S,
    hidden). ``sizes``: how many sequences have each time. ``kind``: ``lstm``, ``gru``, ``rnn_tanh``
    or ``rnn_relu``.

    ``out``: (S, T, p), zero after the end of a sequence. ``final``: the last states.
    ``saved_steps``: what the steps have saved, in the order of running.
    """

    def __init__(
        self,
        kind: str,
        x: Tensor,
        initial: Sequence[Tensor],
        weights: Weights,
        sizes: Sequence[int],
        reverse: bool,
    ) -> None:
        self.cell = CELLS[kind]
        self.weights, self.initial, self.sizes, self.reverse = weights, initial, sizes, reverse
        self.order = range(len(sizes))
        if reverse:
            self.order = self.order[::-1]
        self.saved_steps: list[_SavedStep] = []
        self.out, self.final = self._run(x)

    def _run(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run all steps. Returns the outputs and the last states."""
        weights, cell = self.weights, self.cell
        bias = weights.b_x
        # only their sum matters, unless the reset gate multiplies the part of the hidden state
        if bias is not None and weights.b_h is not None and not cell.separates_parts:
            bias = bias + weights.b_h
        # the part of the gates that the input gives, of all times at once
        z_x = torch.nn.functional.linear(x, weights.x, bias).unbind(1)
        h_to_gates = weights.h.t()
        to_projection = map_optional(lambda matrix: matrix.t(), weights.projection)
        # of the sequences that have the first time to run, which backwards is the last one
        states = [state[: self.sizes[self.order[0]]] for state in self.initial]
        ended: list[list[Tensor]] = [[] for _ in states]
        outs = []
        for t in self.order:
            rows = self.sizes[t]
            # a sequence enters with its initial state, and leaves with its last one
            of_each = zip(states, self.initial, ended, strict=True)
            states = [_resize(*state, rows) for state in of_each]
            before, unprojected = states[0], None
            states, parts = self._step(_first_rows(z_x[t], rows), states, h_to_gates)
            # the projection of an LSTM makes the output narrower than the cell
            if to_projection is not None:
                unprojected, states[0] = states[0], states[0] @ to_projection
            self.saved_steps.append(_SavedStep(before, parts, unprojected))
            outs.append(states[0])
        final = [_join_rows(*state) for state in zip(states, ended, strict=True)]
        return self._stack_by_time(outs), final

    def _step(
        self, z_x: Tensor, states: list[Tensor], h_to_gates: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Run one step of the cell, before a projection. ``z_x``: the part of the gates that the
        input gives. ``h_to_gates``: the transposed weight of the hidden state."""
        hidden, bias = states[0], self.weights.b_h
        if not self.cell.separates_parts:
            return self.cell.step(torch.addmm(z_x, hidden, h_to_gates), None, states)
        if bias is None:
            return self.cell.step(z_x, hidden @ h_to_gates, states)
        return self.cell.step(z_x, torch.addmm(bias, hidden, h_to_gates), states)

    def pull(
        self, g_out: Tensor | None, g_final: Sequence[Tensor | None], again: bool = False
    ) -> Cotangents:
        """Backpropagate through time. ``g_out``, ``g_final``: the cotangents of :attr:`out` and
        :attr:`final`, None for zero.

        What a step has saved is dropped as soon as it is used, so that the cotangents of the gates
        take its memory. ``again``: another call follows, so nothing is dropped.
        """
        saved_steps = self.saved_steps
        if again:
            saved_steps = list(saved_steps)
        # the sequences that are in the last step begin with the cotangents of their last states
        g_ends = [zeros_if_none(g, state) for state, g in zip(self.final, g_final, strict=True)]
        g_out_by_time = map_optional(lambda g: g.unbind(1), g_out)
        g_states = [g[: self.sizes[self.order[-1]]] for g in g_ends]
        g_starts: list[list[Tensor]] = [[] for _ in g_ends]
        steps: list[_StepCotangents] = []
        for t in reversed(self.order):
            rows = self.sizes[t]
            # backwards, a sequence enters at its end with the cotangent of its last state
            g_states = [_resize(*g, rows) for g in zip(g_states, g_ends, g_starts, strict=True)]
            if g_out_by_time is not None:
                g_states[0] = g_states[0] + _first_rows(g_out_by_time[t], rows)
            g_states, step = self._step_back(g_states, saved_steps.pop())
            steps.append(step)
        # each field as a tuple, in the order of running
        fields: Any = _StepCotangents._make(zip(*reversed(steps), strict=True))
        # in a GRU the parts of a gate by the input and by the state have cotangents of their own
        z_x = z_h = self._stack_by_time(fields.z_h)
        if self.cell.separates_parts:
            z_x = self._stack_by_time(fields.z_x)
        initial = [_join_rows(*g) for g in zip(g_states, g_starts, strict=True)]
        before = self._stack_by_time(fields.before)
        if self.weights.projection is None:
            return Cotangents(z_x, z_h, before, initial, None, None)
        projected = self._stack_by_time(fields.projected)
        unprojected = self._stack_by_time(fields.unprojected)
        return Cotangents(z_x, z_h, before, initial, projected, unprojected)

    def _step_back(
        self, g_states: list[Tensor], saved: _SavedStep
    ) -> tuple[list[Tensor], _StepCotangents]:
        """Return the cotangents of the states before a step, and what the step adds to the result.
        ``g_states``: the cotangents of the states after the step."""
        weights, projected = self.weights, None
        if weights.projection is not None:
            projected = g_states[0]
            g_states[0] = projected @ weights.projection
        gates, g_states, g_direct = self.cell.back(g_states, *saved.parts)
        z_x, z_h = gates[0], gates[-1]
        if g_direct is None:
            g_states[0] = z_h @ weights.h
        else:
            g_states[0] = torch.addmm(g_direct, z_h, weights.h)
        return g_states, _StepCotangents(z_x, z_h, saved.before, projected, saved.unprojected)

    def _stack_by_time(self, steps: Sequence[Tensor]) -> Tensor:
        """Stack one tensor per step, listed in the order of running, as (S, T, …) in the order of
        time."""
        padded = list(map(self._pad, steps))
        if self.reverse:
            padded.reverse()
        return torch.stack(padded, 1)

    def _pad(self, t: Tensor) -> Tensor:
        """Return the rows of a step as (S, …), with zeros for the sequences that have ended."""
        missing = self.initial[0].shape[0] - t.shape[0]
        if not missing:
            return t
        return torch.cat([t, t.new_zeros(missing, *t.shape[1:])])


class _Cell:
    """The formulas of one step.

    ``separates_parts``: whether a step needs the two parts of the gates, that of the input and that
    of the hidden state, or only their sum.
    """

    separates_parts = False

    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Return the next states, and what :meth:`back` needs.

        ``gates``: their sum, or the part of the input if the cell separates the parts. ``of_h``:
        the part of the hidden state, None if the cell does not.
        """
        raise NotImplementedError

    def back(
        self, g: list[Tensor], *saved: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        """Return the cotangents of the gates, the states and the direct path.

        ``g``: the cotangents of the next states. ``saved``: what :meth:`step` returned second.

        The gates are a tuple of one, or of the part of the input and that of the hidden state. The
        first of the states is replaced by the caller, which adds what comes through the gates. The
        direct path is what the hidden state gets without the gates, None for zero.
        """
        raise NotImplementedError


class _Lstm(_Cell):
    """A step of an LSTM (Hochreiter and Schmidhuber 1997)."""

    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Return the hidden and the cell state, and what :meth:`back` needs."""
        size = states[1].shape[1]
        i, f = gates[:, : 2 * size].sigmoid().chunk(2, 1)
        g, o = gates[:, 2 * size : 3 * size].tanh(), gates[:, 3 * size :].sigmoid()
        cell = torch.addcmul(f * states[1], i, g)
        tanh_cell = cell.tanh()
        return [o * tanh_cell, cell], (i, f, g, o, states[1], tanh_cell)

    def back(
        self, g: list[Tensor], *saved: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        """Return the cotangents of the gates and of the cell state."""
        i, f, candidate, o, cell_before, tanh_cell = saved
        g_cell = g[1] + _pull_tanh(g[0] * o, tanh_cell)
        g_gates = (
            _pull_sigmoid(g_cell * candidate, i),
            _pull_sigmoid(g_cell * cell_before, f),
            _pull_tanh(g_cell * i, candidate),
            _pull_sigmoid(g[0] * tanh_cell, o),
        )
        return (torch.cat(g_gates, 1),), [g[0], g_cell * f], None


class _Gru(_Cell):
    """A step of a GRU (Cho et al. 2014)."""

    # the reset gate multiplies the part of the hidden state alone: n = tanh(x_n + r * h_n)
    separates_parts = True

    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Return the hidden state, and what :meth:`back` needs."""
        assert of_h is not None
        (h,) = states
        size = h.shape[1]
        r_and_z = (gates[:, : 2 * size] + of_h[:, : 2 * size]).sigmoid()
        r, z = r_and_z.chunk(2, 1)
        n_of_h = of_h[:, 2 * size :].contiguous()  # a copy, so that the rest is freed
        n = torch.addcmul(gates[:, 2 * size :], r, n_of_h).tanh()
        difference = h - n
        return [torch.addcmul(n, z, difference)], (r_and_z, n, n_of_h, difference)

    def back(
        self, g: list[Tensor], *saved: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        """Return the cotangents of both parts of the gates, and that of the direct path."""
        r_and_z, n, n_of_h, difference = saved
        r, z = r_and_z.chunk(2, 1)
        (g_h,) = g
        g_direct = g_h * z
        g_n = _pull_tanh(g_h - g_direct, n)
        g_r, g_z = _pull_sigmoid(g_n * n_of_h, r), _pull_sigmoid(g_h * difference, z)
        parts = torch.cat([g_r, g_z, g_n], 1), torch.cat([g_r, g_z, g_n * r], 1)
        return parts, g, g_direct


class _Rnn(_Cell):
    """A step of a plain recurrent layer: tanh or relu."""

    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        h = gates.relu() if self.relu else gates.tanh()
        return [h], (h,)

    def back(
        self, g: list[Tensor], *saved: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        """Return the cotangent of the gate."""
        (h,) = saved
        if self.relu:
            return (torch.ops.aten.threshold_backward(g[0], h, 0),), g, None
        return (_pull_tanh(g[0], h),), g, None


CELLS: dict[str, _Cell] = {
    "lstm": _Lstm(),
    "gru": _Gru(),
    "rnn_tanh": _Rnn(relu=False),
    "rnn_relu": _Rnn(relu=True),
}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _pull_sigmoid(g: Tensor, y: Tensor) -> Tensor:
    """Return ``g`` times the derivative of a sigmoid whose result is ``y``."""
    return torch.ops.aten.sigmoid_backward(g, y)  # type: ignore[no-any-return]


def _pull_tanh(g: Tensor, y: Tensor) -> Tensor:
    """Return ``g`` times the derivative of a tanh whose result is ``y``."""
    return torch.ops.aten.tanh_backward(g, y)  # type: ignore[no-any-return]


def _first_rows(t: Tensor, rows: int) -> Tensor:
    """Return ``t[:rows]``, without a view if these are all rows."""
    if t.shape[0] == rows:
        return t
    return t[:rows]


def _resize(state: Tensor, source: Tensor, removed: list[Tensor], rows: int) -> Tensor:
    """Return a state of ``rows`` rows, one for each sequence that has the present time.

    ``source``: (S, …), which gives the rows of sequences that begin here. ``removed``: gets the
    rows of sequences that end here.
    """
    present = state.shape[0]
    if rows < present:
        removed.append(state[rows:])
        return state[:rows]
    if rows > present:
        return torch.cat([state, source[present:rows]])
    return state


def _join_rows(state: Tensor, removed: list[Tensor]) -> Tensor:
    """Return a state of all sequences: its present rows, and those that :func:`_resize` removed.

    The shorter sequences were removed first, and come last.
    """
    if not removed:
        return state
    return torch.cat([state, *removed[::-1]])
