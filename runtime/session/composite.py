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

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..facts.lock import probe
from ..func.draws import without_draws
from ..rules.ops import Op, op_of
from ..seam.dispatch import run_layer
from ..seam.passing_on import BELOW, SNAPSHOT, passing_on
from ..seam.scope import SCOPE, scope_outside
from ..seam.shells import VALUES
from ..tape import view_history
from ..tape.foreign import recorded_by_torch
from ..tape.nodes import Edge
from ..tape.op_nodes import OpNode
from ..tape.running import current_stand_in
from ..tape.saved import HOOKS
from ..tape.values import GradValue, edge_of
from ..torch_private.dispatcher import DispatchKeySet
from ..torch_private.global_settings import is_autocast_enabled
from ..torch_private.mode_stacks import number_of_dispatch_modes
from .tensor import SESSION, Tensor

aten = torch.ops.aten
_T, _VIEW, _UNSAFE_VIEW = (
    op_of(aten.t.default),
    op_of(aten.view.default),
    op_of(aten._unsafe_view.default),
)
# The op by which ATen gives the result of `linear` of a stack with a bias the shape of the stack
# again: a view up to torch 2.14, and `_unsafe_view` since. The fact ends with the name of the node.
UNFLATTEN = {"ViewBackward0": _VIEW, "UnsafeViewBackward0": _UNSAFE_VIEW}[
    probe("linear.stack with bias", "memory and node").rpartition(" ")[2]
]
_MV, _MM, _ADDMM = op_of(aten.mv.default), op_of(aten.mm.default), op_of(aten.addmm.default)
_pass_on_linear, _pass_on_matmul, _pass_on_layer_norm = (
    passing_on(getattr(aten, name).default) for name in ("linear", "matmul", "layer_norm")
)
_LINEAR = aten.linear.default
_LAYER_NORM = op_of(aten.native_layer_norm.default)
NO_KWARGS: dict[str, object] = {}  # the keyword arguments of every call here
Part = tuple[torch.Tensor, Edge | None]  # the inner tensor of a value, and its edge
# bound once: both are read at every call
_grad_enabled, _inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


def plain_case() -> bool:
    """Return whether nothing but the session's tape has to see the parts of a call.

    Pack hooks, levels of transforms, dispatch modes, autocast and a stand-in see each part. The
    calls of inference mode go on to ATen, too, where grad mode is on inside of it as well.
    """
    if HOOKS.innermost() or SCOPE.levels or number_of_dispatch_modes() or is_autocast_enabled():
        return False
    if current_stand_in() is not None:
        return False
    return not _inference()


def known_part(a: Any) -> Part | None:
    """Return the inner tensor of a dense tensor ``a`` of the eager session, and its edge.

    The edge is None if ``a`` needs no gradient or grad mode is off. A plain tensor is its own inner
    tensor, without an edge. For any other argument return None: the call has to go on to ATen.
    """
    kind = type(a)
    if kind is Tensor:
        edge = None
        if _grad_enabled():
            if recorded_by_torch(a):
                return None
            edge = a._edge
            # a leaf keeps its edge elsewhere, and a write to the base of a view changes the edge of
            # the view
            if edge is None or a._view is not None:
                edge = edge_of(a)
        a = a._inner
        if type(a) is not torch.Tensor:
            return None
    elif kind is torch.Tensor and not a.requires_grad:
        # with requires_grad torch would record the calls of this file
        edge = None
    else:
        return None
    if a.layout is not torch.strided or a.is_nested:
        return None
    return a, edge


def run_op(
    op: Op, inner: Sequence[object], edges: tuple[Edge | None, ...], wanted: int, kernel: Any = None
) -> Part:
    """Run ``op`` and record it. Return the result and its edge.

    - ``inner``: the arguments of the op, tensors as inner tensors.
    - ``edges``: those of the tensors that need a gradient, in the order of the arguments.
    - ``wanted``: bit ``i`` is set if argument ``i`` has one of the ``edges``. Without any bit the
      op is not recorded, and the result has no edge.
    - ``kernel``: an in-place form of the op, if the value of its first argument is no longer
      needed.
    """
    out = (kernel or op.kernel)(*inner)
    if not wanted:
        return out, None
    node = OpNode.of(op, SESSION, edges, ((out.shape, out.dtype),), wanted, None)
    node.save_unpacked(inner, NO_KWARGS, out)
    return out, (node, 0)


