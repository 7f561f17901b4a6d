"""Run linear and recurrent layers of a batch that is followed, each as one node of the tape instead
of one for each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..rules.layers.unrolled import Unrolled, Weights
from ..rules.ops import DIFFERENTIABLE
from ..rules.samples.factors import Outer, Tensor, of_bias
from ..rules.samples.places import Place
from ..rules.shape.packing import packed_again
from ..seam.levels import Value
from ..session.tensor import SESSION
from ..tape.metas import meta_of
from ..tape.nodes import Edge, Node
from ..tape.running import current_graph_is_retained, unfollowed
from ..tape.saved import FREED
from ..tape.values import edge_of
from ..torch_private.global_settings import is_autocast_enabled
from . import linear as linear_layer
from . import recurrent_nodes as recurrent_layer
from .uses import NO_SECOND, Use, refuse_written, versions


def _place(session: Any, tensor: object) -> Place | None:
    """Return the place of the samples in ``tensor``, or None."""
    state = session.state_of(tensor)
    if isinstance(state, Place):
        return state
    return None


def _is_weight(session: Any, tensor: Any) -> bool:
    """Return whether ``tensor`` is computed of parameters alone, or is a constant."""
    if not isinstance(tensor, Value):
        return tensor is None or not tensor.requires_grad
    if tensor._level is not SESSION:
        return False
    return session.is_parameter(tensor) or (
        session.state(tensor) is None and edge_of(tensor) is None
    )


def _source(tensor: object) -> Edge | None:
    """Return the edge of ``tensor`` on the tape. None for a constant."""
    if isinstance(tensor, Value):
        return edge_of(tensor)
    return None


def _can_be_one_node() -> bool:
    """Return whether a layer may run as one node. Autocast changes the dtypes of its parts."""
    return torch.is_grad_enabled() and not is_autocast_enabled()


def run(session: object, func: object, args: Sequence[object]) -> Any:
    """Return the results of a call of such a layer with samples and parameters. NotImplemented for
    any other call."""
    if func is linear_layer.LINEAR:
        return _linear(session, *args)
    return _recurrent(session, func, args)


def _can_follow_linear(
    session: Any, place: Place, value: Any, weight: object, bias: object
) -> bool:
    """Return whether a linear layer has shared weights, and samples in ``place`` of its input."""
    if not _can_be_one_node():
        return False
    if not (_is_weight(session, weight) and _is_weight(session, bias)):
        return False
    if value.dtype not in DIFFERENTIABLE or not linear_layer.fits(value, weight, bias):
        return False
    # in the last dimension the features would be those of all samples
    return bool(place.dim < value.dim() - 1 or session.alone(place))


def _linear(session: Any, value: object, weight: object, bias: object = None) -> object:
    """Return a linear layer of samples and parameters, or NotImplemented."""
    place = _place(session, value)
    if place is None or not _can_follow_linear(session, place, value, weight, bias):
        return NotImplemented
    # without histories: the node below is the only one that the tape gets
    inner = list(map(SESSION.lowered, (value, weight, bias)))
    out = torch.nn.functional.linear(*inner)
    edges = list(map(_source, (value, weight, bias)))
    # nothing that it computes from has a gradient
    if edges.count(None) == len(edges):
        result = SESSION.wrap(out)
    else:
        node = _Linear(SESSION, (edges[0],), (meta_of(out, out.dtype),))
        node.operands, node.parameters, node.session, node.place = inner, edges[1:], session, place
        node.versions = versions(inner[:2])  # the backward pass does not read the bias
        result = SESSION.wrap(out, (node, 0))
    session.put(result, place)
    return result


class _Linear(Node):
    """The backward pass of a linear layer, which gives the factors of its parameters."""

    unseen = True
    __slots__ = ("operands", "parameters", "place", "session", "versions")
    operands: list[Any] | None
    parameters: list[Edge | None]
    session: Any
    place: Place
    versions: list[tuple[Tensor, int]]

    def apply(
        self, grads: list[torch.Tensor | None], wanted: Any, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Note the gradients of weight and bias, and return the gradient of the input."""
        if create_graph:
            raise RuntimeError(NO_SECOND)
        if self.operands is None:
            raise RuntimeError(FREED)
        refuse_written(self.versions, "an argument of linear")
        x, weight, _ = self.operands
        (g,) = grads
        if g is None:
            return (None,)
        # a frozen layer has no parameter to note a use of
        if self.parameters.count(None) < len(self.parameters):
            self.session.note_uses(self._uses(g, x))
        input_is_wanted = wanted is None or wanted[0]
        if self.edges[0] is None or not input_is_wanted:
            return (None,)
        return (torch.matmul(g, weight.conj()),)

    def _uses(self, grad: Tensor, x: Tensor) -> list[Use]:
        """Return the gradients of weight and bias for each sample, in factors."""
        to_weight, to_bias = self.parameters
        left = linear_layer.in_vectors(self.session.of_samples(grad, self.place))
        uses: list[Use] = []
        if to_weight is not None:
            right = linear_layer.in_vectors(self.place.split(x, self.session.size))
            uses.append((to_weight, Outer(left, right.conj())))
        if to_bias is not None:
            uses.append((to_bias, of_bias(left)))
        return uses

    def release(self) -> None:
        """Drop what the backward pass reads."""
        self.operands, self.versions = None, []


