"""Recurrent layers and cells of the eager session, recorded without a pass through the dispatcher
for each op of each step.

ATen decomposes ``gru``, ``rnn_tanh``, ``rnn_relu``, an ``lstm`` that oneDNN does not run, and their
cells into products and activations. As in ``composite``, the tape gets the same nodes as from these
parts. If nothing is recorded, torch's own kernels run the layer on the inner tensors.

Dropout between layers, layers without biases, projections and packed sequences go on to ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..rules.ops import Op, op_of
from ..rules.shape.packing import padded
from ..seam.level_mode import entering
from ..seam.levels import SCOPE, Value, innermost, levels_of, lifted, run_layer
from ..seam.memory import is_shell
from ..seam.passing_on import BELOW, SNAPSHOT, passing_on
from ..tape import view_history
from ..tape.nodes import OpNode
from ..torch_private.dispatcher import DispatchKey
from ..torch_private.mode_stacks import without_modes
from ..torch_private.native_autograd import increment_version
from .composite import (
    LIBRARY,
    NONE,
    UNFOLDING,
    Part,
    binary,
    flattened,
    known_part,
    plain_case,
    product,
    step,
)
from .tensor import SESSION, Tensor

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
_SPLIT, _UNBIND = op_of(aten.unsafe_split.Tensor), op_of(aten.unbind.int)
_STACK, _CAT = op_of(aten.stack.default), op_of(aten.cat.default)
_T, _UNSAFE_VIEW = op_of(aten.t.default), op_of(aten._unsafe_view.default)
_TRANSPOSE, _TRANSPOSE_ = op_of(aten.transpose.int), op_of(aten.transpose_.default)
_base: Any = torch.Tensor
_add_, _mul_ = _base.add_, _base.mul_

Weights = list[Part]  # weight of the input, weight of the state, and the bias of each
# (input or its gates, state, weights, whether it is the gates) -> the next state
Cell = Callable[[Part, Any, Weights, bool], Any]


def _unary(op: Op, x: Part, *rest: Any, kernel: Any = None) -> Part:
    return step(op, [x[0], *rest], () if x[1] is None else (x[1],), int(x[1] is not None), kernel)


def _sigmoid_(x: Part) -> Part:
    return _unary(_SIGMOID, x, kernel=_base.sigmoid_)


def _tanh_(x: Part) -> Part:
    return _unary(_TANH, x, kernel=_base.tanh_)


def _several(op: Op, x: Part, *rest: Any) -> list[Part]:
    """Run and record an op with a list of results."""
    outs = op.kernel(x[0], *rest)
    if x[1] is None:
        return [(o, None) for o in outs]
    node = OpNode.of(op, SESSION, (x[1],), tuple([(o.shape, o.dtype) for o in outs]), 1, None)
    node.save_unpacked([x[0], *rest], NONE, outs)
    return [(o, (node, i)) for i, o in enumerate(outs)]


def _joined(op: Op, parts: list[Part], dim: int) -> Part:
    """Run and record ``stack`` or ``cat``."""
    inner = [t for t, _ in parts]
    out = op.kernel(inner, dim)
    edges = tuple([e for _, e in parts])
    if edges.count(None) == len(edges):
        return out, None
    node = OpNode.of(op, SESSION, edges, ((out.shape, out.dtype),), 1, {0: len(parts)})
    node.save_unpacked([inner, dim], NONE, out)
    return out, (node, 0)


def _chunks(x: Part, number: int) -> list[Part]:
    return _several(_SPLIT, x, x[0].shape[1] // number, 1)


def _of_state(h: Part, weights: Weights) -> Part:
    return product(h, weights[1], weights[3])


def _gates(x: Part, weights: Weights, ready: bool) -> Part:
    """Return the input's part of the gates. ``ready``: ``x`` is that part already."""
    return x if ready else product(x, weights[0], weights[2])


