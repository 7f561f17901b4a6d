"""Says which graphs native code computes as the kernels do, for all values.

reason_for_kernels(module)   # "it calls aten.index_select.default, whose kernel …", or ""

Inductor has code of its own for most ops, and for some values it does something else than the
kernel. `index_select` of -1 is an error, and native code takes the last row. `erf(1e-7)` is 1.1e-7,
and native code gives 0. A few calls beside the replay do not show that. So `compiler="auto"` gives
Inductor the ops of the tables here, and no other ones. `native_values`, beside the tests, compares
them on the values where code differs: zeros of both signs, infinities, NaN, tiny and huge numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...torch_private.dispatcher import OpOverload

__all__ = ["ELEMENTWISE", "SUMS", "calls_kernels", "reason_for_kernels"]

_ELEMENTWISE_NAMES = """
abs.default acos.default add.Scalar add.Tensor addcdiv.default addcmul.default asin.default
asinh.default atan.default atan2.default ceil.default clamp.default clamp_max.default
clamp_min.default copysign.Scalar copysign.Tensor cos.default cosh.default deg2rad.default
div.Scalar div.Tensor eq.Scalar eq.Tensor erfc.default exp.default exp2.default floor.default
fmod.Scalar fmod.Tensor frac.default ge.Scalar ge.Tensor gt.Scalar gt.Tensor hardshrink.default
hardsigmoid.default hardtanh.default hypot.default isfinite.default isinf.default isnan.default
le.Scalar le.Tensor leaky_relu.default lerp.Scalar log.default log10.default log1p.default
log2.default logaddexp.default logical_and.default logical_not.default logical_or.default lt.Scalar
lt.Tensor mish.default mul.Scalar mul.Tensor nan_to_num.default ne.Scalar ne.Tensor neg.default
pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal.default relu.default
round.default rsqrt.default rsub.Scalar sgn.default sigmoid.default sign.default silu.default
silu_backward.default sin.default sinh.default softplus.default sqrt.default square.default
sub.Scalar sub.Tensor tan.default tanh.default tanh_backward.default threshold.default
threshold_backward.default trunc.default
"""
ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
"""Ops of floating-point numbers whose elements are those of the kernel but for rounding. Rounding
includes that of a product which native code adds without rounding it first."""

_SUMS_NAMES = """
amax.default amin.default mean.default mean.dim sum.default sum.dim_IntList
_softmax.default _softmax_backward_data.default
_log_softmax.default _log_softmax_backward_data.default
"""
SUMS = frozenset(_SUMS_NAMES.split())
"""Ops over dimensions whose results are those of the kernel but for the order of the additions."""

_KERNELS_NAMES = """
mm.default addmm.default bmm.default baddbmm.default convolution.default
convolution_backward.default _linalg_solve_ex.default _linalg_check_errors.default
linalg_cholesky_ex.default linalg_inv_ex.default linalg_lu_factor_ex.default
linalg_lu_solve.default linalg_solve_triangular.default
_scaled_dot_product_flash_attention_for_cpu.default
_scaled_dot_product_flash_attention_for_cpu_backward.default
"""
_KERNELS = frozenset(_KERNELS_NAMES.split())
"""Ops for which native code calls the kernel."""

_PLACES_NAMES = """
_unsafe_view.default cat.default clone.default constant_pad_nd.default copy.default copy_.default
diag_embed.default empty_like.default flip.default full.default full_like.default
lift_fresh_copy.default new_full.default new_ones.default new_zeros.default ones.default
ones_like.default repeat.default roll.default select_backward.default select_scatter.default
slice_backward.default slice_scatter.default stack.default tril.default triu.default where.self
zeros.default zeros_like.default
"""
_PLACES = frozenset(_PLACES_NAMES.split())
"""Ops that put elements elsewhere, and change none."""

_PRODUCTS = frozenset(("mm.default", "addmm.default", "bmm.default", "baddbmm.default"))
"""Kernels with factors, of which only 1 was compared."""

_BOUNDS = frozenset(("clamp.default", "clamp_max.default", "clamp_min.default", "hardtanh.default"))
"""Ops with bounds. At a bound of 0 native code gives a zero of another sign."""

_EXPONENTS = frozenset((2, 3, 0.5, -1))
"""Exponents of ``pow`` that were compared. The kernel has code of its own for some other ones."""

_OWN = frozenset(("torch_transform_matrix.solve_factored.default",))
"""Ops of this package. Native code calls them."""

_COMPARED = ELEMENTWISE | SUMS
_KNOWN = _COMPARED | _KERNELS | _PLACES
_NUMBERS = frozenset((torch.float32, torch.float64))
_SHOWN = frozenset((*_NUMBERS, torch.bool, torch.int32, torch.int64))


def reason_for_kernels(module: fx.GraphModule) -> str:
    """Return why the kernels have to compute a graph; nothing if native code does what they do."""
    for node in module.graph.nodes:
        reason = _reason_of(node)
        if reason:
            return reason
    return ""


def calls_kernels(module: fx.GraphModule) -> bool:
    """Return whether native code of a graph calls kernels of torch, and not only loops of its
    own."""
    called = (node.target for node in module.graph.nodes if isinstance(node.target, OpOverload))
    return any(_name_of(func) in _KERNELS | _OWN for func in called)


def _reason_of(node: fx.Node) -> str:
    if node.op == "output":
        return ""
    reason = _reason_of_value(node.meta.get("val"))
    if reason:
        return reason
    func = node.target
    if node.op != "call_function" or not isinstance(func, OpOverload):
        return "" if node.op != "call_function" or _takes_an_item(node) else _unknown(func)
    if not _is_known(func):
        return _unknown(func)
    if _name_of(func) in _COMPARED and not all(map(_has_numbers, node.all_input_nodes)):
        return f"it calls {func} of integers, which was not compared with native code"
    if not _has_compared_values(_name_of(func), node):
        return f"it calls {func} with sizes or numbers that were not compared with native code"
    return ""


def _has_compared_values(name: str, node: fx.Node) -> bool:
    """Return whether native code does what the kernel does for the sizes and numbers of a call."""
    numbers = [x for x in (*node.args, *node.kwargs.values()) if isinstance(x, (int, float))]
    if name in _PRODUCTS:
        return not numbers
    if name in _BOUNDS:
        return 0 not in numbers
    if name == "pow.Tensor_Scalar":
        return _EXPONENTS.issuperset(numbers)
    return True


def _takes_an_item(node: fx.Node) -> bool:
    """Return whether ``node`` is one of the results of a call."""
    return getattr(node.target, "__name__", "") == "getitem"


def _unknown(func: Any) -> str:
    return f"it calls {func}, whose kernel was not compared with native code for all values"


def _name_of(func: OpOverload) -> str:
    return str(func).removeprefix("aten.")


def _is_known(func: OpOverload) -> bool:
    name = _name_of(func)
    return name in _KNOWN or name in _OWN or _is_view(func)


def _is_view(func: OpOverload) -> bool:
    """Return whether the result of an op is memory of its argument, and nothing is written."""
    schema = func._schema
    return not schema.is_mutable and any(result.alias_info for result in schema.returns)


def _has_numbers(node: fx.Node) -> bool:
    """Return whether a tensor has elements of a class that was compared."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.dtype in _NUMBERS | {torch.bool}


def _reason_of_value(value: object) -> str:
    """Return why native code does not compute a value of the graph; nothing if it may."""
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_reason_of_value, value)), "")
    if not isinstance(value, torch.Tensor):
        return ""
    if value.layout is not torch.strided or value.is_quantized:
        return f"a tensor has the layout {value.layout}, which is not compared"
    if value.dtype not in _SHOWN:
        return f"a tensor has {value.dtype}, of which native code keeps more digits or none"
    if value.is_conj() or value.is_neg() or value.device.type != "cpu":
        return f"a tensor is conjugate, negated or on {value.device}, which is not compared"
    return ""
