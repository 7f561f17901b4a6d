"""Memory of the device, and its two kinds of views: tensors of the device, and of the host.

A block of memory is a storage of the host. The storage of a device's tensor has the same address
and size, and keeps the block alive. So views, strides and offsets of the device are torch's own.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "HOST_KERNELS",
    "device_storage",
    "host_view",
    "place",
    "rebind",
    "shares_memory",
    "view_of",
]

Tensor = torch.Tensor
HOST_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""The kernels of the host. Those that read sizes alone may run on tensors of the device."""

_SET = torch.ops.aten.set_.source_Storage_storage_offset


def place(values: Tensor) -> Tensor:
    """Return a tensor of the device over the memory of `values`, a dense tensor of the host."""
    made = torch._C._acc.create_empty_tensor((0,), values.dtype)
    storage = device_storage(values.untyped_storage())
    return _set(made, storage, values)


def host_view(x: Tensor) -> Tensor:
    """Return a tensor of the host over the memory of `x`, a tensor of the device."""
    storage = x.untyped_storage()
    block = getattr(storage, "block", None)
    if block is None:  # nothing was ever allocated: a tensor without elements
        block = torch.UntypedStorage(storage.nbytes(), device="cpu")
    view = torch.empty(0, dtype=x.dtype, device="cpu").set_(
        block, x.storage_offset(), x.size(), x.stride()
    )
    if x.is_conj():
        view = view.conj()
    return torch._neg_view(view) if x.is_neg() else view


def rebind(x: Tensor, view: Tensor) -> Tensor:
    """Give `x` the geometry and memory of its host view, which a kernel may have resized.

    A block that has grown lies elsewhere. Then `x` gets a storage of its own, and other views of
    the old block keep that.
    """
    is_same_block = view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    is_same_size = view.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    storage = x.untyped_storage()
    if not (is_same_block and is_same_size):
        storage = device_storage(view.untyped_storage())
    elif view.shape == x.shape and view.stride() == x.stride():
        return x
    return _set(x, storage, view)


def view_of(base: Tensor, view: Tensor) -> Tensor:
    """Return a tensor of the device in the storage of `base`, with the geometry of `view`."""
    made = torch._C._acc.create_empty_tensor((0,), view.dtype)
    return _set(made, base.untyped_storage(), view)


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of the host have the same block."""
    address = a.untyped_storage().data_ptr()
    return address != 0 and address == b.untyped_storage().data_ptr()


def device_storage(block: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a storage of the device at the address of a block, which it keeps alive."""
    storage: Any = torch._C._construct_storage_from_data_pointer(
        block.data_ptr(), torch.device("privateuseone:0"), block.nbytes()
    )
    storage.block = block
    made: torch.UntypedStorage = storage
    return made


def _set(x: Tensor, storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    """Give `x` a storage, and the offset, sizes and strides of `like`."""
    _SET.redispatch(HOST_KERNELS, x, storage, like.storage_offset(), like.size(), like.stride())
    return x