def linear_of_matrix(x: Part, weight: Part, bias: Part) -> Part:
    """Return ``addmm(bias, x, weight.t())``: the parts of ``linear`` of a matrix.

    The shapes are those of ``linear``: (n, in), (out, in) and (out,) give (n, out)."""
    bias_edge, x_edge = bias[1], x[1]
    transposed, weight_edge = run_op(_T, [weight[0]], (weight[1],), weight[1] is not None)
    needs_bias, needs_x, needs_weight = (
        bias_edge is not None,
        x_edge is not None,
        weight_edge is not None,
    )
    wanted = needs_bias | needs_x << 1 | needs_weight << 2  # by the positions in `addmm`
    edges: Any = (bias_edge, x_edge, weight_edge)
    if wanted != 0b111:
        edges = tuple(edge for edge in edges if edge is not None)
    return run_op(_ADDMM, [bias[0], x[0], transposed], edges, wanted)


def flatten_to_matrix(x: Part) -> Part:
    """Return ``x`` viewed as a matrix: (..., n) becomes (rows, n)."""
    shape = x[0].shape
    return run_op(_VIEW, [x[0], [prod(shape[:-1]), shape[-1]]], (x[1],), x[1] is not None)


def _record_linear(x: Any, weight: Any, bias: Any) -> object:
    """Return ``linear`` with a bias, recorded as its parts (:func:`linear_of_matrix`).

    A stack (..., in) is viewed as a matrix before, and gets its shape (..., out) after it. None if
    ATen would use other ops: the call has to go on to it."""
    parts = known_part(x), known_part(weight), known_part(bias)
    if any(part is None for part in parts):
        return None
    x, weight, bias = parts
    shape = x[0].shape
    if weight[0].dim() != 2 or bias[0].dim() != 1 or not shape:
        return None
    if len(shape) == 2:
        return SESSION.wrap(*linear_of_matrix(x, weight, bias))
    if not x[0].is_contiguous():
        return None
    out, edge = linear_of_matrix(flatten_to_matrix(x), weight, bias)
    matrix = SESSION.wrap(out, edge)
    sizes = [*shape[:-1], out.shape[1]]
    result = SESSION.wrap(*run_op(UNFLATTEN, [out, sizes], (edge,), edge is not None))
    if UNFLATTEN is _VIEW:
        # the user gets a view, as in torch: a write to it changes the node of its base
        view_history.mark_view(result, _VIEW, (matrix, sizes), {})
    return result


def _record_linear_without_bias(x: Any, weight: Any) -> object:
    """Return ``linear`` of a matrix without a bias, recorded as ``mm(x, weight.t())``. None for
    other arguments: the call has to go on to ATen."""
    parts = known_part(x), known_part(weight)
    if any(part is None for part in parts):
        return None
    x, weight = parts
    if x[0].dim() != 2 or weight[0].dim() != 2:
        return None
    transposed = run_op(_T, [weight[0]], (weight[1],), weight[1] is not None)
    return SESSION.wrap(*run_binary(_MM, x, transposed))


def run_binary(op: Op, x: Part, y: Part, kernel: object = None) -> Part:
    """Run an op of two tensors. It is recorded if one of them requires grad. ``kernel``: as in
    :func:`run_op`."""
    x_edge, y_edge = x[1], y[1]
    inner = [x[0], y[0]]
    if x_edge is not None and y_edge is not None:
        return run_op(op, inner, (x_edge, y_edge), 0b11, kernel)
    if x_edge is not None:
        return run_op(op, inner, (x_edge,), 0b01, kernel)
    if y_edge is not None:
        return run_op(op, inner, (y_edge,), 0b10, kernel)
    return run_op(op, inner, (), 0, kernel)


