"""Recurrent layers under :mod:`.sample_level`: one node of the tape for each layer and direction,
whose pass through time gives the factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from ..func.draws import without_draws
from ..rules.layers.unrolled import GATES, Cotangents, Unrolled, Weights
from ..rules.samples.factors import Dense, Outer, Tensor, Term
from ..rules.shape.packing import packed_again, padded
from ..seam.levels import scope_outside
from ..tape.metas import meta_of
from ..tape.nodes import Node
from ..torch_private.global_settings import is_autocast_enabled
from .uses import refuse_written, versions

aten = torch.ops.aten
_KINDS = {
    getattr(getattr(aten, kind), overload): kind for kind in GATES for overload in ("input", "data")
}


class _Settings(NamedTuple):
    """What ATen's recurrent layers take after the weights. A packed sequence has no
    ``batch_first``."""

    has_biases: bool
    layers: int
    dropout: float
    train: bool
    both_ways: bool
    batch_first: bool = False


class Call(NamedTuple):
    """A call of a recurrent layer. ``of_layers``: the weights of each layer and direction.
    ``sizes``: of a packed sequence, how many sequences have each time."""

    kind: str
    x: Any
    states: Sequence[Any]
    params: Sequence[Any]
    of_layers: Sequence[Weights]
    settings: _Settings
    sizes: Any

    @property
    def batch_dim(self) -> int:
        """The dimension of ``x`` with the sequences."""
        return 0 if self.sizes is not None or self.settings.batch_first else 1

    def sequences(self) -> tuple[Any, list[int]] | None:
        """Return ``x`` as (N, T, …), and how many sequences have each time. None if the states are
        of another number of sequences, which ATen is to refuse."""
        if self.sizes is None:
            x = self.x if self.settings.batch_first else self.x.transpose(0, 1)
            return x, [x.shape[0]] * x.shape[1]
        steps = self.sizes.tolist()
        if steps[0] != self.states[0].shape[1] or sum(steps) != self.x.shape[0]:
            return None
        return padded(self.x, steps, len(steps)), steps


def call_of(func: Any, args: Sequence[Any]) -> Call | None:
    """The call of ``aten.lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``. None if it is another call,
    or one that ATen is to refuse."""
    kind = _KINDS.get(func)
    if kind is None:
        return None
    packed = func is getattr(aten, kind).data
    x, *rest = args
    sizes, hx, params, *options = rest if packed else [None, *rest]
    settings = _Settings(*options)
    states = list(hx) if kind == "lstm" else [hx]
    of_layers = _weights(kind, params, settings, states)
    if of_layers is None:
        return None
    call = Call(kind, x, states, params, of_layers, settings, sizes)
    return call if _fits(call) else None


def run(level: Any, func: Any, args: Sequence[Any]) -> Any:
    """Return the results of a call of a recurrent layer. NotImplemented if it is another call, or
    one that ATen is to take apart or to refuse. ``level``: a :class:`.sample_level.Samples`."""
    call = call_of(func, args)
    if call is None or is_autocast_enabled() or not torch.is_grad_enabled():
        return NotImplemented
    if not all(map(level.is_shared, call.params)):
        return NotImplemented
    sequences = call.sequences()
    if sequences is None:
        return NotImplemented
    x, steps = sequences
    states, settings = call.states, call.settings
    each = [level.spread_once(s).unbind(0) for s in states]

    def direction(*given: Any) -> Any:
        return _layer(level, call.kind, *given, steps=steps)

    out, finals = in_layers(direction, x, list(zip(*each, strict=True)), call.of_layers, settings)
    if call.sizes is not None:
        out = packed_again(out, steps)
    elif not settings.batch_first:
        out = out.transpose(0, 1)
    return out, *(torch.stack(each) for each in zip(*finals, strict=True))


def in_layers(
    direction: Callable[..., Any],
    x: Any,
    initial: Sequence[Any],
    weights: Sequence[Weights],
    settings: _Settings,
) -> tuple[Any, list[Any]]:
    """Return the outputs of the last layer, and the last states of each layer and direction.
    ``direction(x, initial, weights, reverse)`` runs one of them."""
    directions = 1 + settings.both_ways
    finals: list[Any] = []
    for first in range(0, len(weights), directions):
        outs = []
        for reverse in range(directions):
            out, *final = direction(
                x, initial[first + reverse], weights[first + reverse], bool(reverse)
            )
            outs.append(out)
            finals.append(final)
        x = torch.cat(outs, -1) if settings.both_ways else outs[0]
        if settings.dropout and settings.train and first + directions < len(weights):
            x = torch.dropout(x, settings.dropout, True)
    return x, finals


def _layer(
    level: Any,
    kind: str,
    x: Any,
    initial: Sequence[Any],
    weights: Weights,
    reverse: bool,
    *,
    steps: list[int],
) -> Any:
    """Return the output of one direction of one layer, (N, T, p) for each sample, and its last
    states, (N, …)."""
    tape = level.tape
    given = [level.spread_once(a)._inner for a in (x, *initial)]
    with scope_outside(tape), without_draws(level):
        inner = [tape.lowered(a) for a in given]
        flat = [_in_rows(a) for a in inner]
        w = Weights._make(None if t is None else tape.lowered(t) for t in weights)
        counts = [n * level.size for n in steps]
        unrolled = Unrolled(kind, flat[0], flat[1:], w, counts, reverse)
        finals = [s.clone() for s in unrolled.final]
        outs = [_in_samples(t, level.size) for t in (unrolled.out, *finals)]
    node = _Layer(tape, tuple(map(level.source, given)), tuple(meta_of(t, t.dtype) for t in outs))
    node.unrolled, node.x, node.samples = unrolled, flat[0], level
    node.parameters = Weights._make(map(level.source, weights))
    node.versions = versions([*inner, *(t for t in w if t is not None)])
    return [level.wrap(tape.wrap(t, (node, i))) for i, t in enumerate(outs)]


class _Layer(Node):
    """The backward pass of one direction of one layer. It notes the factors of its weights at the
    level of the samples."""

    unseen = True
    __slots__ = ("parameters", "samples", "unrolled", "versions", "x")
    unrolled: Unrolled | None
    x: Tensor
    samples: Any
    parameters: Any
    versions: list[tuple[Tensor, int]]

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> Sequence[Any]:
        unrolled, self.unrolled = self.unrolled, None
        assert unrolled is not None  # a run has one pass, for all parameters
        refuse_written(self.versions, "an argument of a recurrent layer")
        size = self.samples.size
        out, *final = (None if g is None else _in_rows(g) for g in grads)
        found = unrolled.pull(out, final)

        def of_samples(t: Tensor) -> Tensor:
            return _in_samples(t, size).flatten(1, 2)

        terms = terms_of(self.parameters, found, self.x, of_samples, of_samples)
        self.samples.uses.add((edge, term) for edge, term in terms if edge is not None)
        of_x = None if self.edges[0] is None else found.z_x @ unrolled.weights.x
        return [None if g is None else _in_samples(g, size) for g in (of_x, *found.initial)]

    def release(self) -> None:
        self.unrolled, self.versions = None, []


def terms_of(
    own: Any,
    found: Cotangents,
    x: Tensor,
    gradient: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor],
) -> list[tuple[Any, Term]]:
    """Return the gradients of the weights, each with its entry in ``own``. ``gradient``, ``value``:
    make (S, T, …) of all sequences (B, T', …) of the samples."""
    before, of_x = value(found.before), value(x)
    z_x = gradient(found.z_x)
    z_h = z_x if found.z_h is found.z_x else gradient(found.z_h)
    total = z_x.sum(1)
    terms: list[tuple[Any, Term]] = [
        (own.x, Outer(z_x, of_x)),
        (own.h, Outer(z_h, before)),
        (own.b_x, Dense(total)),
    ]
    if own.b_h is not None:
        terms.append((own.b_h, Dense(total if z_h is z_x else z_h.sum(1))))
    if found.projected is not None and found.unprojected is not None:
        terms.append((own.projection, Outer(gradient(found.projected), value(found.unprojected))))
    return terms


def _in_rows(t: Tensor) -> Tensor:
    """(B, N, …) as (N * B, …). Those of one place of all samples lie together, so the first
    sequences are a slice."""
    return t.transpose(0, 1).flatten(0, 1)


def _in_samples(t: Tensor, size: int) -> Tensor:
    """Return the inverse of :func:`_in_rows`."""
    return t.reshape(-1, size, *t.shape[1:]).transpose(0, 1)


def _weights(
    kind: str, params: Sequence[Any], settings: _Settings, states: Sequence[Any]
) -> list[Weights] | None:
    """Return the weights of each layer and direction, None if their number is not that of the
    layers."""
    number = settings.layers * (1 + settings.both_ways)
    projected = kind == "lstm" and len(params) == number * (3 + 2 * settings.has_biases)
    per = 2 + 2 * settings.has_biases + projected
    if not number or len(params) != number * per:
        return None
    found = []
    for at in range(0, len(params), per):
        own = list(params[at : at + per])
        projection = own.pop() if projected else None
        b_x, b_h = own[2:] or (None, None)
        found.append(Weights(own[0], own[1], b_x, b_h, projection))
    return found


def _fits(call: Call) -> bool:
    """Return whether all shapes and dtypes are those of a layer. ATen refuses others in its own
    words."""
    x, states, weights = call.x, call.states, call.of_layers
    packed = call.sizes is not None
    if not x.is_floating_point() or not x.numel() or x.dim() != (2 if packed else 3):
        return False
    if not _are_alike(x, (*states, *chain.from_iterable(weights))):
        return False
    if any(s.dim() != 3 or s.shape[0] != len(weights) for s in states):
        return False
    n = states[0].shape[1]
    if not packed and x.shape[call.batch_dim] != n:
        return False
    of_layer = [s.shape[1:] for s in states]
    directions = 1 + call.settings.both_ways
    width = x.shape[-1]
    for first in range(0, len(weights), directions):
        layer = weights[first : first + directions]
        if not all(_fits_layer(GATES[call.kind], width, w, of_layer, n) for w in layer):
            return False
        width = directions * layer[-1].h.shape[1]
    return True


def _are_alike(x: Any, others: Iterable[Any]) -> bool:
    given = [t for t in others if t is not None]
    return all(t.dtype is x.dtype and t.device == x.device for t in given)


def _fits_layer(
    gates: int, width: int, w: Weights, states: Sequence[torch.Size], sequences: int
) -> bool:
    """Return whether the weights and states of one layer fit its input, which has ``width``
    features."""
    if w.h.dim() != 2:
        return False
    rows, out = w.h.shape
    hidden = rows // gates
    # only a projection makes the output smaller than the state of the gates
    if rows != gates * hidden or (w.projection is None and out != hidden):
        return False
    if w.x.shape != (rows, width):
        return False
    for bias in (w.b_x, w.b_h):
        if bias is not None and bias.shape != (rows,):
            return False
    if w.projection is not None and w.projection.shape != (out, hidden):
        return False
    return all(s == (sequences, n) for s, n in zip(states, (out, hidden), strict=False))
