"""Intercepts ``linear``, ``matmul`` and ``layer_norm`` of the eager session before ATen
decomposes them.

ATen decomposes these ops above the dispatch key of ``__torch_dispatch__``, so each part would
arrive there on its own, with intermediate values that no user sees. At the key
``PythonTLSSnapshot`` the whole call arrives first. The tape gets the same nodes as from the parts,
so names, order and formulas are torch's. The passes through the dispatcher and the intermediate
values are saved. There is a second reason for ``matmul``: ATen decomposes it differently if a
factor requires grad, and it does not see that flag of our tensors.

The parts are listed here and in no record, because they follow ATen's code and not the definition
of the ops. ``tests/runtime/session/test_composite.py`` compares the nodes with torch's.

Only the plain case is recorded here: dense tensors of the eager session and no mode that needs to
see the parts. Any other call goes on to ATen. The flag is read for values of every grad level, also
those of a trace: without it a traced ``linear`` of a transposed batch would be another product than
the eager one, with other roundings.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ..facts.lock import probe
from ..func.draws import without_draws
from ..rules.ops import Op, op_of
from ..seam.levels import SCOPE, run_layer, scope_outside
from ..seam.passing_on import BELOW, SNAPSHOT, passing_on
from ..seam.shells import VALUES
from ..tape import view_history
from ..tape.foreign import recorded_by_torch
from ..tape.nodes import Edge, OpNode
from ..tape.running import current_stand_in
from ..tape.saved import HOOKS
from ..tape.values import GradValue, edge_of
from ..torch_private.global_settings import is_autocast_enabled
from ..torch_private.mode_stacks import number_of_dispatch_modes
from .tensor import SESSION, Tensor

aten = torch.ops.aten
_T, _VIEW, _UNSAFE_VIEW = (
    op_of(aten.t.default),
    op_of(aten.view.default),
    op_of(aten._unsafe_view.default),
)
# how ATen gives the result of `linear` of a stack with a bias the shape of the stack
UNFOLDING = {"ViewBackward0": _VIEW, "UnsafeViewBackward0": _UNSAFE_VIEW}[
    probe("linear.stack with bias", "memory and node").rpartition(" ")[2]
]
_MV, _MM, _ADDMM = op_of(aten.mv.default), op_of(aten.mm.default), op_of(aten.addmm.default)
_pass_on_linear, _pass_on_matmul, _pass_on_layer_norm = (
    passing_on(getattr(aten, name).default) for name in ("linear", "matmul", "layer_norm")
)
_LINEAR = aten.linear.default
_LAYER_NORM = op_of(aten.native_layer_norm.default)
NONE: dict[str, Any] = {}
Part = tuple[torch.Tensor, Edge | None]  # the inner tensor of a value, and its edge
_grad_enabled, _inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


def plain_case() -> bool:
    """Return whether only the session's tape has to see the parts: no hooks, scopes, modes,
    autocast, stand-in or inference mode."""
    modes = HOOKS.innermost() or SCOPE.levels or number_of_dispatch_modes() or is_autocast_enabled()
    return current_stand_in() is None and not modes and (_grad_enabled() or not _inference())


def known_part(a: Any) -> tuple[torch.Tensor, Edge | None] | None:
    """Return the inner tensor and the edge of a dense tensor of the eager session. The edge is None
    without grad mode. A plain tensor is its own inner tensor, without an edge. None for any other
    argument."""
    kind = type(a)
    if kind is Tensor:
        edge = None
        if _grad_enabled():
            if recorded_by_torch(a):
                return None
            edge = a._edge
            if edge is None or a._view is not None:
                edge = edge_of(a)
        a = a._inner
        if type(a) is not torch.Tensor:
            return None
    elif kind is torch.Tensor and not a.requires_grad:
        # with requires_grad torch would record the calls made here
        edge = None
    else:
        return None
    if a.layout is not torch.strided or a.is_nested:
        return None
    return a, edge


def step(
    op: Op, inner: list[Any], edges: tuple[Edge | None, ...], wanted: int, kernel: Any = None
) -> Part:
    """Run ``op`` and record it. Returns the result and its edge. ``wanted``: a bit for each
    argument that has one of the ``edges``. Without any bit the op is not recorded. ``kernel``: an
    in-place form of the op, if the value of its first argument is no longer needed."""
    out = (kernel or op.kernel)(*inner)
    if not wanted:
        return out, None
    node = OpNode.of(op, SESSION, edges, ((out.shape, out.dtype),), wanted, None)
    node.save_unpacked(inner, NONE, out)
    return out, (node, 0)


def product(x: Part, weight: Part, bias: Part) -> Part:
    """``addmm(bias, x, weight.t())``: the parts of ``linear`` of a matrix."""
    of_bias, of_x = bias[1], x[1]
    transposed, of_weight = step(_T, [weight[0]], (weight[1],), weight[1] is not None)
    wanted = (of_bias is not None) | (of_x is not None) << 1 | (of_weight is not None) << 2
    edges: Any = (of_bias, of_x, of_weight)
    if wanted != 7:
        edges = tuple(e for e in edges if e is not None)
    return step(_ADDMM, [bias[0], x[0], transposed], edges, wanted)


def flattened(x: Part) -> Part:
    """``x`` viewed as a matrix. Its last dimension stays."""
    shape = x[0].shape
    return step(_VIEW, [x[0], [prod(shape[:-1]), shape[-1]]], (x[1],), x[1] is not None)


def _linear(x: Any, weight: Any, bias: Any) -> object:
    """:func:`product`, between two views if ``x`` is no matrix. None if ATen would use other
    ops."""
    known = known_part(x), known_part(weight), known_part(bias)
    if any(t is None for t in known):
        return None
    x, weight, bias = known
    shape = x[0].shape
    if (
        weight[0].dim() != 2
        or bias[0].dim() != 1
        or not shape
        or not (len(shape) == 2 or x[0].is_contiguous())
    ):
        return None
    if len(shape) == 2:
        return SESSION.wrap(*product(x, weight, bias))
    out, edge = product(flattened(x), weight, bias)
    whole = SESSION.wrap(out, edge)
    sizes = [*shape[:-1], out.shape[1]]
    result = SESSION.wrap(*step(UNFOLDING, [out, sizes], (edge,), edge is not None))
    if UNFOLDING is _VIEW:
        view_history.mark_view(result, _VIEW, (whole, sizes), {})
    return result


def _linear_without_bias(x: Any, weight: Any) -> object:
    """``mm(x, weight.t())``: the parts of ``linear`` of a matrix without a bias. None for
    other arguments."""
    known = known_part(x), known_part(weight)
    if any(t is None for t in known):
        return None
    x, weight = known
    if x[0].dim() != 2 or weight[0].dim() != 2:
        return None
    return SESSION.wrap(*binary(_MM, x, step(_T, [weight[0]], (weight[1],), weight[1] is not None)))


def binary(op: Op, x: Part, y: Part, kernel: object = None) -> Part:
    """Run an op of two tensors. It is recorded if one of them requires grad."""
    of_x, of_y = x[1], y[1]
    inner = [x[0], y[0]]
    if of_x is not None and of_y is not None:
        return step(op, inner, (of_x, of_y), 3, kernel)
    if of_x is not None:
        return step(op, inner, (of_x,), 1, kernel)
    if of_y is not None:
        return step(op, inner, (of_y,), 2, kernel)
    return step(op, inner, (), 0, kernel)


def _folded(x: Any, y: object) -> Any:
    """Return a stack of matrices ``x`` times a matrix or vector ``y`` that requires grad, as one
    product. None for other arguments."""
    known = known_part(y)
    if known is None or known[1] is None or not 1 <= known[0].dim() <= 2:
        return None
    y, of_y = known
    known = known_part(x)
    if known is None or len(shape := known[0].shape) < 3:
        return None
    rows = [prod(shape[:-1]), shape[-1]]
    dense, of_x = known
    if dense.is_contiguous():
        flat: Any = step(_VIEW, [dense, rows], (of_x,), of_x is not None)
    else:
        flat = known_part(x.reshape(rows))
    op = _MM if y.dim() == 2 else _MV
    out, edge = binary(op, flat, (y, of_y))
    return SESSION.wrap(*step(_UNSAFE_VIEW, [out, [*shape[:-1], *y.shape[1:]]], (edge,), True))


def _matmul(x: Any, y: Any) -> Any:
    """``matmul`` in the case in which ATen folds a stack because the other factor requires
    grad. Without folding, the gradient of that factor would be a stack that has to be summed.
    None in other cases."""
    if y.dim() <= 2:
        return _folded(x, y)
    known = known_part(x)
    if known is None or known[1] is None or known[0].dim() > 2:
        return None
    if known[0].dim() < 2:
        return _folded(y.mT, x)
    result = _folded(y.mT, x.t())
    if result is None:
        return None
    return result.mT.contiguous()


def _layer_norm(x: object, sizes: object, weight: object, bias: object, eps: float) -> Any:
    """Return the first result of ``native_layer_norm``. The others are not used. None if an
    argument is no :data:`Part`."""
    inner: list[Any] = [x, sizes, weight, bias, eps]
    edges: tuple[Edge, ...] = ()
    wanted = 0
    for i in (0, 2, 3):
        if inner[i] is not None:
            known = known_part(inner[i])
            if known is None:
                return None
            inner[i], edge = known
            if edge is not None:
                edges += (edge,)
                wanted |= 1 << i
    outs = _LAYER_NORM.kernel(*inner)
    if not wanted:
        return SESSION.wrap(outs[0])
    metas = tuple([(o.shape, o.dtype) for o in outs])
    node = OpNode.of(_LAYER_NORM, SESSION, edges, metas, wanted, None)
    node.save_unpacked(inner, NONE, outs)
    return SESSION.wrap(outs[0], (node, 0))


def _dispatched_linear(keys: Any, x: object, weight: object, bias: object = None) -> object:
    if (type(x) is Tensor or type(weight) is Tensor or type(bias) is Tensor) and plain_case():
        result = _linear_without_bias(x, weight) if bias is None else _linear(x, weight, bias)
        if result is not None:
            return result
    elif (
        type(x) in VALUES
        and (result := run_layer(_LINEAR, (x, weight, bias))) is not NotImplemented
    ):
        return result
    return _pass_on_linear(keys & BELOW, x, weight, bias)


def _dispatched_matmul(keys: Any, x: object, y: object) -> object:
    if (type(x) is Tensor or type(y) is Tensor) and plain_case():
        result = _matmul(x, y)
        if result is not None:
            return result
    elif _are_batched_alike(x, y):
        return _batched_matmul(x, y)
    # the casts are a call of their own, after which the product arrives here again
    if not (is_autocast_enabled() and _casts_next(keys)):
        folded = _folded_matmul(x, y)
        if folded is not None:
            return folded
    return _pass_on_matmul(keys & BELOW, x, y)


def _folded_matmul(x: Any, y: Any) -> object:
    """Return the product by calls on the folded stack, where ATen would fold. Else None."""
    if x.dim() >= y.dim():
        return _folded_calls(x, y) if _folds(x, y) else None
    if not _folds(y, x):
        return None
    if x.dim() == 1:
        return _folded_calls(y.mT, x)
    return _folded_calls(y.mT, x.t()).mT.contiguous()


def _are_batched_alike(x: Any, y: Any) -> bool:
    """Return whether the arguments are values of one vmap and stacks of the same sizes."""
    if type(x) not in VALUES or type(y) not in VALUES:
        return False
    if x._level is not y._level or not x._level.hidden:
        return False
    of_x, of_y = x.shape, y.shape
    if len(of_x) != len(of_y) or len(of_x) < 2:
        return False
    return bool(of_x[-1] == of_y[-2]) and of_x[:-2] == of_y[:-2]


def _batched_matmul(x: Any, y: Any) -> object:
    """Return the product of two batches as one of the stacks that they are. ATen would take it
    apart first, and the batch rule each part."""
    level = x._level
    with scope_outside(level), without_draws(level):
        return level.wrap(torch.matmul(x._inner, y._inner))


def _casts_next(keys: Any) -> bool:
    """Return whether autocast is the next to handle a call with these dispatch keys."""
    return "Autocast" in str((keys & BELOW).highestPriorityTypeId())


def _folds(stack: Any, factor: object) -> bool:
    """Return whether ATen would fold because ``factor`` requires grad: it asks for torch's flag, in
    any grad mode."""
    return (
        isinstance(factor, GradValue)
        and 1 <= factor.dim() <= 2
        and stack.dim() >= 3
        and factor.requires_grad
    )


def _folded_calls(x: Any, y: Any) -> Any:
    """:func:`_folded` for values of any grad level, as calls that every level sees."""
    shape = x.shape
    rows = x.reshape(prod(shape[:-1]), shape[-1])
    out = aten.mm.default(rows, y) if y.dim() == 2 else aten.mv.default(rows, y)
    return aten._unsafe_view.default(out, [*shape[:-1], *y.shape[1:]])


def _dispatched_layer_norm(
    keys: Any,
    x: object,
    sizes: object,
    weight: object = None,
    bias: object = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> object:
    if (type(x) is Tensor or type(weight) is Tensor or type(bias) is Tensor) and plain_case():
        result = _layer_norm(x, sizes, weight, bias, eps)
        if result is not None:
            return result
    return _pass_on_layer_norm(keys & BELOW, x, sizes, weight, bias, eps, cudnn_enable)


LIBRARY = torch.library.Library("aten", "IMPL")  # its registrations last as long as this object
for _name, _handler in (
    ("linear", _dispatched_linear),
    ("matmul", _dispatched_matmul),
    ("layer_norm", _dispatched_layer_norm),
):
    # the handlers get the calls of every tensor subclass that handles its own calls, ours or not
    LIBRARY.impl(_name, _handler, SNAPSHOT.name, with_keyset=True)