def _record_product_of_stack(stack: torch.Tensor, factor: object) -> Any:
    """Return ``stack @ factor``, recorded as the product of one matrix.

    ``stack``: (..., n, k) of three or more dimensions, viewed as (rows, k). ``factor``: a matrix
    (k, m) or a vector (k,) that requires grad. None for other arguments."""
    part = known_part(factor)
    if part is None or part[1] is None or not 1 <= part[0].dim() <= 2:
        return None
    inner_factor, factor_edge = part
    part = known_part(stack)
    if part is None:
        return None
    inner_stack, stack_edge = part
    shape = inner_stack.shape
    if len(shape) < 3:
        return None
    sizes = [prod(shape[:-1]), shape[-1]]
    if inner_stack.is_contiguous():
        matrix: Any = run_op(_VIEW, [inner_stack, sizes], (stack_edge,), stack_edge is not None)
    else:
        # a call of the session: it may copy, and then its nodes are others
        matrix = known_part(stack.reshape(sizes))
    op = _MM if inner_factor.dim() == 2 else _MV
    out, edge = run_binary(op, matrix, (inner_factor, factor_edge))
    sizes = [*shape[:-1], *inner_factor.shape[1:]]
    return SESSION.wrap(*run_op(_UNSAFE_VIEW, [out, sizes], (edge,), True))


def _record_matmul(x: Any, y: Any) -> Any:
    """Return ``x @ y`` in the case in which ATen folds a stack because the other factor requires
    grad. None in other cases.

    Without folding, the gradient of that factor would be a stack that has to be summed."""
    if y.dim() <= 2:
        return _record_product_of_stack(x, y)
    part = known_part(x)
    if part is None or part[1] is None or part[0].dim() > 2:
        return None
    # the stack is on the right: x @ y is the transpose of y.mT @ x.t()
    if part[0].dim() < 2:
        return _record_product_of_stack(y.mT, x)
    result = _record_product_of_stack(y.mT, x.t())
    if result is None:
        return None
    return result.mT.contiguous()


def _record_layer_norm(
    value: object, sizes: object, weight: object, bias: object, eps: float
) -> object:
    """Return the first result of ``native_layer_norm``, recorded. None if a tensor is no
    :data:`Part`.

    The other results, mean and reciprocal deviation, are what the derivative needs. ``weight`` and
    ``bias`` may be None."""
    inner: list[Any] = [value, sizes, weight, bias, eps]
    edges: tuple[Edge, ...] = ()
    wanted = 0
    for index in (0, 2, 3):  # the positions of tensors
        if inner[index] is not None:
            part = known_part(inner[index])
            if part is None:
                return None
            inner[index], edge = part
            if edge is not None:
                edges += (edge,)
                wanted |= 1 << index
    outputs = _LAYER_NORM.kernel(*inner)
    if not wanted:
        return SESSION.wrap(outputs[0])
    metas = tuple([(output.shape, output.dtype) for output in outputs])
    node = OpNode.of(_LAYER_NORM, SESSION, edges, metas, wanted, None)
    node.save_unpacked(inner, NO_KWARGS, outputs)
    return SESSION.wrap(outputs[0], (node, 0))


# The handlers. The dispatcher calls them with ``keys``, the dispatch keys of the call.


def _handle_linear(
    keys: DispatchKeySet, value: object, weight: object, bias: object = None
) -> object:
    """Record ``linear`` in the plain case, let a level run it as a layer, or pass it on."""
    if (type(value) is Tensor or type(weight) is Tensor or type(bias) is Tensor) and plain_case():
        if bias is None:
            result = _record_linear_without_bias(value, weight)
        else:
            result = _record_linear(value, weight, bias)
        if result is not None:
            return result
    # a level may run the layer as one, such as that of per_sample_grads
    elif type(value) in VALUES:
        result = run_layer(_LINEAR, (value, weight, bias))
        if result is not NotImplemented:
            return result
    return _pass_on_linear(keys & BELOW, value, weight, bias)


