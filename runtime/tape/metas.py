"""Describes tensors for nodes, nested tensors too, and refuses calls of nested tensors that the
tape cannot record."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch

from ..errors import NestedTensor
from ..rules.ops import Op
from ..rules.record import NestedMeta
from ..seam.call_types import Arguments
from ..seam.containers import tensors_of
from ..seam.shells import VALUES

_FROM_LIST = torch.ops.aten._nested_tensor_from_tensor_list.default


def meta_of(tensor: torch.Tensor, dtype: torch.dtype | None) -> tuple[Any, torch.dtype | None]:
    """Return (shape, dtype): what a node notes of a tensor whose gradient is to have ``dtype``
    (None: any). For a nested tensor: (its sizes with the dtype, None). No gradient has the dtype
    None, so the engine always compares the sizes."""
    if tensor.is_nested:
        return dataclasses.replace(cast(NestedMeta, NestedMeta.of(tensor)), dtype=dtype), None
    return tensor.shape, dtype


def check_origin(op: Op, args: Arguments) -> None:
    """Raise if the call has a nested result and an argument that we cannot handle.

    A plain nested tensor: the call was taken for one of dense tensors. A plain tensor that requires
    grad: torch's engine would record the call, too, and it aborts the process when it asks a nested
    value for its sizes.
    """
    # torch.nested.nested_tensor, which then sets torch's requires_grad
    if op.func is _FROM_LIST and len(args) > 4 and args[4] is not None:
        raise NestedTensor
    tensors = tensors_of(args)
    if _only_of_torch(tensors):
        raise NestedTensor
    for tensor in tensors:
        if type(tensor) not in VALUES:
            refuse_recorded(op.func, tensor)


def refuse_recorded(func: object, tensor: torch.Tensor) -> None:
    """Raise if torch's engine would record a call of nested values with the plain tensor
    ``tensor``."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{func} takes or returns a nested tensor of this package, "
            "and one of its arguments requires grad by torch's own autograd. Make that one with "
            "runtime.wrap(x, requires_grad=True), or run the program under the drop-in."
        )


def refuse_nested(args: Arguments, error: Exception) -> None:
    """Raise ``NestedTensor`` in place of ``error`` if the failed call has a plain nested tensor
    among its arguments and no nested value. The error of a kernel or decomposition that expected
    sizes does not name the cause."""
    if type(error) is NestedTensor:
        return
    if _only_of_torch([argument for argument in args if isinstance(argument, torch.Tensor)]):
        raise NestedTensor from error


def _only_of_torch(tensors: list[torch.Tensor]) -> bool:
    """Return whether there are nested tensors, and none of them is a value."""
    nested = [tensor for tensor in tensors if tensor.is_nested]
    return bool(nested) and all(type(tensor) not in VALUES for tensor in nested)
