"""Nested tensors on the tape: how nodes note them, and which gradients fit them."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch

from ..errors import NestedTensor
from ..rules.ops import Op
from ..rules.record import NestedMeta
from ..seam.shells import VALUES

_FROM_LIST = torch.ops.aten._nested_tensor_from_tensor_list.default


def meta_of(t: torch.Tensor, dtype: torch.dtype | None) -> tuple[Any, torch.dtype | None]:
    """What a node notes of a tensor whose gradient shall have ``dtype`` (None: any). Of a nested one its sizes, and no dtype beside them:
    so no gradient is taken for one that fits without a look at the sizes."""
    if t.is_nested:
        return dataclasses.replace(cast(NestedMeta, NestedMeta.of(t)), dtype=dtype), None
    return t.shape, dtype


def check_origin(op: Op, args: Any) -> None:
    """Refuses a nested result of arguments of torch's own: of a nested tensor, for the call was then taken for one of dense tensors, and of
    one that requires grad, for torch's engine would record the call, too, and ends the process when it asks a nested value for sizes."""
    if op.func is _FROM_LIST and len(args) > 4 and args[4] is not None:  # torch.nested.nested_tensor, which then sets torch's requires_grad
        raise NestedTensor
    tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, torch.Tensor)]
    if _only_of_torch(tensors):
        raise NestedTensor
    for t in tensors:
        if type(t) not in VALUES:
            refuse_recorded(op.func, t)


def refuse_recorded(func: Any, t: torch.Tensor) -> None:
    """``t``, no value, is an argument next to values, and the call concerns nested ones."""
    if t.requires_grad:
        raise RuntimeError(
            f"{func} has to do with nested tensors of this package, and one of its arguments requires grad by torch's own autograd. "
            "Make that one with runtime.wrap(x, requires_grad=True), or run the program under the drop-in."
        )


def refuse_nested(args: Any, error: Exception) -> None:
    """``NestedTensor`` instead of ``error``, if a call of dense values failed and has a nested tensor of torch's own among its arguments:
    a kernel or a decomposition that expected sizes does not say so."""
    if type(error) is not NestedTensor and _only_of_torch([a for a in args if isinstance(a, torch.Tensor)]):
        raise NestedTensor from error


def _only_of_torch(tensors: list[torch.Tensor]) -> bool:
    """Whether there are nested tensors, and none of them is a value."""
    nested = [t for t in tensors if t.is_nested]
    return bool(nested) and all(type(t) not in VALUES for t in nested)
