"""Run recurrent layers under :mod:`.sample_level`, one node of the tape for each layer and
direction, whose pass through time gives the factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from ..func.draws import without_draws
from ..rules.layers.unrolled import GATES, Cotangents, Unrolled, Weights
from ..rules.samples.factors import Dense, Outer, Tensor, Term
from ..rules.shape.packing import packed_again, padded
from ..seam.scope import scope_outside
from ..tape.metas import meta_of
from ..tape.nodes import Node
from ..torch_private.global_settings import is_autocast_enabled
from .uses import refuse_written, versions

aten = torch.ops.aten
_KINDS = {getattr(aten, kind).input: kind for kind in GATES}
_KINDS |= {getattr(aten, kind).data: kind for kind in GATES}  # of packed sequences


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
    """A call of a recurrent layer."""

    kind: str
    x: Any
    states: Sequence[Tensor]
    params: Sequence[Any]
    # The weights of each layer and direction.
    of_layers: Sequence[Weights]
    settings: _Settings
    # How many sequences of a packed sequence have each time.
    sizes: Any

    @property
    def batch_dim(self) -> int:
        """Return the dimension of ``x`` with the sequences."""
        is_packed = self.sizes is not None
        if is_packed or self.settings.batch_first:
            return 0
        return 1

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


def call_of(func: object, args: Sequence[Any]) -> Call | None:
    """Return the call of ``aten.lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``. None if it is
    another call, or one that ATen is to refuse."""
    kind = _KINDS.get(func)
    if kind is None:
        return None
    x, *rest = args
    sizes = None
    if func is getattr(aten, kind).data:  # of a packed sequence
        sizes = rest.pop(0)
    hx, params, *options = rest
    settings = _Settings(*options)
    states = [hx]
    if kind == "lstm":
        states = list(hx)
    of_layers = _weights(kind, params, settings, states)
    if of_layers is None:
        return None
    call = Call(kind, x, states, params, of_layers, settings, sizes)
    if not _fits(call):
        return None
    return call


def run(level: Any, func: object, args: Sequence[object]) -> Any:
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
    # first states of each layer and direction
    each = [level.spread_once(state).unbind(0) for state in states]

    def direction(*arguments: Any) -> Any:
        """Run one layer in one direction, as one node."""
        return _layer(level, call.kind, *arguments, steps=steps)

    out, finals = in_layers(direction, x, list(zip(*each, strict=True)), call.of_layers, settings)
    # in the layout of the input: packed, or with the time first
    if call.sizes is not None:
        out = packed_again(out, steps)
    elif not settings.batch_first:
        out = out.transpose(0, 1)
    return out, *(map(torch.stack, zip(*finals, strict=True)))


def in_layers(
    direction: Callable[..., Any],
    x: Tensor,
    initial: Sequence[object],
    weights: Sequence[Weights],
    settings: _Settings,
) -> tuple[Any, list[Any]]:
    """Return the outputs of the last layer, and the last states of each layer and direction.
    ``direction(x, initial, weights, reverse)`` runs one of them."""
    directions = 1 + settings.both_ways
    finals: list[Any] = []
    for first in range(0, len(weights), directions):
        outputs = []
        for reverse in range(directions):
            out, *final = direction(
                x, initial[first + reverse], weights[first + reverse], bool(reverse)
            )
            outputs.append(out)
            finals.append(final)
        x = torch.cat(outputs, -1) if settings.both_ways else outputs[0]
        # between layers, and not behind the last one
        if settings.dropout and settings.train and first + directions < len(weights):
            x = _dropped(x, settings.dropout)
    return x, finals


def _dropped(x: Tensor, probability: float) -> Tensor:
    """Return ``x``, (N, T, …), after dropout. The draws of a batch of sequences that have one
    length are those of ATen, which has the time in front."""
    by_time = torch.dropout(x.transpose(0, 1).contiguous(), probability, True)
    return by_time.transpose(0, 1)


def _layer(
    level: Any,
    kind: str,
    value: object,
    initial: Sequence[object],
    weights: Weights,
    reverse: bool,
    *,
    steps: list[int],
) -> object:
    """Return the output of one direction of one layer, (N, T, p) for each sample, and its last
    states, (N, …)."""
    tape = level.tape
    arguments = [level.spread_once(argument)._inner for argument in (value, *initial)]
    # below both levels, with the samples as more sequences
    with scope_outside(tape), without_draws(level):
        inner = list(map(tape.lowered, arguments))
        flat = list(map(_in_rows, inner))
        plain_weights = Weights._make(map(tape.lowered, weights))
        counts = [sequences * level.size for sequences in steps]
        unrolled = Unrolled(kind, flat[0], flat[1:], plain_weights, counts, reverse)
        # the way back reads the last states, so the user gets copies
        finals = [state.clone() for state in unrolled.final]
        outputs = [_in_samples(tensor, level.size) for tensor in (unrolled.out, *finals)]
    node = _Layer(
        tape,
        tuple(map(level.source, arguments)),
        tuple(meta_of(output, output.dtype) for output in outputs),
    )
    node.unrolled, node.x, node.samples = unrolled, flat[0], level
    node.parameters = Weights._make(map(level.source, weights))
    node.versions = versions([*inner, *tensors_among(plain_weights)])
    return [level.wrap(tape.wrap(output, (node, index))) for index, output in enumerate(outputs)]


def tensors_among(optional: Iterable[object]) -> list[Any]:
    """Return those that are there: a layer may have no biases and no projection."""
    return [tensor for tensor in optional if tensor is not None]


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

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Note the factors of the weights, and return the gradients of the input and first
        states."""
        unrolled, self.unrolled = self.unrolled, None
        assert unrolled is not None  # a run has one pass, for all parameters
        refuse_written(self.versions, "an argument of a recurrent layer")
        size = self.samples.size
        out, *final = _map_gradients(_in_rows, grads)
        cotangents = unrolled.pull(out, final)

        def in_samples(tensor: Tensor) -> Tensor:
            return _in_samples(tensor, size)

        def of_samples(tensor: Tensor) -> Tensor:
            return in_samples(tensor).flatten(1, 2)

        terms = terms_of(self.parameters, cotangents, self.x, of_samples, of_samples)
        self.samples.uses.add((edge, term) for edge, term in terms if edge is not None)
        of_x = None
        if self.edges[0] is not None:
            of_x = cotangents.z_x @ unrolled.weights.x
        return _map_gradients(in_samples, (of_x, *cotangents.initial))

    def release(self) -> None:
        """Drop what the backward pass reads."""
        self.unrolled, self.versions = None, []


