"""Composite ops of the eager session that Python hears of before ATen takes them apart.

ATen composes ``linear``, ``matmul`` and ``layer_norm`` above the key at which Python hears of a call, and each part then comes to
``__torch_dispatch__`` on its own, with values in between that nobody sees. Here the whole call comes first. The tape gets the very nodes
that it would get from the parts, so names, order and formulas stay torch's; what is left out are passes through the dispatcher and values.
``matmul`` asks besides whether a factor requires grad, which of our tensors ATen does not know.

The parts stand here and in no record: a record says what one op is, and this is what ATen's own code makes of three of them.
``tests/runtime/session/test_composite.py`` compares the nodes with torch's.

Everything but the plain case (dense tensors of the eager session, recorded, no mode that wants to see the parts) goes on as if this
module were not there; so does all with torch before 2.13.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch._C import DispatchKey

from ..rules.ops import Op, op_of
from ..seam.levels import SCOPE
from ..tape import view_history
from ..tape.foreign import recorded_by_torch
from ..tape.nodes import Edge, OpNode
from ..tape.running import current_dual
from ..tape.saved import HOOKS
from ..tape.values import edge_of
from .tensor import SESSION, Tensor

aten = torch.ops.aten
_T, _VIEW, _UNSAFE_VIEW = op_of(aten.t.default), op_of(aten.view.default), op_of(aten._unsafe_view.default)
_MV, _MM, _ADDMM = op_of(aten.mv.default), op_of(aten.mm.default), op_of(aten.addmm.default)
_pass_on_linear, _pass_on_matmul, _pass_on_layer_norm = (
    getattr(aten, name).default._handle.redispatch_boxed for name in ("linear", "matmul", "layer_norm")
)  # without the frame of `OpOverload.redispatch`
_LAYER_NORM = op_of(aten.native_layer_norm.default)
BELOW = torch._C._dispatch_keyset_full_after(DispatchKey.PythonTLSSnapshot)
NONE: dict[str, Any] = {}
Part = tuple[torch.Tensor, Edge | None]  # what a tensor holds, and where its gradient goes
_grad_enabled, _inference = torch.is_grad_enabled, torch.is_inference_mode_enabled
_active_modes = torch._C._len_torch_dispatch_stack
_autocast = torch._C._is_any_autocast_enabled


def plain_case() -> bool:
    """Whether nobody but the session's tape wants to see the parts."""
    modes = HOOKS.stack or SCOPE.levels or _active_modes() or _autocast()
    return current_dual() is None and not modes and (_grad_enabled() or not _inference())


def known_part(a: Any) -> tuple[torch.Tensor, Edge | None] | None:
    """What a dense tensor of the eager session holds and where its gradient goes, if calls are recorded; a plain tensor has no gradient.
    None for any other."""
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
    elif kind is torch.Tensor and not a.requires_grad:  # else torch would record what is done with it here
        edge = None
    else:
        return None
    return None if a.layout is not torch.strided or a.is_nested else (a, edge)


def step(op: Op, inner: list[Any], edges: tuple[Edge | None, ...], wanted: int, kernel: Any = None) -> Part:
    """Run ``op`` and record it: its result and the edge to that. ``wanted`` has a bit for each argument with one of the ``edges``; none
    for an op that is not to be recorded. ``kernel``: an in-place form of the op, for an argument whose value nobody needs any more."""
    out = (kernel or op.kernel)(*inner)
    if not wanted:
        return out, None
    node = OpNode.of(op, SESSION, edges, ((out.shape, out.dtype),), wanted, None)
    node.save_unpacked(inner, NONE, out)
    return out, (node, 0)


def product(x: Part, weight: Part, bias: Part) -> Part:
    """``addmm(bias, x, weight.t())``, as ATen composes ``linear`` of a matrix."""
    of_bias, of_x = bias[1], x[1]
    transposed, of_weight = step(_T, [weight[0]], (weight[1],), weight[1] is not None)
    wanted = (of_bias is not None) | (of_x is not None) << 1 | (of_weight is not None) << 2
    edges: Any = (of_bias, of_x, of_weight)
    return step(_ADDMM, [bias[0], x[0], transposed], edges if wanted == 7 else tuple(e for e in edges if e is not None), wanted)


def flattened(x: Part) -> Part:
    """A view as a matrix of the last dimension's rows."""
    shape = x[0].shape
    return step(_VIEW, [x[0], [prod(shape[:-1]), shape[-1]]], (x[1],), x[1] is not None)


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    """:func:`product`, between two views where ``x`` is no matrix; None if ATen would do otherwise."""
    known = known_part(x), known_part(weight), known_part(bias)
    if None in known:
        return None
    x, weight, bias = known
    shape = x[0].shape
    if weight[0].dim() != 2 or bias[0].dim() != 1 or not shape or not (len(shape) == 2 or x[0].is_contiguous()):
        return None
    if len(shape) == 2:
        return SESSION.wrap(*product(x, weight, bias))
    out, edge = product(flattened(x), weight, bias)
    whole = SESSION.wrap(out, edge)
    sizes = [*shape[:-1], out.shape[1]]
    result = SESSION.wrap(*step(_VIEW, [out, sizes], (edge,), edge is not None))
    view_history.mark_view(result, _VIEW, (whole, sizes), {})
    return result


