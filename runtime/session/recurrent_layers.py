"""Records recurrent layers and cells of the eager session, without a pass through the dispatcher
for each op of each step.

ATen decomposes ``gru``, ``rnn_tanh``, ``rnn_relu``, an ``lstm`` that oneDNN does not run, and their
cells into products and activations. As in ``composite``, the tape gets the same nodes as from these
parts. If nothing is recorded, torch's own kernels run the layer on the inner tensors.

Dropout between layers, layers without biases, projections and packed sequences go on to ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch

from ..rules.ops import op_of
from ..rules.shape.packing import padded
from ..seam.dispatch import innermost, run_layer
from ..seam.level_mode import entering
from ..seam.levels import Value, levels_of
from ..seam.memory import is_shell
from ..seam.passing_on import BELOW, SNAPSHOT, passing_on
from ..seam.scope import SCOPE, lifted
from ..tape import view_history
from ..torch_private.dispatcher import DispatchKey, DispatchKeySet, OpOverload
from ..torch_private.mode_stacks import without_modes
from ..torch_private.pytrees import pytree
from .composite import LIBRARY, Part, known_part, plain_case
from .recurrent_steps import (
    CELLS,
    STACK,
    UNBIND,
    Cell,
    Weights,
    join,
    run_layers,
    run_listing,
    run_unary,
)
from .tensor import SESSION, Tensor

aten = torch.ops.aten
_TRANSPOSE, _TRANSPOSE_ = op_of(aten.transpose.int), op_of(aten.transpose_.default)
_base: Any = torch.Tensor


class Options(NamedTuple):
    """The arguments of a layer after its weights, in ATen's order."""

    has_biases: bool
    layers: int
    dropout: float
    training: bool
    bidirectional: bool
    batch_first: bool

    @property
    def runs(self) -> int:
        """Count the passes over the sequence: each has a state and four weights of its own."""
        return self.layers * self.directions

    @property
    def directions(self) -> int:
        """Count the passes of one layer over the sequence."""
        if self.bidirectional:
            return 2
        return 1


@dataclass(frozen=True)
class _LayerCall:
    """A call of a recurrent layer whose tensors are all known parts."""

    cell: Cell
    options: Options
    x: Part
    states: list[Part]
    weights: list[Weights]  # of each layer and direction

    @property
    def parts(self) -> list[Part]:
        """List the tensors of the call, in ATen's order."""
        return [self.x, *self.states, *chain.from_iterable(self.weights)]

    def is_covered(self) -> bool:
        """Return whether the steps below are those of ATen for these tensors. ATen refuses what
        does not fit in its own words."""
        inner = self.x[0]
        if inner.dim() != 3 or not inner.numel():
            return False
        # on other devices torch has kernels for a whole layer
        if not all(_is_on_cpu(tensor, inner.dtype) for tensor, _ in self.parts):
            return False
        if self.cell.is_paired and inner.dtype is not torch.float64:
            return False  # oneDNN runs it as a single op
        # a state has three dimensions, the first one for the layers and directions
        if any(state.shape[:-2] != (self.options.runs,) for state, _ in self.states):
            return False
        # the two products are added
        return all(_are_of_equal_gates(weight[0][0], weight[1][0]) for weight in self.weights)

    def has_history(self) -> bool:
        """Return whether the call is to be recorded."""
        return any(edge is not None for _, edge in self.parts)

    def copies_input(self) -> bool:
        """Return whether ATen records a copy of the input, whose nodes are not reproduced here."""
        inner, edge = self.x
        in_time_order = inner
        if self.options.batch_first:
            in_time_order = inner.transpose(0, 1)
        if in_time_order.is_contiguous():
            return False
        # without a gradient of the weight ATen does not fold the input to a matrix, see `composite`
        first_layer = self.weights[: self.options.directions]
        return edge is not None or any(weights[0][1] is None for weights in first_layer)

    def run_native(self, native: Any) -> tuple[torch.Tensor, ...]:
        """Run torch's function ``native`` on the inner tensors, and record nothing."""
        states = self.cell.join_states([state for state, _ in self.states])
        params = [tensor for tensor, _ in chain.from_iterable(self.weights)]
        outputs = native(self.x[0], states, params, *self.options)
        return tuple(map(SESSION.wrap, outputs))

    def record(self) -> tuple[Any, ...]:
        """Run the parts of the layer, and record each."""
        cell, x, batch_first = self.cell, self.x, self.options.batch_first
        if batch_first:
            x = run_unary(_TRANSPOSE, x, 0, 1)
        split = [run_listing(UNBIND, state, 0) for state in self.states]
        # one state per layer and direction; of an LSTM the pair of its hidden part and memory
        starts = cell.join_states(split)
        if cell.is_paired:
            starts = list(zip(*split, strict=True))
        out, ends = run_layers(cell, x, starts, self.weights, self.options.directions)
        last = [ends]
        if cell.is_paired:
            last = list(map(list, zip(*ends, strict=True)))
        finals = [SESSION.wrap(*join(STACK, part, 0)) for part in last]
        if batch_first:
            return _move_batch_first(cell, out), *finals
        return SESSION.wrap(*out), *finals


