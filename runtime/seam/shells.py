"""Creates values: objects that show the shape of the tensor inside them.

A value of a plain tensor is a second tensor object with the same storage. A value of any other
tensor is a *shell*: it has sizes and strides, and no storage. Example: the value of a ``vmap`` over
a tensor of shape (8, 3) shows the shape (3,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..errors import NestedTensor
from ..torch_private.dispatcher import DispatchKey, DispatchKeySet, keys_of
from ..torch_private.native_tensors import (
    close_memory,
    make_subclass,
    make_wrapper_subclass,
    set_conj,
    set_neg,
)

# What a shell is made from: the arguments of `_make_wrapper_subclass` (sizes, strides, offset,
# None, dtype, layout, device, …), and whether it is a lazy conjugate and a lazy negative. None in
# place of the latter: neither.
Geometry = tuple[tuple[Any, ...], tuple[bool, bool] | None]

T = TypeVar("T", bound=torch.Tensor)  # the class of a value

# every class of values: `type(a) in VALUES` takes half the time of `isinstance(a, Value)`
VALUES: set[type] = set()
# called with each class of values that is made later
ON_NEW_VALUES: list[Callable[[type], None]] = []
_inference = torch.is_inference_mode_enabled
# ATen's indexing calls `.item()` on a 0-d integer among the indices. If the integer has functorch's
# key for batches, it calls `aten::index`, for which there is a batch rule. So a 0-d integer of our
# batches has that key too. The dispatcher must not follow the key, because the value is not one of
# functorch's: every batch level excludes the key in its thread.
BATCHED = DispatchKey.FuncTorchBatched
_INTEGERS = frozenset(
    (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint16, torch.uint32, torch.uint64)
)
# the last arguments of _make_wrapper_subclass
_AS_INDEX = (False, False, None, False, False, DispatchKeySet(BATCHED))
# A tensor object made by _make_wrapper_subclass cannot say such a layout itself. With
# `dispatch_layout` it asks `prim::layout`.
_COMPRESSED = frozenset((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))
_ASKS_LAYOUT = (False, False, None, False, True)


def shell(cls: type[T], inner: Any, hidden: int = 0) -> T:
    """Return a ``cls`` instance without storage, with the shape, strides, dtype, device and lazy
    bits of ``inner`` without its first ``hidden`` dimensions."""
    # the dispatcher takes views of normal tensors alone for normal, and may raise otherwise
    if _inference() and not inner.is_inference():
        with torch.inference_mode(False):
            return shell(cls, inner, hidden)
    # Three things halve the time: arguments by position, no strides of a contiguous tensor, the
    # same arguments for a shell of a shell. `_shell_of` is here without its frame.
    geometry: Any = inner._geometry if type(inner) in VALUES and not hidden else None
    if geometry is None:
        geometry = _geometry_without(inner, hidden)
    arguments, bits = geometry
    value = make_wrapper_subclass(cls, *arguments)
    close_memory(value)
    value._geometry = geometry
    if bits is not None:
        _set_bits(value, bits)
    return value  # type: ignore[no-any-return]


def _geometry_without(tensor: torch.Tensor, hidden: int) -> Geometry:
    """Return the view of ``tensor`` in a shell, without its first ``hidden`` dimensions."""
    if tensor.is_nested:
        raise NestedTensor
    layout = tensor.layout
    shape = tensor.shape[hidden:] if hidden else tensor.shape
    if layout is not torch.strided or (tensor.is_contiguous() and not tensor.storage_offset()):
        arguments: Any = (shape, None, None, None, tensor.dtype, layout, tensor.device)
    else:
        strides = tensor.stride()[hidden:]
        arguments = (
            shape,
            strides,
            tensor.storage_offset(),
            None,
            tensor.dtype,
            layout,
            tensor.device,
        )
    if hidden and not shape and tensor.dtype in _INTEGERS:
        arguments += _AS_INDEX
    elif layout in _COMPRESSED:
        arguments += _ASKS_LAYOUT
    if tensor.is_conj() or tensor.is_neg():
        return arguments, (tensor.is_conj(), tensor.is_neg())
    return arguments, None


def _shell_of(cls: type[T], geometry: Geometry) -> T:
    """Return a shell that shows ``geometry``."""
    arguments, bits = geometry
    value = make_wrapper_subclass(cls, *arguments)
    close_memory(value)
    value._geometry = geometry
    if bits is not None:
        _set_bits(value, bits)
    return value  # type: ignore[no-any-return]


def _set_bits(tensor: torch.Tensor, bits: tuple[bool, bool]) -> None:
    """Mark ``tensor`` as a conjugate, as a negative, that no kernel has computed yet."""
    set_conj(tensor, bits[0])
    set_neg(tensor, bits[1])


def is_batched_number(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is a 0-d integer with one value for each element of a batch."""
    return type(tensor) in VALUES and tensor.dim() == 0 and keys_of(tensor).has(BATCHED)


def faithful_geometry(tensor: torch.Tensor) -> Geometry:
    """Return what ``tensor``, which is not nested, shows: its strides are exact also in dimensions
    of size 1."""
    layout, dtype = tensor.layout, tensor.dtype
    if layout is torch.strided:
        arguments: Any = (
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            None,
            dtype,
            layout,
            tensor.device,
        )
        if dtype in _INTEGERS and is_batched_number(tensor):
            arguments += _AS_INDEX
    else:
        arguments = (tensor.shape, None, None, None, dtype, layout, tensor.device)
        if layout in _COMPRESSED:
            arguments += _ASKS_LAYOUT
    if tensor.is_conj() or tensor.is_neg():
        return arguments, (tensor.is_conj(), tensor.is_neg())
    return arguments, None


def faithful_shell(cls: type[T], inner: torch.Tensor) -> T:
    """Return a shell with exactly the strides of ``inner``, also those of dimensions of size 1, and
    with its lazy bits. For a level that records a program: ATen takes no views of memory that is
    not yet conjugated."""
    if inner.is_nested:
        raise NestedTensor
    if _inference():  # a view of a normal tensor is one, and a shell may be a view of an older one
        with torch.inference_mode(False):
            return faithful_shell(cls, inner)
    value: Any = inner
    geometry: Geometry | None = None
    if type(inner) in VALUES and value._faithful:
        geometry = value._geometry
    if geometry is None:
        geometry = faithful_geometry(inner)
    shown = _shell_of(cls, geometry)
    shown._faithful = True  # type: ignore[attr-defined]
    return shown


def same_shape(cls: type[T], inner: torch.Tensor) -> T:
    """Return a new ``cls`` instance that has ``inner`` inside and shows its shape.

    It shares storage, version counter and ``data_ptr`` with a plain tensor. For any other tensor it
    is a shell without storage. Raise ``NestedTensor`` if ``inner`` is nested.
    """
    if type(inner) is torch.Tensor:
        if inner.is_nested:
            # else ATen would abort the process when it is asked for the sizes of the result
            raise NestedTensor
        value: Any = make_subclass(cls, inner)
    else:
        value = shell(cls, inner)
    value._inner = inner
    return value  # type: ignore[no-any-return]
