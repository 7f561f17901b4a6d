"""One direction of one layer of an LSTM, GRU or RNN, over time, with the cotangents of its gates.

The gradients of the weights are contracted over time once, as ``gates.mT @ x`` and
``gates.mT @ before``. So what a per-sample gradient needs are the cotangents of the gates at each
time. The loops are over time, with kernels for all sequences. The order of the gates is torch's: i,
f, g, o of an LSTM (Hochreiter and Schmidhuber 1997), r, z, n of a GRU (Cho et al. 2014).

Sequences may have several lengths. They are sorted by falling length, so the first ``sizes[t]`` of
them have a time ``t``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..derive.optional import map_optional, zeros_if_none

Tensor = torch.Tensor


class Weights(NamedTuple):
    """``x``: (G, n). ``h``: (G, p). ``b_x``, ``b_h``: (G,), or None. ``projection``: (p, hidden) of
    an LSTM whose hidden state is a projection, else None. G is hidden times the number of gates."""

    x: Tensor
    h: Tensor
    b_x: Tensor | None
    b_h: Tensor | None
    projection: Tensor | None


class Cotangents(NamedTuple):
    """Of S sequences of T times, zero after the end of a sequence.

    ``z_x``, ``z_h``: (S, T, G), of the parts of the gates that the input and the hidden state give.
    ``before``: (S, T, p), the hidden state before each time. ``initial``: of the initial states.
    ``projected``, ``unprojected``: (S, T, p) and (S, T, hidden), the cotangent of the hidden state
    and what its projection takes, None without a projection.
    """

    z_x: Tensor
    z_h: Tensor
    before: Tensor
    initial: list[Tensor]
    projected: Tensor | None
    unprojected: Tensor | None


class _Kept(NamedTuple):
    """What one step leaves for the backward pass."""

    before: Tensor
    parts: tuple[Tensor, ...]
    unprojected: Tensor | None


class _StepCotangents(NamedTuple):
    """One time of the :class:`Cotangents`, for the sequences that have it."""

    z_x: Tensor
    z_h: Tensor
    before: Tensor
    projected: Tensor | None
    unprojected: Tensor | None


class Unrolled:
    """``x``: (S, T, n). ``initial``: the hidden state, (S, p), and of an LSTM the cell state, (S,
    hidden). ``sizes``: how many sequences have each time. ``kind``: ``lstm``, ``gru``, ``rnn_tanh``
    or ``rnn_relu``.

    ``out``: (S, T, p), zero after the end of a sequence. ``final``: the last states.
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
        self.kept: list[_Kept] = []
        self.out, self.final = self._run(x)

    def _run(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        w, cell = self.weights, self.cell
        bias = w.b_x
        if bias is not None and w.b_h is not None and not cell.apart:
            bias = bias + w.b_h
        of_input = torch.nn.functional.linear(x, w.x, bias).unbind(1)
        to_gates, to_output = w.h.t(), map_optional(lambda p: p.t(), w.projection)
        states = [s[: self.sizes[self.order[0]]] for s in self.initial]
        ended: list[list[Tensor]] = [[] for _ in states]
        outs = []
        for t in self.order:
            n = self.sizes[t]
            states = [_resized(*each, n) for each in zip(states, self.initial, ended, strict=True)]
            before, unprojected = states[0], None
            states, parts = self._step(_first(of_input[t], n), states, to_gates)
            if to_output is not None:
                unprojected, states[0] = states[0], states[0] @ to_output
            self.kept.append(_Kept(before, parts, unprojected))
            outs.append(states[0])
        return self._in_time(outs), [_whole(*each) for each in zip(states, ended, strict=True)]

    def _step(
        self, of_x: Tensor, states: list[Tensor], to_gates: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Run one step of the cell, before a projection. ``of_x``: the part of the gates that the
        input gives. ``to_gates``: the transposed weight of the hidden state."""
        hidden, bias = states[0], self.weights.b_h
        if not self.cell.apart:
            return self.cell.step(torch.addmm(of_x, hidden, to_gates), None, states)
        if bias is None:
            return self.cell.step(of_x, hidden @ to_gates, states)
        return self.cell.step(of_x, torch.addmm(bias, hidden, to_gates), states)

    def pull(
        self, g_out: Tensor | None, g_final: Sequence[Tensor | None], again: bool = False
    ) -> Cotangents:
        """Backpropagation through time. ``g_out``, ``g_final``: the cotangents of :attr:`out` and
        :attr:`final`, None for zero.

        What a step has left is dropped as soon as it is used, so that the cotangents of the gates
        take its memory. ``again``: another call follows, so nothing is dropped.
        """
        kept = self.kept
        if again:
            kept = list(kept)
        ends = [zeros_if_none(g, s) for s, g in zip(self.final, g_final, strict=True)]
        given = map_optional(lambda g: g.unbind(1), g_out)
        carried = [g[: self.sizes[self.order[-1]]] for g in ends]
        starts: list[list[Tensor]] = [[] for _ in ends]
        steps: list[_StepCotangents] = []
        for t in reversed(self.order):
            n = self.sizes[t]
            carried = [_resized(*state, n) for state in zip(carried, ends, starts, strict=True)]
            if given is not None:
                carried[0] = carried[0] + _first(given[t], n)
            carried, step = self._step_back(carried, kept.pop())
            steps.append(step)
        # each field as a tuple, in the order of running
        each: Any = _StepCotangents._make(zip(*reversed(steps), strict=True))
        z_x = z_h = self._in_time(each.z_h)
        if self.cell.apart:
            z_x = self._in_time(each.z_x)
        initial = [_whole(*state) for state in zip(carried, starts, strict=True)]
        before = self._in_time(each.before)
        if self.weights.projection is None:
            return Cotangents(z_x, z_h, before, initial, None, None)
        projected, unprojected = self._in_time(each.projected), self._in_time(each.unprojected)
        return Cotangents(z_x, z_h, before, initial, projected, unprojected)

    def _step_back(
        self, carried: list[Tensor], kept: _Kept
    ) -> tuple[list[Tensor], _StepCotangents]:
        """Return the cotangents of the states before a step, from those of the states after it,
        and what the step adds to the result."""
        w, projected = self.weights, None
        if w.projection is not None:
            projected = carried[0]
            carried[0] = projected @ w.projection
        gates, carried, past = self.cell.back(carried, *kept.parts)
        z_x, z_h = gates[0], gates[-1]
        if past is None:
            carried[0] = z_h @ w.h
        else:
            carried[0] = torch.addmm(past, z_h, w.h)
        return carried, _StepCotangents(z_x, z_h, kept.before, projected, kept.unprojected)

    def _in_time(self, steps: Sequence[Any]) -> Tensor:
        """Return what each step gives, in the order of running, as (S, T, …) in the order of
        time."""
        padded = list(map(self._padded, steps))
        if self.reverse:
            padded.reverse()
        return torch.stack(padded, 1)

    def _padded(self, t: Tensor) -> Tensor:
        """Return the rows of a step, with zeros for the sequences that have ended."""
        missing = self.initial[0].shape[0] - t.shape[0]
        if not missing:
            return t
        return torch.cat([t, t.new_zeros(missing, *t.shape[1:])])


class _Cell:
    """``apart``: whether the parts of the gates that input and state give are used apart.

    ``step``: the next states, and what ``back`` needs. ``back``: the cotangents of the gates, of
    those of the input and those of the state if they are apart; those of the states without what
    comes through the gates; and the part of the hidden state in them, None for zero."""

    apart = False

    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        raise NotImplementedError

    def back(
        self, g: list[Tensor], *kept: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        raise NotImplementedError


class _Lstm(_Cell):
    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        size = states[1].shape[1]
        i, f = gates[:, : 2 * size].sigmoid().chunk(2, 1)
        g, o = gates[:, 2 * size : 3 * size].tanh(), gates[:, 3 * size :].sigmoid()
        after = torch.addcmul(f * states[1], i, g)
        squashed = after.tanh()
        return [o * squashed, after], (i, f, g, o, states[1], squashed)

    def back(
        self, g: list[Tensor], *kept: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        i, f, new, o, before, squashed = kept
        cell = g[1] + _tanh_slope(g[0] * o, squashed)
        each = (
            _sigmoid_slope(cell * new, i),
            _sigmoid_slope(cell * before, f),
            _tanh_slope(cell * i, new),
            _sigmoid_slope(g[0] * squashed, o),
        )
        return (torch.cat(each, 1),), [g[0], cell * f], None


class _Gru(_Cell):
    apart = True

    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        assert of_h is not None
        (h,) = states
        size = h.shape[1]
        opened = (gates[:, : 2 * size] + of_h[:, : 2 * size]).sigmoid()
        r, z = opened.chunk(2, 1)
        new_of_h = of_h[:, 2 * size :].contiguous()  # a copy, so that the rest is freed
        n = torch.addcmul(gates[:, 2 * size :], r, new_of_h).tanh()
        past = h - n
        return [torch.addcmul(n, z, past)], (opened, n, new_of_h, past)

    def back(
        self, g: list[Tensor], *kept: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        opened, n, new_of_h, past = kept
        r, z = opened.chunk(2, 1)
        (h,) = g
        kept_h = h * z
        new = _tanh_slope(h - kept_h, n)
        reset, update = _sigmoid_slope(new * new_of_h, r), _sigmoid_slope(h * past, z)
        return (
            (torch.cat([reset, update, new], 1), torch.cat([reset, update, new * r], 1)),
            g,
            kept_h,
        )


class _Rnn(_Cell):
    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def step(
        self, gates: Tensor, of_h: Tensor | None, states: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        h = gates.relu() if self.relu else gates.tanh()
        return [h], (h,)

    def back(
        self, g: list[Tensor], *kept: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor], Tensor | None]:
        (h,) = kept
        if self.relu:
            return (torch.ops.aten.threshold_backward(g[0], h, 0),), g, None
        return (_tanh_slope(g[0], h),), g, None


CELLS: dict[str, _Cell] = {
    "lstm": _Lstm(),
    "gru": _Gru(),
    "rnn_tanh": _Rnn(relu=False),
    "rnn_relu": _Rnn(relu=True),
}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _sigmoid_slope(g: Tensor, y: Tensor) -> Tensor:
    """``g`` times the derivative of a sigmoid whose result is ``y``."""
    return torch.ops.aten.sigmoid_backward(g, y)  # type: ignore[no-any-return]


def _tanh_slope(g: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward(g, y)  # type: ignore[no-any-return]


def _first(t: Tensor, rows: int) -> Tensor:
    if t.shape[0] == rows:
        return t
    return t[:rows]


def _resized(state: Tensor, more: Tensor, left: list[Tensor], rows: int) -> Tensor:
    """Return the first ``rows`` rows. Rows that it lacks come from ``more``. Those that are too
    many go into ``left``."""
    known = state.shape[0]
    if rows < known:
        left.append(state[rows:])
        return state[:rows]
    if rows > known:
        return torch.cat([state, more[known:rows]])
    return state


def _whole(state: Tensor, left: list[Tensor]) -> Tensor:
    """Return all rows of a state: the present ones, and those that have been left."""
    if not left:
        return state
    return torch.cat([state, *left[::-1]])
