"""Recurrent layers under :mod:`.sample_level`: one node of the tape for each layer and direction,
whose pass through time gives the factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..func.draws import without_draws
from ..rules.layers.unrolled import GATES, Cotangents, Unrolled, Weights
from ..rules.samples.factors import Dense, Outer, Tensor, Term
from ..rules.shape.packing import packed_again, padded
from ..seam.levels import Value, scope_outside
from ..tape.metas import meta_of
from ..tape.nodes import Node
from ..tape.values import edge_of
from ..torch_private.global_settings import is_autocast_enabled
from .uses import refuse_written, versions

aten = torch.ops.aten
_KINDS = {getattr(aten, kind).input: kind for kind in GATES} | {
    getattr(aten, kind).data: kind for kind in GATES
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
    if of_layers is None or not _fits(kind, x, states, of_layers, settings, packed):
        return None
    return Call(kind, x, states, params, of_layers, settings, sizes)


def run(level: Any, func: Any, args: Sequence[Any]) -> Any:
    """Return the results of a call of a recurrent layer. NotImplemented if it is another call, or
    one that ATen is to take apart or to refuse. ``level``: a :class:`.sample_level.Samples`."""
    call = call_of(func, args)
    if (
        call is None
        or is_autocast_enabled()
        or not torch.is_grad_enabled()
        or not all(map(level.is_shared, call.params))
    ):
        return NotImplemented
    x, states, settings = call.x, call.states, call.settings
    if call.sizes is not None:
        steps = call.sizes.tolist()
        if steps[0] != states[0].shape[1] or sum(steps) != x.shape[0]:
            return NotImplemented
        x = padded(x, steps, len(steps))
    else:
        x = x if settings.batch_first else x.transpose(0, 1)
        steps = [x.shape[0]] * x.shape[1]
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
        outs = [
            _in_samples(t, level.size) for t in (unrolled.out, *(s.clone() for s in unrolled.final))
        ]
    edges = tuple(edge_of(a) if isinstance(a, Value) and a._level is tape else None for a in given)
    node = _Layer(tape, edges, tuple(meta_of(t, t.dtype) for t in outs))
    node.unrolled, node.x, node.samples = unrolled, flat[0], level
    node.parameters = Weights._make(
        edge_of(t) if isinstance(t, Value) and t._level is tape else None for t in weights
    )
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
        terms = terms_of(
            self.parameters, found, self.x, *[lambda t: _in_samples(t, size).flatten(1, 2)] * 2
        )
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


def _fits(
    kind: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Weights],
    settings: _Settings,
    packed: bool,
) -> bool:
    """Return whether all shapes and dtypes are those of a layer. ATen refuses others in its own
    words."""
    directions = 1 + settings.both_ways
    tensors = [x, *states, *(t for w in weights for t in w if t is not None)]
    if (
        any(t.dtype is not x.dtype or t.device != x.device for t in tensors)
        or not x.is_floating_point()
        or not x.numel()
    ):
        return False
    if x.dim() != (2 if packed else 3) or any(
        s.dim() != 3 or s.shape[0] != len(weights) for s in states
    ):
        return False
    n = states[0].shape[1]
    if not packed and x.shape[0 if settings.batch_first else 1] != n:
        return False
    width = x.shape[-1]
    for i, w in enumerate(weights):
        gates, out = w.h.shape if w.h.dim() == 2 else (0, 0)
        hidden = gates // GATES[kind]
        shapes = [
            (w.x, (gates, width)),
            (w.h, (GATES[kind] * hidden, out)),
            (w.b_x, (gates,)),
            (w.b_h, (gates,)),
        ]
        shapes += [(w.projection, (out, hidden))]
        shapes += [(s[i], (n, size)) for s, size in zip(states, (out, hidden), strict=False)]
        if any(t is not None and tuple(t.shape) != shape for t, shape in shapes) or (
            w.projection is None and out != hidden
        ):
            return False
        if (i + 1) % directions == 0:
            width = out * directions
    return True