def _map_gradients(
    function: Callable[[Tensor], Tensor], grads: Iterable[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Apply ``function`` to each gradient. None, of what nothing uses, stays None."""
    return [None if grad is None else function(grad) for grad in grads]


def terms_of(
    own: Weights,
    cotangents: Cotangents,
    x: Tensor,
    gradient: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor],
) -> list[tuple[object, Term]]:
    """Return the gradients of the weights, each with its entry in ``own``.

    ``gradient``, ``value``: turn tensors of all sequences, (S, T, …), into those of the samples,
    (B, T', …).
    """
    # gates are linear in input and state: factors of the gradients, and sums over time for biases
    before, of_x = value(cotangents.before), value(x)
    z_x = z_h = gradient(cotangents.z_x)
    total_x = total_h = z_x.sum(1)
    if cotangents.z_h is not cotangents.z_x:
        z_h = gradient(cotangents.z_h)
    terms: list[tuple[Any, Term]] = [
        (own.x, Outer(z_x, of_x)),
        (own.h, Outer(z_h, before)),
        (own.b_x, Dense(total_x)),
    ]
    if own.b_h is not None:
        if z_h is not z_x:
            total_h = z_h.sum(1)
        terms.append((own.b_h, Dense(total_h)))
    if cotangents.projected is not None and cotangents.unprojected is not None:
        terms.append(
            (own.projection, Outer(gradient(cotangents.projected), value(cotangents.unprojected)))
        )
    return terms


def _in_rows(tensor: Tensor) -> Tensor:
    """Return a tensor (B, N, …) as (N * B, …). The rows of one place in all samples are next to
    each other, so the first sequences are a slice."""
    return tensor.transpose(0, 1).flatten(0, 1)


def _in_samples(tensor: Tensor, size: int) -> Tensor:
    """Return the inverse of :func:`_in_rows`."""
    return tensor.reshape(-1, size, *tensor.shape[1:]).transpose(0, 1)


def _weights(
    kind: str, params: Sequence[torch.Tensor], settings: _Settings, states: Sequence[torch.Tensor]
) -> list[Weights] | None:
    """Return the weights of each layer and direction, None if their number is not that of the
    layers."""
    number = settings.layers * (1 + settings.both_ways)
    projected = kind == "lstm" and len(params) == number * (3 + 2 * settings.has_biases)
    n_params = 2 + 2 * settings.has_biases + projected
    if not number or len(params) != number * n_params:
        return None
    layers = []
    for at in range(0, len(params), n_params):
        own = list(params[at : at + n_params])
        projection = None
        if projected:
            projection = own.pop()
        # two weights, then two biases or none
        b_x, b_h = own[2:] or (None, None)
        layers.append(Weights(own[0], own[1], b_x, b_h, projection))
    return layers


def _fits(call: Call) -> bool:
    """Return whether all shapes and dtypes are those of a layer. ATen refuses others in its own
    words."""
    return _fits_input(call) and _fit_layers(call)


def _fits_input(call: Call) -> bool:
    """Return whether the input of a layer goes with its first states."""
    x, states, weights = call.x, call.states, call.of_layers
    is_packed = call.sizes is not None
    rank = 3
    if is_packed:
        rank = 2  # the sequences of each time are rows
    if not x.is_floating_point() or not x.numel() or x.dim() != rank:
        return False
    if not _are_alike(x, (*states, *chain.from_iterable(weights))):
        return False
    if any(state.dim() != 3 or state.shape[0] != len(weights) for state in states):
        return False
    # the first states of a packed sequence are compared with its sizes, in `Call.sequences`
    return is_packed or bool(x.shape[call.batch_dim] == states[0].shape[1])


def _fit_layers(call: Call) -> bool:
    """Return whether each layer takes what the one before it returns."""
    weights, gates = call.of_layers, GATES[call.kind]
    of_layer = [state.shape[1:] for state in call.states]
    sequences = call.states[0].shape[1]
    directions = 1 + call.settings.both_ways
    width = call.x.shape[-1]
    for first in range(0, len(weights), directions):
        layer = weights[first : first + directions]
        if not all(_fits_layer(gates, width, own, of_layer, sequences) for own in layer):
            return False
        # both directions are concatenated
        width = directions * layer[-1].h.shape[1]
    return True


def _are_alike(value: Tensor, others: Iterable[object]) -> bool:
    """Return whether all tensors among ``others`` have the dtype and device of ``value``."""
    return all(
        tensor.dtype is value.dtype and tensor.device == value.device
        for tensor in tensors_among(others)
    )


def _fits_layer(
    gates: int, width: int, weights: Weights, states: Sequence[torch.Size], sequences: int
) -> bool:
    """Return whether the weights and states of one layer fit its input, which has ``width``
    features."""
    if weights.h.dim() != 2:
        return False
    # the gates lie one below the other; a projection makes the output narrower than the state
    rows, out = weights.h.shape
    hidden = rows // gates
    if rows != gates * hidden or weights.x.shape != (rows, width):
        return False
    if any(bias.shape != (rows,) for bias in tensors_among((weights.b_x, weights.b_h))):
        return False
    if not _fits_projection(weights.projection, out, hidden):
        return False
    # the second state, the memory of an LSTM, is not projected; other kinds have one state
    pairs = zip(states, (out, hidden), strict=False)
    return all(state == (sequences, features) for state, features in pairs)


def _fits_projection(projection: torch.Tensor | None, out: int, hidden: int) -> bool:
    """Return whether a layer with ``hidden`` gates returns ``out`` features."""
    # only a projection makes the output smaller than the state of the gates
    if projection is None:
        return out == hidden
    return bool(projection.shape == (out, hidden))
