"""Route names of torch to those of this package. For a pair of modules, each name that both have
leads to ours."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
import torch._vmap_internals

from ..autograd import forward_ad
from ..autograd.function import Function
from ..func.batch import current_fallback_policy, set_fallback_policy
from ..func.vmap import vmap
from ..seam.call_types import Kernel
from ..tape import anomaly, engine, nodes, running, saved

# Torch's module -> ours. The names are those of our `__all__`. Torch's other modules that hold the
# same objects need no entry.
_ROUTES = {
    "torch.func": "func",
    "torch._functorch.apis": "func",
    "torch.autograd": "autograd",
    "torch.autograd.anomaly_mode": "autograd",
    "torch.autograd.function": "autograd.function",
    "torch.autograd.functional": "autograd.functional",
    "torch.autograd.forward_ad": "autograd.forward_ad",
    "torch.autograd.gradcheck": "autograd.gradcheck",
    "torch.autograd.graph": "autograd.graph",
    "torch.utils.checkpoint": "checkpoint",
    "torch.fx.experimental.proxy_tensor": "aot",
    "torch._higher_order_ops.cond": "aot.control_flow.operators",
    "torch._higher_order_ops.scan": "dropin.control_flow",
    "torch._higher_order_ops.map": "dropin.control_flow",
    "torch._higher_order_ops.while_loop": "aot.control_flow.operators",
    "torch._higher_order_ops.associative_scan": "aot.control_flow.operators",
    "torch._functorch.aot_autograd": "aot",
    "torch._functorch.partitioners": "aot",
    "functorch.compile": "aot",
    "torch.nn.utils._expanded_weights": "expanded_weights",
    "torch.nn.utils._expanded_weights.expanded_weights_impl": "expanded_weights",
    "torch.nn.utils._expanded_weights.expanded_weights_utils": "expanded_weights",
    "torch.nn.utils._per_sample_grad": "expanded_weights",
}


def _module(name: str) -> ModuleType:
    """Import the module ``name`` of this package, which has another name in a wheel."""
    return importlib.import_module(f"{__package__.rpartition('.')[0]}.{name}")


def replacements() -> dict[int, tuple[object, object]]:
    """Return ``{id of an object of torch: (object, ours)}`` for every function and class that has a
    counterpart here."""
    table: dict[int, tuple[object, object]] = {}
    for theirs, name in _ROUTES.items():
        theirs_module, ours_module = importlib.import_module(theirs), _module(name)
        for public in ours_module.__all__:
            old, new = getattr(theirs_module, public, None), getattr(ours_module, public)
            # a submodule has a route of its own, and some objects are torch's in both
            if old is not None and old is not new and not isinstance(new, ModuleType):
                table[id(old)] = (old, new)
    return table


class _ForwardAD(ModuleType):
    """``torch.autograd.forward_ad``, whose ``_current_level`` is the number of this thread's
    dual level, or -1."""

    @property
    def _current_level(self) -> int:
        return forward_ad.current_level()


def _internal_vmap(
    func: Kernel, in_dims: object = 0, out_dims: object = 0, allow_none_pass_through: bool = False
) -> object:
    """``torch._vmap_internals._vmap`` for users' programs. Only torch's own functions use
    ``allow_none_pass_through``. They are replaced, too."""
    return vmap(func, in_dims, out_dims)


def _one_or_all(outs: tuple[object, ...]) -> object:
    """Return the only item of ``outs``, or all of them."""
    match outs:
        case (one,):
            return one
    return outs


class _Undefined(Function):
    @staticmethod
    def forward(ctx: object, *tensors: Any) -> Any:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: object, *grads: object) -> Any:
        return (None,) * len(grads)


class _UndefinedGrad:
    """``torch._C._functions.UndefinedGrad``: its instances return their arguments and give no
    gradient to them."""

    def __call__(self, *tensors: object) -> object:
        return _one_or_all(_Undefined.apply(*tensors))


class _Delayed(Function):
    @staticmethod
    def forward(ctx: Any, message: str, *tensors: Any) -> Any:
        ctx.message = message
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: object) -> Any:
        raise RuntimeError(ctx.message)


class _DelayedError:
    """``torch._C._functions.DelayedError(message, number)``: it returns the tensors that it is
    called with. Asking for their gradient raises ``RuntimeError(message)``."""

    def __init__(self, message: str | bytes, number: int) -> None:
        self.message = message.decode() if isinstance(message, bytes) else message
        self.number = number

    def __call__(self, *tensors: object) -> object:
        if len(tensors) != self.number:
            raise TypeError(
                f"DelayedError: made for {self.number} tensors, called with {len(tensors)}"
            )
        return _one_or_all(_Delayed.apply(self.message, *tensors))


def switches() -> list[tuple[object, str, object]]:
    """List the attributes of torch that show or change a setting of ours."""
    return [
        (importlib.import_module("torch.autograd.forward_ad"), "__class__", _ForwardAD),
        (torch, "set_anomaly_enabled", anomaly.set_anomaly_enabled),
        (torch, "is_anomaly_enabled", anomaly.is_anomaly_enabled),
        (torch, "is_anomaly_check_nan_enabled", anomaly.is_anomaly_check_nan_enabled),
        (torch._C, "_current_graph_task_id", running.current_graph_task_id),
        (torch._C, "_current_graph_task_execution_order", engine.execution_order),
        (torch._C, "_current_autograd_node", running.current_node),
        (
            torch._C._autograd,
            "_get_current_graph_task_keep_graph",
            running.current_graph_is_retained,
        ),
        (torch._C, "_will_engine_execute_node", engine.will_execute),
        (
            torch._C._autograd,
            "_saved_tensors_hooks_is_enabled",
            lambda: saved.HOOKS.disabled is None,
        ),
        (torch._C._functions, "AccumulateGrad", nodes.AccumulateGrad),
        (torch._C._functions, "DelayedError", _DelayedError),
        (torch._C._functions, "UndefinedGrad", _UndefinedGrad),
        (torch._vmap_internals, "_vmap", _internal_vmap),
        (torch._vmap_internals, "vmap", vmap),
        (
            torch._C._functorch,
            "_set_vmap_fallback_enabled",
            lambda on: set_fallback_policy("warn" if on else "raise"),
        ),
        (
            torch._C._functorch,
            "_is_vmap_fallback_enabled",
            lambda: current_fallback_policy() != "raise",
        ),
    ]