def _place_of_sequences(session: Any, call: recurrent_layer.Call) -> Place | None:
    """Return the place of the samples in the input. None unless each sequence belongs to one."""
    place = _place(session, call.x)
    if place is None or session.alone(place) or place.dim == call.batch_dim:
        return place
    return None


def _recurrent(session: Any, func: object, args: Sequence[object]) -> object:
    """Return a recurrent layer of samples and parameters, or NotImplemented."""
    call = recurrent_layer.call_of(func, args)
    if call is None or not _can_be_one_node():
        return NotImplemented
    place = _place_of_sequences(session, call)
    if place is None or not all(_is_weight(session, weight) for weight in call.params):
        return NotImplemented
    # (N, T, …), and how many sequences have each time
    sequences = call.sequences()
    if sequences is None:
        return NotImplemented
    x, steps = sequences
    each = [state.unbind(0) for state in call.states]

    def direction(*arguments: Any) -> Any:
        """Run one layer in one direction, as one node."""
        return _direction(session, call.kind, *arguments, steps=steps)

    initial = list(zip(*each, strict=True))
    out, finals = recurrent_layer.in_layers(direction, x, initial, call.of_layers, call.settings)
    # in the layout of the input; packed rows lie where those of the input do
    if call.sizes is not None:
        with unfollowed():
            out = packed_again(out, steps)
        session.put(out, place)
    elif not call.settings.batch_first:
        out = out.transpose(0, 1)
    return out, *(map(torch.stack, zip(*finals, strict=True)))


def _direction(
    session: Any,
    kind: str,
    value: object,
    initial: Sequence[object],
    weights: Weights,
    reverse: bool,
    *,
    steps: list[int],
) -> list[torch.Tensor]:
    """Return the output of one direction of one layer, (S, T, p), and its last states, (S, …), of S
    sequences."""
    arguments = [value, *initial]
    inner = list(map(SESSION.lowered, arguments))
    plain_weights = Weights._make(map(_detach, weights))
    unrolled = Unrolled(kind, inner[0], inner[1:], plain_weights, steps, reverse)
    # the backward pass reads the last states, so the user gets copies
    outputs = [unrolled.out, *(state.clone() for state in unrolled.final)]
    place = session.state(value)
    node = _Recurrent(
        SESSION,
        tuple(map(_source, arguments)),
        tuple(meta_of(output, output.dtype) for output in outputs),
    )
    node.unrolled, node.x, node.session, node.place = unrolled, inner[0], session, place
    node.parameters = Weights._make(map(_source, weights))
    node.versions = versions([*inner, *recurrent_layer.tensors_among(plain_weights)])
    results = [SESSION.wrap(output, (node, index)) for index, output in enumerate(outputs)]
    for result in results:
        session.put(result, place)
    return results


def _detach(weight: object) -> Tensor | None:
    """Return a weight without its history. A layer may have no biases and no projection."""
    if weight is None:
        return None
    return SESSION.lowered(weight).detach()  # type: ignore[no-any-return]


class _Recurrent(Node):
    """The backward pass of one direction of one recurrent layer, which gives the
    factors of its weights."""

    unseen = True
    __slots__ = ("parameters", "place", "session", "unrolled", "versions", "x")
    unrolled: Unrolled | None
    x: Tensor
    session: Any
    place: Place
    parameters: Any
    versions: list[tuple[Tensor, int]]

    def apply(
        self, grads: list[torch.Tensor | None], wanted: Any, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Note the gradients of the weights, and return those of the input and of the first
        states."""
        if create_graph:
            raise RuntimeError(NO_SECOND)
        unrolled, again = self.unrolled, current_graph_is_retained()
        if unrolled is None:
            raise RuntimeError(FREED)
        refuse_written(self.versions, "an argument of a recurrent layer")
        cotangents = unrolled.pull(grads[0], grads[1:], again)
        session = self.session

        def gradient(tensor: Tensor) -> Tensor:
            """Return a cotangent with the samples in front."""
            return session.of_samples(tensor, self.place).flatten(1, 2)  # type: ignore[no-any-return]

        def value(tensor: Tensor) -> Tensor:
            """Return a tensor of the forward pass with the samples in front."""
            return self.place.split(tensor, session.size).flatten(1, 2)

        terms = recurrent_layer.terms_of(self.parameters, cotangents, self.x, gradient, value)
        session.note_uses((edge, term) for edge, term in terms if edge is not None)
        input_is_wanted = wanted is None or wanted[0]
        if self.edges[0] is None or not input_is_wanted:
            return [None, *cotangents.initial]
        return [cotangents.z_x @ unrolled.weights.x, *cotangents.initial]

    def release(self) -> None:
        """Drop what the backward pass reads."""
        self.unrolled, self.versions = None, []
