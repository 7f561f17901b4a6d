"""Kernels of the device: one function that torch calls for each op without a kernel of its own.

The steps of a call: wait for the queue, look at the arguments' memory from the host, run the host's
kernel there, and return results as tensors of the device. Views read no memory, copies join two
devices, and a few ops are left to the host: these have functions of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from tests.devices.shelf import faults
from tests.devices.shelf.memory import (
    HOST_KERNELS,
    host_view,
    place,
    rebind,
    shares_memory,
    view_of,
)
from tests.devices.shelf.queue import QUEUE
from tests.devices.shelf.randomness import RANDOMNESS

__all__ = ["OVERRIDDEN", "call", "host_ops"]

Tensor = torch.Tensor
Overload = Any  # torch.ops.aten.x.y; torch's class of them takes any arguments
_HOST = torch.device("cpu")
_ATEN = torch.ops.aten


def call(op: Overload, *args: Any, **kwargs: Any) -> object:
    """Run an op on the device: the entry of torch's dispatcher."""
    fault = faults.planted_in(op)
    if fault is not None:
        return fault(_right, op, args, kwargs)
    return _right(op, args, kwargs)


def host_ops() -> Iterator[tuple[str, Overload]]:
    """Yield the ops of ATen that need a kernel of each device, with their names."""
    special = {op.name() for op in _SPECIAL}
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, name)
        is_of_devices = has_kernel("CPU") and not any(map(has_kernel, _GENERAL_KEYS))
        if is_of_devices or name in special:
            short = name.removeprefix("aten::")
            packet, _, overload = short.partition(".")
            yield short, getattr(getattr(_ATEN, packet), overload or "default")


_GENERAL_KEYS = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
"""The keys of kernels that run on any device. They call other ops."""