def _gru_cell(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    of_input = _chunks(_gates(x, weights, ready), 3)
    of_state = _chunks(_of_state(h, weights), 3)
    reset = _sigmoid_(binary(_ADD, of_state[0], of_input[0], _add_))
    update = _sigmoid_(binary(_ADD, of_state[1], of_input[1], _add_))
    new = _tanh_(binary(_ADD, of_input[2], binary(_MUL, of_state[2], reset)))
    out = binary(_ADD, binary(_MUL, binary(_SUB, h, new), update), new, _add_)
    if not ready:
        # in a cell ATen's last product is in place, with a copy saved: its result has
        # one more version
        increment_version([out[0]])
    return out


def _total(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    return binary(_ADD, _of_state(h, weights), _gates(x, weights, ready), _add_)


def _tanh_cell(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    return _unary(_TANH, _total(x, h, weights, ready))


def _relu_cell(x: Part, h: Part, weights: Weights, ready: bool) -> Part:
    return _unary(_RELU, _total(x, h, weights, ready))


def _lstm_cell(
    x: Part, state: tuple[Part, Part], weights: Weights, ready: bool
) -> tuple[Part, Part]:
    parts = _chunks(_total(x, state[0], weights, ready), 4)
    # input, forget and output gate
    i, f, new, o = _sigmoid_(parts[0]), _sigmoid_(parts[1]), _tanh_(parts[2]), _sigmoid_(parts[3])
    c = binary(_ADD, binary(_MUL, f, state[1]), binary(_MUL, i, new), _add_)
    return binary(_MUL, o, _unary(_TANH, c)), c


_GATES: dict[Cell, int] = {_gru_cell: 3, _tanh_cell: 1, _relu_cell: 1, _lstm_cell: 4}


def _of_input(x: Part, weights: Weights) -> Part:
    """``linear`` of a whole sequence."""
    t, edge = x
    weight, bias = weights[0], weights[2]
    sizes = [*t.shape[:2], weight[0].shape[0]]
    if t.is_contiguous():
        return _unary(UNFOLDING, product(flattened(x), weight, bias), sizes)
    rows: Part = (t.reshape(-1, t.shape[2]), edge)
    whole = binary(_MM, rows, _unary(_T, weight))
    return binary(_ADD, _unary(_UNSAFE_VIEW, whole, sizes), bias, _add_)


def _layers(
    cell: Cell, x: Part, states: list[Any], weights: list[Weights], directions: int
) -> tuple[Part, list[Any]]:
    """Return the outputs of the last layer, with time as the first dimension, and the last state of
    every layer and direction."""
    last: list[Any] = []
    for first in range(0, len(weights), directions):
        outputs: list[Part] = []
        for backwards in range(directions):
            of_this = weights[first + backwards]
            gates = _several(_UNBIND, _of_input(x, of_this), 0)
            state, ys = states[first + backwards], []
            for gate in reversed(gates) if backwards else gates:
                state = cell(gate, state, of_this, True)
                ys.append(state[0] if cell is _lstm_cell else state)
            outputs.append(_joined(_STACK, ys[::-1] if backwards else ys, 0))
            last.append(state)
        x = outputs[0] if directions == 1 else _joined(_CAT, outputs, 2)
    return x, last


def _layer(cell: Cell, native: Any, x: Any, hx: Any, params: Any, options: tuple[Any, ...]) -> Any:
    """Return the results of a recurrent layer, None if it must go on to ATen. ``options``: ATen's
    arguments after ``params``."""
    biases, number, dropout, train, both, batch_first = options
    directions = 1 + both
    states = hx if cell is _lstm_cell else [hx]
    known = [known_part(t) for t in (x, *states, *params)]
    if (
        any(t is None for t in known)
        or not biases
        or (dropout and train)
        or len(params) != 4 * number * directions
    ):
        return None
    parts: list[Any] = known
    inner, of_x = parts[0]
    if (
        not all(t.device.type == "cpu" and t.dtype is inner.dtype for t, _ in parts)
        or inner.dim() != 3
        or not inner.numel()
    ):
        return None
    if cell is _lstm_cell and inner.dtype is not torch.float64:
        return None  # oneDNN runs it as a single op
    if any(
        s.dim() != 3 or s.shape[0] != number * directions for s, _ in parts[1 : 1 + len(states)]
    ):
        return None
    given = [parts[i : i + 4] for i in range(1 + len(states), len(parts), 4)]
    if any(
        w[0].dim() != 2 or u.dim() != 2 or w[0].shape[0] != u.shape[0] for w, (u, _), *_ in given
    ):
        return None
    if not any(edge is not None for _, edge in parts):
        held = [s for s, _ in parts[1 : 1 + len(states)]]
        outs = native(
            inner,
            held if cell is _lstm_cell else held[0],
            [t for w in given for t, _ in w],
            *options,
        )
        return tuple(SESSION.wrap(o) for o in outs)
    contiguous = (inner.transpose(0, 1) if batch_first else inner).is_contiguous()
    if not contiguous and (of_x is not None or any(w[0][1] is None for w in given[:directions])):
        return None  # ATen copies the input, and the nodes of that copy are not reproduced here
    sequence = _unary(_TRANSPOSE, parts[0], 0, 1) if batch_first else parts[0]
    split = [_several(_UNBIND, s, 0) for s in parts[1 : 1 + len(states)]]
    out, last = _layers(
        cell,
        sequence,
        list(zip(*split, strict=True)) if cell is _lstm_cell else split[0],
        given,
        directions,
    )
    finals = [list(s) for s in zip(*last, strict=True)] if cell is _lstm_cell else [last]
    ends = [SESSION.wrap(*_joined(_STACK, f, 0)) for f in finals]
    return (_batch_first(cell, out) if batch_first else SESSION.wrap(*out), *ends)


def _batch_first(cell: Cell, out: Part) -> Any:
    """Return the outputs of a layer with the batch as the first dimension. ATen returns a view for
    an LSTM, else it transposes in place."""
    if cell is _lstm_cell:
        viewed = SESSION.wrap(*_unary(_TRANSPOSE, out, 0, 1))
        view_history.mark_view(viewed, _TRANSPOSE, (SESSION.wrap(*out), 0, 1), {})
        return viewed
    inner, edge = _unary(_TRANSPOSE, out, 0, 1, kernel=_base.transpose_)
    if edge is not None:
        node: Any = edge[0]
        edge = node.as_written(_TRANSPOSE_, _TRANSPOSE), edge[1]
    return SESSION.wrap(inner, edge)


def _fit(cell: Cell, x: Any, states: Any, w: Any, u: Any) -> bool:
    """Return whether these are matrices of the shapes of a cell. ATen refuses others in its own
    words."""
    if any(t.dim() != 2 for t in (x, *states, w, u)):
        return False
    (rows, features), hidden = x.shape, u.shape[1]
    fit = all(s.shape == (rows, hidden) for s in states)
    return fit and w.shape == (_GATES[cell] * hidden, features) and u.shape[0] == w.shape[0]


def _single(cell: Cell, native: Any, x: Any, hx: Any, weights: tuple[Any, ...]) -> Any:
    """Return the results of a recurrent cell, None if it must go on to ATen."""
    states = hx if cell is _lstm_cell else [hx]
    known = [known_part(t) for t in (x, *states, *weights)]
    if any(t is None for t in known) or not _fit(cell, x, states, *weights[:2]):
        return None
    parts: list[Any] = known
    given, held = parts[1 + len(states) :], parts[1 : 1 + len(states)]
    if not any(edge is not None for _, edge in parts):
        inner = [s for s, _ in held]
        outs = native(
            parts[0][0], inner if cell is _lstm_cell else inner[0], *(w for w, _ in given)
        )
        return tuple(SESSION.wrap(o) for o in outs) if cell is _lstm_cell else SESSION.wrap(outs)
    out = cell(parts[0], tuple(held) if cell is _lstm_cell else held[0], given, False)
    return tuple(SESSION.wrap(*s) for s in out) if cell is _lstm_cell else SESSION.wrap(*out)


def _mine(tensors: Any) -> bool:
    return any(type(t) is Tensor for t in tensors)


def _owned(*args: Any) -> tuple[Any, ...]:
    """Return the arguments of a layer or cell. In the scope of transforms, plain tensors among them
    become values of these, and of the session beside its tensors. ATen adds products of the input
    in place to products of the state, and a value must not be written into a plain tensor."""
    value = entering()

    def own(a: Any) -> Any:
        if isinstance(a, (list, tuple)):
            return [own(x) for x in a]
        if value is not None:
            a = value(a)
        return lifted(a, -1) if isinstance(a, torch.Tensor) and not isinstance(a, Value) else a

    if SCOPE.levels:
        return tuple(map(own, args)) if innermost(args, None) is not None else args
    return args[0], _beside(args), *args[2:]


def _beside(args: tuple[Any, ...]) -> Any:
    """Return the states of a layer or cell: values of the session if another argument is one. Then
    products of a state are values, too."""
    hx = args[1]
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    if all(isinstance(s, Value) for s in states):
        return hx
    given = (t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)))
    if not any(isinstance(t, Value) and t._level is SESSION for t in given):
        return hx
    states = [s if isinstance(s, Value) else s + SESSION.wrap(s.new_zeros(())) for s in states]
    return states if isinstance(hx, (list, tuple)) else states[0]


def _is_batched(t: Any) -> bool:
    """Return whether ``t`` is a value of a vmap at any level."""
    return any(level.hidden for level in levels_of(t))


def _batched_alike(x: Any, hx: Any, params: Any) -> tuple[Any, Any]:
    """Return the input and the states, all of them batches if any argument is one. ATen writes
    products of the input into products of the states."""
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    batched = [t for t in (x, *states, *params) if _is_batched(t)]
    if not batched:
        return x, hx
    # the sum with it is a batch, with a copy of the tensor per element
    zero = sum(t.new_zeros(()) for t in batched)
    x, *states = (t + zero for t in (x, *states))
    return x, states if isinstance(hx, (list, tuple)) else states[0]


def _intercepted_layer(cell: Cell, native: Any, overload: Any) -> Callable[..., Any]:
    pass_on = passing_on(overload)

    def layer(keys: Any, x: Any, hx: Any, params: Any, *options: Any) -> Any:
        if (_mine(params) or type(x) is Tensor) and plain_case():
            result = _layer(cell, native, x, hx, params, options)
            if result is not None:
                return result
        x, hx, params = _owned(x, hx, params)
        result = run_layer(overload, (x, hx, params, *options))
        if result is not NotImplemented:
            return result
        return pass_on(keys & BELOW, *_batched_alike(x, hx, params), params, *options)

    return layer


def _intercepted_cell(cell: Cell, native: Any, overload: Any) -> Callable[..., Any]:
    pass_on = passing_on(overload)

    def single(
        keys: Any, x: Any, hx: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None
    ) -> Any:
        if b_x is not None and b_h is not None and _mine((x, w_x, w_h, b_x, b_h)) and plain_case():
            result = _single(cell, native, x, hx, (w_x, w_h, b_x, b_h))
            if result is not None:
                return result
        x, hx, *weights = _owned(x, hx, w_x, w_h, b_x, b_h)
        return pass_on(keys & BELOW, *_batched_alike(x, hx, weights), *weights)

    return single


def _with_memory(sizes: torch.Tensor) -> torch.Tensor:
    """Return the sizes of the steps of a packed sequence, as a plain tensor if they are a shell:
    ATen reads their memory."""
    if not is_shell(sizes):
        return sizes
    numbers = sizes.tolist()
    with without_modes():
        return torch.tensor(numbers, dtype=torch.int64)


def _intercepted_packed(overload: Any) -> Callable[..., Any]:
    pass_on = passing_on(overload)

    def packed(keys: Any, data: Any, sizes: Any, hx: Any, params: Any, *options: Any) -> Any:
        data, hx, params = _owned(data, hx, params)
        result = run_layer(overload, (data, sizes, hx, params, *options))
        if result is not NotImplemented:
            return result
        data, hx = _batched_alike(data, hx, params)
        return pass_on(keys & BELOW, data, _with_memory(sizes), hx, params, *options)

    return packed


def _pad_packed(
    keys: Any, data: Any, sizes: Any, batch_first: bool, value: float, length: int
) -> Any:
    """``_pad_packed_sequence`` as one indexing op. ATen writes into a plain buffer, which has no
    batch and no history."""
    # as pack_padded_sequence gives them for a tensor of the session
    if isinstance(sizes, Value) and sizes._level is SESSION:
        sizes = sizes._inner
    sizes = _with_memory(sizes)
    if not isinstance(data, Value) or isinstance(sizes, Value):
        return _pass_on_pad_packed(keys & BELOW, data, sizes, batch_first, value, length)
    steps = sizes.tolist()
    out = padded(data, steps, max(length, len(steps)), value)
    lengths = torch.tensor([sum(k > i for k in steps) for i in range(steps[0])])
    return out if batch_first else out.transpose(0, 1), lengths


def _with_states_as_given(overload: Any) -> None:
    """Let torch's decomposition of ``lstm`` return last states of the shapes of the first ones. In
    torch 2.12 they have one dimension too many."""
    theirs = overload.py_kernels[DispatchKey.CompositeImplicitAutograd]

    def run(x: Any, hx: Any, *rest: Any, **named: Any) -> Any:
        out, *states = theirs(x, hx, *rest, **named)
        pairs = zip(states, hx, strict=True)
        return out, *(
            last if last.dim() == first.dim() else last.reshape(first.shape)
            for last, first in pairs
        )

    for key in (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd):
        overload.py_kernels[key] = run
        overload._uncache_dispatch(key)


_with_states_as_given(aten.lstm.input)
_pass_on_pad_packed = passing_on(aten._pad_packed_sequence.default)

LIBRARY.impl("_pad_packed_sequence", _pad_packed, SNAPSHOT.name, with_keyset=True)
for _name, _cell in {
    "gru": _gru_cell,
    "rnn_tanh": _tanh_cell,
    "rnn_relu": _relu_cell,
    "lstm": _lstm_cell,
}.items():
    _native: Any = getattr(torch, _name)
    LIBRARY.impl(
        f"{_name}.input",
        _intercepted_layer(_cell, _native, getattr(aten, _name).input),
        SNAPSHOT.name,
        with_keyset=True,
    )
    _native = getattr(torch, f"{_name}_cell")
    LIBRARY.impl(
        f"{_name}_cell",
        _intercepted_cell(_cell, _native, getattr(aten, f"{_name}_cell").default),
        SNAPSHOT.name,
        with_keyset=True,
    )
    LIBRARY.impl(
        f"{_name}.data",
        _intercepted_packed(getattr(aten, _name).data),
        SNAPSHOT.name,
        with_keyset=True,
    )
