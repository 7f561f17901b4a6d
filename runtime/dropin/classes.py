"""What the drop-in changes in torch's own classes: constructors, how a plain tensor comes to require grad, and custom functions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..autograd import function
from ..tensor import wrap
from .factories import adopted, inside_dispatch
from .patches import Patches

_requires_grad: Any = torch._C.TensorBase.requires_grad
_Function: Any = torch.autograd.function.Function
_new_tensor = torch.Tensor.__new__
_new_parameter = torch.nn.Parameter.__new__


def become_runtime(t: torch.Tensor) -> torch.Tensor:
    """Turn a plain tensor into a runtime tensor of the same storage, in place: whoever holds it holds a runtime tensor."""
    value = wrap(t.detach())
    torch.utils.swap_tensors(t, value)
    return t


class _RequiresGrad:
    """``Tensor.requires_grad`` of plain tensors: reading is torch's; setting it makes the tensor a runtime tensor."""

    def __get__(self, t: Any, owner: Any = None) -> Any:
        if t is None:
            return self
        if not isinstance(t, (UninitializedParameter, UninitializedBuffer)):
            return _requires_grad.__get__(t)
        with torch._C.DisableTorchFunctionSubclass():  # it lets pass what torch's own descriptors do, and knows them by their class
            return _requires_grad.__get__(t)

    def __set__(self, t: Any, value: bool) -> None:
        _require(t, value)


def _require(t: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
    """``requires_grad_`` of a tensor that is not a value."""
    if (type(t) in (torch.Tensor, torch.nn.Parameter) or t.is_nested) and not inside_dispatch():
        if not requires_grad and not t.requires_grad:
            return t
        return become_runtime(t).requires_grad_(requires_grad)
    _requires_grad.__set__(t, requires_grad)
    return t


def _construct(cls: Any, *args: Any, **kwargs: Any) -> Any:
    made = _new_tensor(cls, *args, **kwargs)
    return made if inside_dispatch() else adopted(made)


def _construct_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    if data is None:
        data = torch.empty(0)
    if type(data) in (torch.Tensor, torch.nn.Parameter):
        data = wrap(data.detach())
    return _new_parameter(cls, data, requires_grad)


def _backward(t: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    from ..autograd import backward

    backward(t, *args, **kwargs)


def patch_classes(patches: Patches) -> None:
    patches.set(torch.Tensor, "__new__", staticmethod(_construct))
    patches.set(torch.nn.Parameter, "__new__", staticmethod(_construct_parameter))
    patches.set(torch.Tensor, "requires_grad", _RequiresGrad())
    patches.set(torch.Tensor, "requires_grad_", _require)
    patches.set(torch.Tensor, "backward", _backward)
    patches.set(_Function, "apply", classmethod(lambda cls, *args, **kwargs: function.apply(cls, args, kwargs)))