def _right(op: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Run an op as it should run."""
    special = _SPECIAL.get(op)
    if special is not None:
        return special(op, *args, **kwargs)
    if _reads_sizes_alone(op):
        return op.redispatch(HOST_KERNELS, *args, **kwargs)
    QUEUE.wait()
    return Memory().run(op, args, kwargs)


class Memory:
    """The tensors of one call, each with its view from the host."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def run(self, op: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Run the kernel of the host on the memory of the device."""
        host_args, host_kwargs = self._seen(_with_tensors(op, args)), self._seen(kwargs)
        draws = torch.Tag.nondeterministic_seeded in op.tags
        with RANDOMNESS.drawn() if draws else contextlib.nullcontext():
            results = op(*host_args, **host_kwargs)
        # out= and resize_ may have moved a buffer
        for x, view in self._pairs:
            rebind(x, view)
        return self._placed(results)

    def _seen(self, value: Any) -> Any:
        """Return an argument as the host's kernel takes it."""
        if isinstance(value, Tensor):
            return self._view(value) if value.device.type != "cpu" else value
        if isinstance(value, torch.device):
            return _HOST
        if isinstance(value, list | tuple):
            return [self._seen(part) for part in value]
        if isinstance(value, Mapping):
            return {key: self._seen(part) for key, part in value.items()}
        return value

    def _view(self, x: Tensor) -> Tensor:
        """Return the view of a tensor from the host. A tensor that is given twice has one view."""
        for known, view in self._pairs:
            if known is x:
                return view
        self._pairs.append((x, host_view(x)))
        return self._pairs[-1][1]

    def _placed(self, result: Any) -> Any:
        """Return a result of the host's kernel as a tensor of the device."""
        if isinstance(result, list | tuple):
            return type(result)(self._placed(part) for part in result)
        if not isinstance(result, Tensor):
            return result
        for x, view in self._pairs:
            if result is view:
                return x
        for x, view in self._pairs:
            if shares_memory(result, view):
                return view_of(x, result)
        return _written_later(result)


def _written_later(result: Tensor) -> Tensor:
    """Return memory of the device that has the values of `result` once the queue has run."""
    if result.layout is not torch.strided or result.is_quantized:
        raise NotImplementedError(f"shelf has no tensors of layout {result.layout}")
    if result._is_zerotensor():  # zeros without memory, as tangents begin
        return place(torch.zeros(result.shape, dtype=result.dtype, device="cpu"))
    memory = result.clone() if result.is_conj() or result.is_neg() else result
    source = memory.untyped_storage()
    block = torch.zeros(source.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage()
    later = torch.empty(0, dtype=memory.dtype, device="cpu").set_(
        block, memory.storage_offset(), memory.size(), memory.stride()
    )
    QUEUE.push(lambda: block.copy_(source))
    return place(later)


def _with_tensors(op: Overload, args: Sequence[Any]) -> list[Any]:
    """Return arguments, with a tensor for each number where the op takes a tensor.

    torch shows a tensor that stands for a number of the program as that number.
    """
    numbers = [k for k in _tensor_places(op) if k < len(args) and isinstance(args[k], _NUMBERS)]
    if not numbers:
        return list(args)
    like = next((x for x in args if isinstance(x, Tensor)), None)
    return [_tensor_of(x, like) if k in numbers else x for k, x in enumerate(args)]


_WIDEST = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
_NUMBERS = tuple(_WIDEST)


@cache
def _tensor_places(op: Overload) -> list[int]:
    """Return the places of the arguments that are tensors."""
    kinds = [str(argument.type) for argument in op._schema.arguments]
    return [place for place, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")]


def _tensor_of(number: bool | int | float | complex, like: Tensor | None) -> Tensor:
    """Return a tensor in the place of a number, such that a result has the dtype that it would have
    with the number.

    The number keeps its precision where the other tensor has dimensions, and so decides the dtype.
    """
    if like is None:
        return torch.tensor(number, device="cpu")
    common = torch.result_type(like, number)
    if like.ndim and common == like.dtype:
        common = _WIDEST[type(number)]
    return torch.tensor(number, dtype=common, device="cpu")


@cache
def _reads_sizes_alone(op: Overload) -> bool:
    """Return whether an op makes a view of an argument: by its schema, a result shares memory with
    an argument that the op does not write to."""
    returned = [part.alias_info for part in op._schema.returns]
    return any(info is not None and not info.is_write for info in returned)


# --- ops with functions of their own --------------------------------------------------------------


def _copy(op: Overload, source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between devices, or within this one. The host's memory is read and written at once."""
    QUEUE.wait()
    _near(to).copy_(_near(source))
    return to


def _copy_and_resize(op: Overload, source: Tensor, to: Tensor) -> Tensor:
    """Copy to a tensor that first gets the sizes of the source."""
    QUEUE.wait()
    view = _near(to)
    view.resize_(source.shape).copy_(_near(source))
    return to if to.device.type == "cpu" else rebind(to, view)


def _near(x: Tensor) -> Tensor:
    return x if x.device.type == "cpu" else host_view(x)


def _set(op: Overload, *args: Any, **kwargs: Any) -> object:
    """Give a tensor another storage: the host's kernel reads no memory for it."""
    return op.redispatch(HOST_KERNELS, *args, **kwargs)


def _convolution(op: Overload, *args: Any) -> object:
    """Convolve. torch asks devices of other packages by a name of their own."""
    return call(_ATEN.convolution.default, *args)


def _convolution_backward(
    op: Overload, grad: Tensor, x: Tensor, weight: Tensor, *others: Any
) -> object:
    """Return the gradients of a convolution. `others` end with which of them are wanted."""
    biases = [weight.shape[1] * others[-2] if others[-4] else weight.shape[0]]
    return call(_ATEN.convolution_backward.default, grad, x, weight, biases, *others)


def _on_the_host(op: Overload, *args: Any, **kwargs: Any) -> object:
    """Run an op that the device has no kernel for on copies, as torch's own fallback does."""
    leaves = [x for x in args if isinstance(x, Tensor)]
    copies = iter(torch._to_cpu(leaves))
    results = op(*(next(copies) if isinstance(x, Tensor) else x for x in args), **kwargs)
    if isinstance(results, Tensor):
        return results.to("shelf")
    return tuple(x.to("shelf") for x in results)


_SPECIAL: dict[Overload, Callable[..., object]] = {
    _ATEN._copy_from.default: _copy,
    _ATEN._copy_from_and_resize.default: _copy_and_resize,
    _ATEN.set_.source_Storage: _set,
    _ATEN.set_.source_Storage_storage_offset: _set,
    _ATEN.set_.source_Tensor: _set,
    # general eigenvalues: few devices have kernels for them
    _ATEN.linalg_eig.default: _on_the_host,
    _ATEN._linalg_eigvals.default: _on_the_host,
}

OVERRIDDEN: dict[str, Callable[..., object]] = {
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
}
"""Ops that have a kernel for any device, which only says that the device has to have its own."""