def _is_on_cpu(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype is dtype


def _are_of_equal_gates(weight: torch.Tensor, of_state: torch.Tensor) -> bool:
    """Return whether the weights of an input and of a state are matrices of as many rows."""
    return weight.dim() == of_state.dim() == 2 and weight.shape[0] == of_state.shape[0]


def _known_parts(tensors: Iterable[object]) -> list[Part] | None:
    """Return the known part of each tensor, None if one has none."""
    parts: list[Part] = []
    for tensor in tensors:
        part = known_part(tensor)
        if part is None:
            return None
        parts.append(part)
    return parts


def _known_call(
    cell: Cell, value: Any, hx: object, params: Any, options: Options
) -> _LayerCall | None:
    """Return the call of a layer, None if one of its tensors is no known part or an option is not
    covered here."""
    states = cell.list_states(hx)
    parts = _known_parts((value, *states, *params))
    if parts is None or not options.has_biases:
        return None
    if options.dropout and options.training:
        return None
    # four of each pass over the sequence; with a projection there are five
    if len(params) != 4 * options.runs:
        return None
    first = 1 + len(states)
    weights = [parts[index : index + 4] for index in range(first, len(parts), 4)]
    return _LayerCall(cell, options, parts[0], parts[1:first], weights)


def _run_layer(
    cell: Cell, native: object, value: object, hx: object, params: object, options: tuple[Any, ...]
) -> tuple[object, ...] | None:
    """Return the results of a recurrent layer, None if it must go on to ATen. ``options``: ATen's
    arguments after ``params``."""
    call = _known_call(cell, value, hx, params, Options(*options))
    if call is None or not call.is_covered():
        return None
    if not call.has_history():
        return call.run_native(native)
    if call.copies_input():
        return None
    return call.record()


def _move_batch_first(cell: Cell, out: Part) -> Any:
    """Return the outputs of a layer with the batch as the first dimension. ATen returns a view for
    an LSTM, else it transposes in place."""
    if cell.is_paired:
        viewed = SESSION.wrap(*run_unary(_TRANSPOSE, out, 0, 1))
        view_history.mark_view(viewed, _TRANSPOSE, (SESSION.wrap(*out), 0, 1), {})
        return viewed
    inner, edge = run_unary(_TRANSPOSE, out, 0, 1, kernel=_base.transpose_)
    # torch names the node of the in-place op otherwise: TransposeBackward1
    if edge is not None:
        node: Any = edge[0]
        edge = node.as_written(_TRANSPOSE_, _TRANSPOSE), edge[1]
    return SESSION.wrap(inner, edge)


def _fit_cell(cell: Cell, value: Any, states: Any, weight: Any, of_state: Any) -> bool:
    """Return whether these are matrices of the shapes of a cell. ATen refuses others in its own
    words."""
    if any(tensor.dim() != 2 for tensor in (value, *states, weight, of_state)):
        return False
    (rows, features), hidden = value.shape, of_state.shape[1]
    if any(state.shape != (rows, hidden) for state in states):
        return False
    fits: bool = weight.shape == (cell.gates * hidden, features)
    return fits and of_state.shape[0] == weight.shape[0]


def _run_cell(
    cell: Cell, native: Any, value: object, hx: object, weights: tuple[object, ...]
) -> object:
    """Return the results of a recurrent cell, None if it must go on to ATen.

    ``native``: torch's own function, which runs a cell that is not recorded. ``weights``: two
    weights, then two biases.
    """
    states = cell.list_states(hx)
    parts = _known_parts((value, *states, *weights))
    if parts is None or not _fit_cell(cell, value, states, *weights[:2]):
        return None
    of_states, of_weights = parts[1 : 1 + len(states)], parts[1 + len(states) :]
    if any(edge is not None for _, edge in parts):
        out = cell.advance(parts[0], cell.join_states(of_states), of_weights, False)
        results = [SESSION.wrap(*part) for part in cell.list_states(out)]
    else:
        inner = cell.join_states([state for state, _ in of_states])
        outputs = native(parts[0][0], inner, *(weight for weight, _ in of_weights))
        results = list(map(SESSION.wrap, cell.list_states(outputs)))
    return cell.join_states(tuple(results))


def _has_tensor_of_session(tensors: Any) -> bool:
    # one of a subclass goes on to ATen, see `known_part`
    return any(type(tensor) is Tensor for tensor in tensors)


def _adopt_arguments(cell: Cell, *args: object) -> tuple[object, ...]:
    """Return the arguments of a layer or cell. In the scope of transforms, plain tensors among them
    become values of these. Next to tensors of the session they become values of the session. ATen
    adds products of the input in place to products of the state, and a value must not be written
    into a plain tensor."""
    value = entering()

    def adopt(argument: object) -> Any:
        if isinstance(argument, (list, tuple)):
            return list(map(adopt, argument))
        if value is not None:
            argument = value(argument)
        # -1, the number of no level: it becomes a value of every transform in scope
        if isinstance(argument, torch.Tensor) and not isinstance(argument, Value):
            return lifted(argument, -1)
        return argument

    if SCOPE.levels:
        if innermost(args, None) is None:
            return args
        return tuple(map(adopt, args))
    return args[0], _adopt_states(cell, args), *args[2:]


def _adopt_states(cell: Cell, args: tuple[object, ...]) -> object:
    """Return the states of a layer or cell: values of the session if another argument is one. Then
    products of a state are values, too."""
    hx = args[1]
    states = cell.list_states(hx)
    if all(isinstance(state, Value) for state in states):
        return hx
    if not any(
        isinstance(tensor, Value) and tensor._level is SESSION
        for tensor in pytree.tree_leaves(args)
    ):
        return hx
    for index, state in enumerate(states):
        if not isinstance(state, Value):
            states[index] = state + SESSION.wrap(state.new_zeros(()))
    return cell.join_states(states)


def _is_batched(tensor: object) -> bool:
    """Return whether ``tensor`` is a value of a vmap at any level, whose batch is hidden."""
    return any(level.hidden for level in levels_of(tensor))


def _batched_alike(cell: Cell, x: Any, hx: object, params: Any) -> tuple[object, object]:
    """Return the input and the states, all of them batches if any argument is one. ATen writes
    products of the input into products of the states."""
    states = cell.list_states(hx)
    batched = list(filter(_is_batched, (x, *states, *params)))
    if not batched:
        return x, hx
    # the sum with it is a batch at each of their levels, with a copy of the tensor per element
    zero = sum(tensor.new_zeros(()) for tensor in batched)
    x, *states = (tensor + zero for tensor in (x, *states))
    return x, cell.join_states(states)


def _layer_kernel(cell: Cell, native: object, overload: OpOverload) -> Callable[..., object]:
    """Return the kernel of a layer, which records its parts or passes the call on.

    ``native``: torch's function for the layer. ``overload``: the op that the kernel is for.
    """
    pass_on = passing_on(overload)

    def layer(
        keys: DispatchKeySet, x: object, hx: object, params: object, *options: object
    ) -> object:
        """Record the parts, let a level run the layer, or pass it on, whichever comes first."""
        if (_has_tensor_of_session(params) or type(x) is Tensor) and plain_case():
            result = _run_layer(cell, native, x, hx, params, options)
            if result is not None:
                return result
        x, hx, params = _adopt_arguments(cell, x, hx, params)
        # a level may run the layer as one, such as that of per_sample_grads
        result = run_layer(overload, (x, hx, params, *options))
        if result is not NotImplemented:
            return result
        return pass_on(keys & BELOW, *_batched_alike(cell, x, hx, params), params, *options)

    return layer


def _cell_kernel(cell: Cell, native: object, overload: OpOverload) -> Callable[..., object]:
    """Return the kernel of a cell, which records its parts or passes the call on. Arguments as for
    :func:`_layer_kernel`."""
    pass_on = passing_on(overload)

    def single(
        keys: DispatchKeySet,
        x: object,
        hx: object,
        w_x: object,
        w_h: object,
        b_x: object = None,
        b_h: object = None,
    ) -> object:
        """Record the parts of a cell with biases, or pass it on."""
        weights: Any = (w_x, w_h, b_x, b_h)
        has_biases = b_x is not None and b_h is not None
        if has_biases and _has_tensor_of_session((x, *weights)) and plain_case():
            result = _run_cell(cell, native, x, hx, weights)
            if result is not None:
                return result
        x, hx, *weights = _adopt_arguments(cell, x, hx, *weights)
        return pass_on(keys & BELOW, *_batched_alike(cell, x, hx, weights), *weights)

    return single


def _read_sizes(sizes: torch.Tensor) -> torch.Tensor:
    """Return the sizes of the steps of a packed sequence, as a plain tensor if they are a shell:
    ATen reads their memory."""
    if not is_shell(sizes):
        return sizes
    numbers = sizes.tolist()
    with without_modes():
        return torch.tensor(numbers, dtype=torch.int64)


def _packed_kernel(cell: Cell, overload: OpOverload) -> Callable[..., object]:
    """Return the kernel of a layer for packed sequences, which a level runs or ATen."""
    pass_on = passing_on(overload)

    def packed(
        keys: DispatchKeySet,
        data: object,
        sizes: torch.Tensor,
        hx: object,
        params: object,
        *options: object,
    ) -> object:
        """Let a level run the layer, or pass it on."""
        data, hx, params = _adopt_arguments(cell, data, hx, params)
        result = run_layer(overload, (data, sizes, hx, params, *options))
        if result is not NotImplemented:
            return result
        data, hx = _batched_alike(cell, data, hx, params)
        return pass_on(keys & BELOW, data, _read_sizes(sizes), hx, params, *options)

    return packed


def _pad_packed(
    keys: DispatchKeySet,
    data: object,
    sizes: torch.Tensor,
    batch_first: bool,
    value: float,
    length: int,
) -> object:
    """Run ``_pad_packed_sequence`` as one indexing op. ATen writes into a plain buffer, which has
    no batch and no history."""
    # pack_padded_sequence returns the sizes as values for a tensor of the session
    if isinstance(sizes, Value) and sizes._level is SESSION:
        sizes = sizes._inner
    sizes = _read_sizes(sizes)
    if not isinstance(data, Value) or isinstance(sizes, Value):
        return _pass_on_pad_packed(keys & BELOW, data, sizes, batch_first, value, length)
    steps = sizes.tolist()
    out = padded(data, steps, max(length, len(steps)), value)
    # the sequences are sorted by falling length, and a step has those that are at least as long
    lengths = []
    for index in range(steps[0]):
        lengths.append(sum(size > index for size in steps))
    if not batch_first:
        out = out.transpose(0, 1)
    return out, torch.tensor(lengths)


def _keep_shapes_of_states(overload: OpOverload) -> None:
    """Let torch's decomposition of ``lstm`` return last states of the shapes of the first ones. In
    torch 2.12 they have one dimension too many."""
    theirs = overload.py_kernels[DispatchKey.CompositeImplicitAutograd]

    def run(x: object, hx: Any, *rest: object, **named: object) -> Any:
        """Run torch's decomposition, and give each last state the rank of the first one."""
        out, *states = theirs(x, hx, *rest, **named)
        for index, (last, first) in enumerate(zip(states, hx, strict=True)):
            if last.dim() != first.dim():
                states[index] = last.reshape(first.shape)
        return out, *states

    # torch registers its decomposition under both keys, and caches what a call has found
    for key in (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd):
        overload.py_kernels[key] = run
        overload._uncache_dispatch(key)


_keep_shapes_of_states(aten.lstm.input)
_pass_on_pad_packed = passing_on(aten._pad_packed_sequence.default)

# a call arrives at this key before ATen decomposes it
LIBRARY.impl("_pad_packed_sequence", _pad_packed, SNAPSHOT.name, with_keyset=True)
for _name, _cell in CELLS.items():
    _native: Any = getattr(torch, _name)
    LIBRARY.impl(
        f"{_name}.input",
        _layer_kernel(_cell, _native, getattr(aten, _name).input),
        SNAPSHOT.name,
        with_keyset=True,
    )
    _native = getattr(torch, f"{_name}_cell")
    LIBRARY.impl(
        f"{_name}_cell",
        _cell_kernel(_cell, _native, getattr(aten, f"{_name}_cell").default),
        SNAPSHOT.name,
        with_keyset=True,
    )
    LIBRARY.impl(
        f"{_name}.data",
        _packed_kernel(_cell, getattr(aten, _name).data),
        SNAPSHOT.name,
        with_keyset=True,
    )