def _handle_matmul(keys: DispatchKeySet, x: object, y: object) -> object:
    """Record ``matmul`` in the plain case, multiply two batches or a folded stack, or pass it
    on."""
    if (type(x) is Tensor or type(y) is Tensor) and plain_case():
        result = _record_matmul(x, y)
        if result is not None:
            return result
    elif _are_equal_stacks_of_vmap(x, y):
        return _multiply_batches(x, y)
    # the casts are a call of their own, after which the product arrives here again
    if not (is_autocast_enabled() and _is_autocast_next(keys)):
        result = _multiply_folded(x, y)
        if result is not None:
            return result
    return _pass_on_matmul(keys & BELOW, x, y)


def _multiply_folded(x: Any, y: Any) -> object:
    """Return ``x @ y`` by calls on the folded stack, where ATen would fold. Else None.

    The counterpart of :func:`_record_matmul` for values of other levels."""
    if x.dim() >= y.dim():
        if not _would_fold(x, y):
            return None
        return _multiply_stack(x, y)
    if not _would_fold(y, x):
        return None
    if x.dim() == 1:
        return _multiply_stack(y.mT, x)
    return _multiply_stack(y.mT, x.t()).mT.contiguous()


def _are_equal_stacks_of_vmap(x: Any, y: Any) -> bool:
    """Return whether the arguments are values of one vmap and stacks (..., n, k) and (..., k, m)
    with the same leading sizes."""
    if type(x) not in VALUES or type(y) not in VALUES:
        return False
    if x._level is not y._level or not x._level.hidden:
        return False
    x_shape, y_shape = x.shape, y.shape
    if len(x_shape) != len(y_shape) or len(x_shape) < 2:
        return False
    return bool(x_shape[-1] == y_shape[-2]) and x_shape[:-2] == y_shape[:-2]


def _multiply_batches(x: Any, y: Any) -> object:
    """Return the product of two batches by one ``matmul`` of their inner tensors, which are stacks
    with the batch in front.

    ATen would decompose the call first, and the batch rule would run for each part."""
    level = x._level
    with scope_outside(level), without_draws(level):
        return level.wrap(torch.matmul(x._inner, y._inner))


def _is_autocast_next(keys: DispatchKeySet) -> bool:
    """Return whether autocast is the next to handle a call with these dispatch keys."""
    return "Autocast" in str((keys & BELOW).highestPriorityTypeId())


def _would_fold(stack: torch.Tensor, factor: object) -> bool:
    """Return whether ATen would fold ``stack`` because ``factor`` requires grad.

    ATen reads the flag in any grad mode. It does not see that of our values, so this function asks
    in its place."""
    if not isinstance(factor, GradValue):
        return False
    return 1 <= factor.dim() <= 2 and stack.dim() >= 3 and factor.requires_grad


def _multiply_stack(stack: torch.Tensor, factor: GradValue) -> Any:
    """Return ``stack @ factor`` as :func:`_record_product_of_stack` does, but by calls that every
    level sees."""
    shape = stack.shape
    matrix = stack.reshape(prod(shape[:-1]), shape[-1])
    product = aten.mm.default if factor.dim() == 2 else aten.mv.default
    out = product(matrix, factor)
    return aten._unsafe_view.default(out, [*shape[:-1], *factor.shape[1:]])


def _handle_layer_norm(
    keys: DispatchKeySet,
    value: object,
    sizes: object,
    weight: object = None,
    bias: object = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> object:
    """Record ``layer_norm`` in the plain case, or pass it on."""
    if (type(value) is Tensor or type(weight) is Tensor or type(bias) is Tensor) and plain_case():
        result = _record_layer_norm(value, sizes, weight, bias, eps)
        if result is not None:
            return result
    return _pass_on_layer_norm(keys & BELOW, value, sizes, weight, bias, eps, cudnn_enable)


LIBRARY = torch.library.Library("aten", "IMPL")  # its registrations last as long as this object
for _name, _handler in (
    ("linear", _handle_linear),
    ("matmul", _handle_matmul),
    ("layer_norm", _handle_layer_norm),
):
    # the handlers get the calls of every tensor subclass that handles its own calls, ours or not
    LIBRARY.impl(_name, _handler, SNAPSHOT.name, with_keyset=True)
