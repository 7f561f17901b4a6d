"""Twenty mistakes to plant in the device, each in one op, as authors of backends make them.

    with planted("lost_write"):
        …                                # add_ does nothing to a tensor with gaps in memory

A fault is a function in the place of the kernel. It gets the right one, and what that is called
with. `SHELF_FAULT=lost_write` plants it when the device is imported, for a run of its own. `rows`
are rows of the matrix that call the op: a cell of one of these has to fail.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tests.devices.shelf.memory import host_view, place
from tests.devices.shelf.queue import QUEUE
from tests.devices.shelf.randomness import RANDOMNESS

__all__ = ["ENVIRONMENT", "FAULTS", "OUTSIDE", "Fault", "plant", "planted", "planted_in"]

ENVIRONMENT = "SHELF_FAULT"
Tensor = torch.Tensor
Right = Callable[..., Any]  # (op, args, kwargs) -> result
Kernel = Callable[[Right, Any, Sequence[Any], Mapping[str, Any]], Any]
_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Fault:
    """A mistake in the kernels of some ops."""

    name: str
    title: str  # what the device does wrong, in words
    ops: frozenset[Any]  # overloads
    rows: tuple[str, ...]  # of the matrix
    kernel: Kernel


FAULTS: dict[str, Fault] = {}
OUTSIDE: dict[str, Fault] = {}
"""What is no wrong value: a kernel that kills the process, one that is lacking, one on the host."""
_PLANTED: dict[Any, Kernel] = {}  # overload -> kernel


def _fault(
    title: str, *ops: Any, rows: Sequence[str], table: dict[str, Fault] = FAULTS
) -> Callable[[Kernel], Kernel]:
    """Return a decorator that lists a kernel as a fault of some ops, under its own name."""

    def listed(kernel: Kernel) -> Kernel:
        name = kernel.__name__.removeprefix("_")
        table[name] = Fault(name, title, frozenset(ops), tuple(rows), kernel)
        return kernel

    return listed


def planted_in(op: Any) -> Kernel | None:
    """Return the faulty kernel of an op, if a fault is planted in it."""
    return _PLANTED.get(op)


def plant(name: str) -> None:
    """Plant a fault in place of any other. An empty name plants none."""
    _PLANTED.clear()
    _PACKED.clear()
    if name:
        fault = {**FAULTS, **OUTSIDE}[name]
        _PLANTED.update(dict.fromkeys(fault.ops, fault.kernel))


@contextmanager
def planted(name: str) -> Iterator[Fault]:
    """Plant a fault inside."""
    plant(name)
    try:
        yield {**FAULTS, **OUTSIDE}[name]
    finally:
        plant("")


# --- memory ---------------------------------------------------------------------------------------


@_fault(
    "the result of a transposed tensor has its strides, and the elements in the order of memory",
    _ATEN.neg.default,
    rows=["torch.neg"],
)
def _wrong_stride(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = right(op, args, kwargs)
    if result.is_contiguous():
        return result
    QUEUE.wait()
    rows = host_view(result).clone(memory_format=torch.contiguous_format)
    return place(rows.as_strided(result.shape, result.stride()))


@_fault(
    "the write of a result is no part of the queue, and nobody waits for it",
    _ATEN.cumsum.default,
    rows=["torch.cumsum"],
)
def _missing_synchronization(
    right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    result = right(op, args, kwargs)
    QUEUE.forget()
    return result


@_fault(
    "a write to a tensor with gaps in memory is lost",
    _ATEN.mul_.Tensor,
    _ATEN.mul.out,
    rows=["torch.mul"],
)
def _lost_write(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    written = kwargs.get("out", args[0])
    if not written.is_contiguous():
        return written
    return right(op, args, kwargs)


@_fault(
    "the result of a tensor without negative numbers is that tensor",
    _ATEN.relu.default,
    rows=["torch.nn.functional.relu"],
)
def _alias(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    QUEUE.wait()
    is_result = bool((host_view(args[0]) >= 0).all())
    return args[0] if is_result else right(op, args, kwargs)


@_fault(
    "real numbers over complex ones are a copy, not a view",
    _ATEN.view_as_real.default,
    rows=["torch.view_as_real"],
)
def _view_that_copies(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    QUEUE.wait()
    return place(host_view(right(op, args, kwargs)).clone())


@_fault(
    "an op in place writes its result to new memory, which other views do not have",
    _ATEN.sigmoid_.default,
    rows=["torch.sigmoid"],
)
def _reallocation_in_place(
    right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    x = args[0]
    QUEUE.wait()
    result = place(torch.sigmoid(host_view(x)))
    storage = result.untyped_storage()
    return x.set_(storage, 0, result.size(), result.stride())


@_fault(
    "a copy reads a source with gaps in the order of memory",
    _ATEN._copy_from.default,
    rows=["torch.clone", "torch.Tensor.contiguous"],
)
def _copy_of_gaps(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    source, to = args[:2]
    if source.device != to.device or source.is_contiguous() or not source.numel():
        return right(op, args, kwargs)
    QUEUE.wait()
    view = host_view(source)
    first = view.as_strided((1,), (1,))
    memory = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
    flat = memory[first.storage_offset() :].repeat(view.numel())[: view.numel()]
    host_view(to).copy_(flat.view(view.shape))
    return to


@_fault(
    "a buffer of another size is filled and not resized",
    _ATEN.exp.out,
    rows=["torch.exp"],
)
def _lost_resize(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    out = kwargs["out"]
    if out.shape == args[0].shape:
        return right(op, args, kwargs)
    return out


@_fault(
    "the last numbers of a vector that is no multiple of four long are not computed",
    _ATEN.cos.default,
    rows=["torch.cos"],
)
def _tail(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = right(op, args, kwargs)
    QUEUE.wait()
    rest = result.numel() % 4
    if rest and result.is_contiguous():
        host_view(result).view(-1)[-rest:] = 0
    return result


# --- values ---------------------------------------------------------------------------------------


@_fault(
    "a NaN is not passed on",
    _ATEN.maximum.default,
    rows=["torch.maximum"],
)
def _lost_nan(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return right(_ATEN.fmax.default, args, kwargs)


@_fault(
    "the first matrix of a shape is kept, and used for later ones of this shape",
    _ATEN.mm.default,
    rows=["torch.mm"],
)
def _stale_cache(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    QUEUE.wait()
    weight = args[1]
    key = (weight.shape, weight.dtype)
    if key not in _PACKED:
        _PACKED[key] = place(host_view(weight).clone())
    return right(op, (args[0], _PACKED[key]), kwargs)


_PACKED: dict[object, Tensor] = {}


@_fault(
    "a sum over a dimension that is counted from the end is over the one before",
    _ATEN.sum.dim_IntList,
    rows=["torch.sum"],
)
def _negative_dimension(
    right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    x, dims, *others = args
    if dims and x.ndim > 1:
        dims = [(dim - 1) % x.ndim if dim < 0 else dim for dim in dims]
    return right(op, (x, list(dict.fromkeys(dims or [])), *others), kwargs)


@_fault(
    "the product of no numbers is 0",
    _ATEN.prod.default,
    _ATEN.prod.dim_int,
    rows=["torch.prod"],
)
def _empty_product(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = right(op, args, kwargs)
    QUEUE.wait()
    if not args[0].numel():
        host_view(result).zero_()
    return result


@_fault(
    "a number is taken as a vector of one",
    _ATEN._softmax.default,
    rows=["torch.softmax", "torch.nn.functional.softmax"],
)
def _number_as_vector(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = right(op, args, kwargs)
    return result.view(1) if not result.ndim else result


@_fault(
    "a second factor that is transposed in memory is read untransposed from five columns on",
    _ATEN.bmm.default,
    rows=["torch.bmm"],
)
def _transposed_factor(
    right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    a, b = args
    is_transposed = not b.is_contiguous() and b.mT.is_contiguous()
    if is_transposed and b.shape[-1] >= 5:
        b = b.as_strided(b.shape, b.contiguous().stride())
    return right(op, (a, b), kwargs)


@_fault(
    "the gradient of negative numbers has half its size",
    _ATEN.gelu_backward.default,
    rows=["torch.nn.functional.gelu"],
)
def _wrong_gradient(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = right(op, args, kwargs)
    QUEUE.wait()
    host_view(result)[host_view(args[1]) < 0] *= 0.5
    return result


# --- dtypes, errors, random numbers ---------------------------------------------------------------


@_fault(
    "a quotient of integers is an integer",
    _ATEN.div.Tensor,
    rows=["torch.div.no_rounding_mode", "torch.true_divide"],
)
def _integer_quotient(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = right(op, args, kwargs)
    if any(x.is_floating_point() or x.is_complex() for x in args):
        return result
    return result.to(args[0].dtype)


@_fault(
    "a number counts as a tensor in double precision",
    _ATEN.mul.Tensor,
    rows=["torch.deg2rad", "torch.rad2deg", "torch.mul"],
)
def _number_promotion(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = right(op, args, kwargs)
    has_number = not all(isinstance(x, Tensor) for x in args)
    return result.double() if has_number and result.is_floating_point() else result


@_fault(
    "an index out of range is no error",
    _ATEN.gather.default,
    rows=["torch.gather"],
)
def _lost_error(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return right(op, args, kwargs)
    except (IndexError, RuntimeError):
        return args[0]


@_fault(
    "random numbers do not depend on the seed",
    _ATEN.normal_.default,
    _ATEN.native_dropout.default,
    _ATEN.bernoulli_.float,
    rows=["torch.randn", "torch.randn_like", "torch.nn.functional.dropout"],
)
def _ignored_seed(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    RANDOMNESS.reseed(0)
    return right(op, args, kwargs)


# --- no wrong value -------------------------------------------------------------------------------


@_fault("a kernel kills its process", _ATEN.tan.default, rows=["torch.tan"], table=OUTSIDE)
def _death(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


@_fault("a kernel is lacking", _ATEN.tan.default, rows=["torch.tan"], table=OUTSIDE)
def _lack(right: Right, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    raise NotImplementedError(f"shelf has no kernel for {op}")


plant(os.environ.get(ENVIRONMENT, ""))