def _linear_without_bias(x: Any, weight: Any) -> Any:
    """``mm(x, weight.t())``, as ATen composes ``linear`` of a matrix; None elsewhere."""
    known = known_part(x), known_part(weight)
    if None in known:
        return None
    x, weight = known
    if x[0].dim() != 2 or weight[0].dim() != 2:
        return None
    return SESSION.wrap(*binary(_MM, x, step(_T, [weight[0]], (weight[1],), weight[1] is not None)))


def binary(op: Op, x: Part, y: Part, kernel: Any = None) -> Part:
    """An op of two tensors, recorded if one of them requires grad."""
    of_x, of_y = x[1], y[1]
    if of_x is None:
        return step(op, [x[0], y[0]], () if of_y is None else (of_y,), 0 if of_y is None else 2, kernel)
    return step(op, [x[0], y[0]], (of_x,) if of_y is None else (of_x, of_y), 1 if of_y is None else 3, kernel)


def _folded(x: Any, y: Any) -> Any:
    """A stack of matrices ``x`` times a matrix or vector ``y`` that requires grad, as one product; None if it is not that."""
    known = known_part(y)
    if known is None or known[1] is None or not 1 <= known[0].dim() <= 2:
        return None
    y, of_y = known
    known = known_part(x)
    if known is None or len(shape := known[0].shape) < 3:
        return None
    rows = [prod(shape[:-1]), shape[-1]]
    dense, of_x = known
    flat = step(_VIEW, [dense, rows], (of_x,), of_x is not None) if dense.is_contiguous() else known_part(x.reshape(rows))
    if flat is None:
        return None
    x, of_x = flat
    recorded: Any = ((of_x, of_y), 3) if of_x is not None else ((of_y,), 2)
    out, edge = step(_MM if y.dim() == 2 else _MV, [x, y], *recorded)
    return SESSION.wrap(*step(_UNSAFE_VIEW, [out, [*shape[:-1], *y.shape[1:]]], (edge,), True))


def _matmul(x: Any, y: Any) -> Any:
    """``matmul`` where ATen folds a stack for the sake of a factor that requires grad, whose gradient would else be a stack that has yet to
    be summed; None elsewhere."""
    if y.dim() <= 2:
        return _folded(x, y)
    known = known_part(x)
    if known is None or known[1] is None or known[0].dim() > 2:
        return None
    if known[0].dim() < 2:
        return _folded(y.mT, x)
    result = _folded(y.mT, x.t())
    return None if result is None else result.mT.contiguous()


def _layer_norm(x: Any, sizes: Any, weight: Any, bias: Any, eps: float) -> Any:
    """The first result of ``native_layer_norm``, whose others nobody asked for; None if an argument is not of the plain kind."""
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
    node = OpNode.of(_LAYER_NORM, SESSION, edges, tuple([(o.shape, o.dtype) for o in outs]), wanted, None)
    node.save_unpacked(inner, NONE, outs)
    return SESSION.wrap(outs[0], (node, 0))


def _dispatched_linear(keys: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    if (type(x) is Tensor or type(weight) is Tensor or type(bias) is Tensor) and plain_case():
        result = _linear_without_bias(x, weight) if bias is None else _linear(x, weight, bias)
        if result is not None:
            return result
    return _pass_on_linear(keys & BELOW, x, weight, bias)


def _dispatched_matmul(keys: Any, x: Any, y: Any) -> Any:
    if (type(x) is Tensor or type(y) is Tensor) and plain_case():
        result = _matmul(x, y)
        if result is not None:
            return result
    return _pass_on_matmul(keys & BELOW, x, y)


def _dispatched_layer_norm(
    keys: Any, x: Any, sizes: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True
) -> Any:
    if (type(x) is Tensor or type(weight) is Tensor or type(bias) is Tensor) and plain_case():
        result = _layer_norm(x, sizes, weight, bias, eps)
        if result is not None:
            return result
    return _pass_on_layer_norm(keys & BELOW, x, sizes, weight, bias, eps, cudnn_enable)


# Before, where nothing lies between here and `__torch_dispatch__` (inference mode, say), the dispatcher ended in an internal assertion.
HEARD = torch.__version__ >= (2, 13)  # type: ignore[operator]
LIBRARY = torch.library.Library("aten", "IMPL")  # what it registers lasts as long as it does
for _name, _handler in (("linear", _dispatched_linear), ("matmul", _dispatched_matmul), ("layer_norm", _dispatched_layer_norm)):
    if HEARD:  # of any tensor subclass that handles its own calls, ours or not
        LIBRARY.impl(_name, _handler, "PythonTLSSnapshot", with_keyset=True)
