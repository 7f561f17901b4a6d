"""A device of its own in pure Python, which registers itself as `slate` when it is imported.

    import slate
    (torch.arange(3.0, device="slate") + 1).cpu()     # tensor([1., 2., 3.])

Its memory is bytes of Python, which only this file reads, one element after another. Its kernels
are functions of Python's numbers, such as `math.sin`. No kernel of torch or NumPy computes anything
here. So it is slow, and each number in a result has a line that it comes from.

Torch composes the functional form of most ops and that in place from the form with `out=`. So only
that one has a kernel.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

__all__ = ["NAME"]

NAME = "slate"
Tensor = torch.Tensor
Number = Any
"""A number of Python: bool, int or float."""
ATEN = torch.ops.aten

# --- registration -------------------------------------------------------------------------------


class Slate:
    """`torch.slate`, by the names that torch looks for."""

    def __init__(self) -> None:
        self._seed = 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def device(self, device: object) -> Any:
        return nullcontext()

    def synchronize(self, device: object = None) -> None:
        """Wait for nothing: a kernel has run when it returns."""

    def manual_seed_all(self, seed: int) -> None:
        self._seed = seed

    def initial_seed(self) -> int:
        return self._seed


# --- memory -------------------------------------------------------------------------------------

C_TYPES: dict[torch.dtype, Any] = {
    torch.bool: ctypes.c_bool,
    torch.uint8: ctypes.c_uint8,
    torch.int8: ctypes.c_int8,
    torch.int16: ctypes.c_int16,
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}
"""How an element lies in memory. C's types wrap and round what they are given, as torch does."""


def _allocated(nbytes: int) -> Any:
    """Return a storage of the device with this many bytes."""
    block = (ctypes.c_char * max(nbytes, 1))()
    device = torch.device("privateuseone:0")
    storage: Any = torch._C._construct_storage_from_data_pointer(
        ctypes.addressof(block), device, nbytes
    )
    storage.block = block  # lives as long as the storage does
    return storage


def _over(
    storage: Any, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> Tensor:
    """Return a tensor over memory of the device."""
    _c_type(dtype)
    return _placed(torch._C._acc.create_empty_tensor((0,), dtype), storage, size, stride, offset)


def _placed(x: Tensor, storage: Any, size: Any, stride: Any, offset: int = 0) -> Tensor:
    """Give a tensor another memory, size and strides."""
    # the kernel of the CPU reads no memory
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    op = ATEN.set_.source_Storage_storage_offset
    op.redispatch(keys, x, storage, offset, list(size), list(stride))
    return x


def _c_type(dtype: torch.dtype) -> Any:
    if dtype not in C_TYPES:
        raise NotImplementedError(f"slate holds no {dtype}")
    return C_TYPES[dtype]


def _cells(x: Tensor) -> Any:
    """Return the memory of a tensor as an array of C."""
    storage: Any = x.untyped_storage()
    count = storage.nbytes() // x.itemsize
    return (_c_type(x.dtype) * count).from_buffer(storage.block) if count else []


def _offset(x: Tensor) -> int:
    """Return the place of the first element. Torch's stubs say that it may be a symbol."""
    return int(x.storage_offset())


def _places(x: Tensor, size: Sequence[int] | None = None) -> list[int]:
    """Return where each element lies, in the order of rows, after broadcasting to a size."""
    size = x.shape if size is None else size
    places = [_offset(x)]
    own = [0 if n == 1 else step for n, step in zip(x.shape, x.stride(), strict=True)]
    strides = [0] * (len(size) - x.dim()) + own
    for n, step in zip(size, strides, strict=True):
        places = [place + k * step for place in places for k in range(n)]
    return places


def _read(x: Any, size: Sequence[int] | None = None) -> list[Number]:
    """Return the elements of a tensor, or of a number, broadcast to a size."""
    if not isinstance(x, Tensor):
        return [x] * math.prod(size or ())
    if x.device.type == "cpu":
        return list(x.expand(x.shape if size is None else size).reshape(-1).tolist())
    cells = _cells(x)
    return [cells[place] for place in _places(x, size)]


def _write(x: Tensor, numbers: Sequence[Number]) -> Tensor:
    cells = _cells(x)
    for place, number in zip(_places(x), numbers, strict=True):
        cells[place] = _in_dtype(number, x.dtype)
    return x


def _in_dtype(number: Number, dtype: torch.dtype) -> Number:
    """Return a number as one of a kind that memory of the dtype takes."""
    if dtype.is_floating_point or dtype is torch.bool:
        return float(number) if dtype.is_floating_point else bool(number)
    # what a NaN is as an integer is open: here what a processor makes of it
    lowest = -(2**31) if dtype is torch.int32 else -(2**63)
    return int(number) if math.isfinite(number) else lowest


def _resized(x: Tensor, size: Sequence[int]) -> Tensor:
    """Give a buffer of `out=` the size of a result."""
    return x if x.shape == torch.Size(size) else x.resize_(size)


# --- allocation ---------------------------------------------------------------------------------


def empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    like = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    return empty_strided(size, like.stride(), dtype=dtype)


def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    count = last + 1 if math.prod(size) else 0
    return _over(_allocated(count * dtype.itemsize), dtype, size, stride)


def resize_(x: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    new = empty(size, dtype=x.dtype, memory_format=memory_format)
    storage: Any = x.untyped_storage()
    needed = new.untyped_storage().nbytes() + _offset(x) * x.itemsize
    if needed > storage.nbytes():
        larger = _allocated(needed)
        kept = storage.nbytes()
        larger.block[:kept] = storage.block[:kept] if kept else b""
        storage = larger
    return _placed(x, storage, size, new.stride(), _offset(x))


def fill_(x: Tensor, value: Any) -> Tensor:
    return _write(x, _read(value, x.shape))


def arange(start: Number, end: Number, step: Number = 1, *, out: Tensor) -> Tensor:
    count = max(0, math.ceil((end - start) / step))
    return _write(_resized(out, [count]), [start + k * step for k in range(count)])


def eye(rows: int, columns: int | None = None, *, out: Tensor) -> Tensor:
    columns = rows if columns is None else columns
    _resized(out, [rows, columns])
    return _write(out, [row == column for row in range(rows) for column in range(columns)])


def linspace(start: Number, end: Number, steps: int, *, out: Tensor) -> Tensor:
    step = (end - start) / max(1, steps - 1)
    # from both ends, so that the last number is the end
    numbers = [start + k * step for k in range((steps + 1) // 2)]
    numbers += [end - k * step for k in reversed(range(steps // 2))]
    return _write(_resized(out, [steps]), numbers)


# --- copies -------------------------------------------------------------------------------------


def copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    if to.device.type != "cpu":
        return _write(to, _read(source, to.shape))
    numbers = torch.tensor(_read(source), dtype=source.dtype, device="cpu")
    return to.copy_(numbers.reshape(source.shape))


def item(x: Tensor) -> Number:
    (number,) = _read(x)
    return number


# --- views --------------------------------------------------------------------------------------


def as_strided(x: Tensor, size: Any, stride: Any, offset: int | None = None) -> Tensor:
    offset = _offset(x) if offset is None else offset
    return _over(x.untyped_storage(), x.dtype, size, stride, offset)


def _view(op: Any) -> Callable[..., Tensor]:
    """Return the kernel of a view: the size and strides of one of a tensor without memory."""

    def kernel(x: Tensor, *args: Any) -> Tensor:
        twin = op(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), *args)
        storage = x.untyped_storage()
        return _over(storage, twin.dtype, twin.shape, twin.stride(), _offset(x))

    return kernel


def set_storage(
    x: Tensor, storage: Any, offset: int | None = None, size: Any = None, stride: Any = None
) -> Tensor:
    if size is None:
        return _placed(x, storage, [storage.nbytes() // x.itemsize], [1])
    return _placed(x, storage, size, stride, offset or 0)


# --- elementwise --------------------------------------------------------------------------------


def _pointwise(f: Callable[..., Number]) -> Callable[..., Tensor]:
    """Return the kernel of a function of numbers: `f(1.0, 2.0)` for each pair of elements."""

    def kernel(*inputs: Any, out: Tensor, **options: Any) -> Tensor:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        size = torch.broadcast_shapes(*[x.shape for x in tensors])
        rows = zip(*[_read(x, size) for x in inputs], strict=True)
        numbers = [f(*row, **options) for row in rows]
        return _write(_resized(out, size), numbers)

    return kernel


def _or(otherwise: Number, f: Callable[..., Number]) -> Callable[..., Number]:
    """Return `f` with a number outside of its domain, where Python raises."""

    def with_default(*args: Number) -> Number:
        try:
            return f(*args)
        except (ValueError, OverflowError):
            return math.nan if any(map(math.isnan, args)) else otherwise

    return with_default


def _log(x: Number) -> Number:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def _quotient(x: Number, y: Number) -> Number:
    if y != 0:
        return x / y
    sign = math.copysign(1, x) * math.copysign(1, y)
    return math.nan if x == 0 or math.isnan(x) or math.isnan(y) else sign * math.inf


def _sigmoid(x: Number) -> Number:
    if x < 0:
        power = math.exp(x)
        return power / (1 + power)
    return 1 / (1 + math.exp(-x))


def _extreme(pick: Callable[..., Number]) -> Callable[..., Number]:
    """Return the larger or smaller of two numbers, or a NaN among them."""
    return lambda x, y: next((z for z in (x, y) if z != z), None) or pick(x, y)


def _clamped(x: Number, low: Number = None, high: Number = None) -> Number:
    for bound, pick in ((low, _extreme(max)), (high, _extreme(min))):
        x = x if bound is None else pick(x, bound)
    return x


def _whole(f: Callable[..., Number]) -> Callable[..., Number]:
    """Return `f`, which rounds, with the sign of a zero and for infinities."""
    return lambda x: math.copysign(f(x), x) if math.isfinite(x) else x


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "add.out": lambda x, y, alpha=1: x + alpha * y,
    "sub.out": lambda x, y, alpha=1: x - alpha * y,
    "mul.out": lambda x, y: x * y,
    "div.out": _quotient,
    "neg.out": lambda x: -x,
    "abs.out": abs,
    "exp.out": _or(math.inf, math.exp),
    "log.out": _log,
    "sqrt.out": _or(math.nan, math.sqrt),
    "rsqrt.out": lambda x: math.nan if x < 0 else _quotient(1.0, math.sqrt(x)),
    "reciprocal.out": lambda x: _quotient(1.0, x),
    "sin.out": _or(math.nan, math.sin),
    "cos.out": _or(math.nan, math.cos),
    "tanh.out": math.tanh,
    "sigmoid.out": _sigmoid,
    "erf.out": math.erf,
    "floor.out": _whole(math.floor),
    "round.out": _whole(round),
    "maximum.out": _extreme(max),
    "minimum.out": _extreme(min),
    "clamp.out": _clamped,
    "clamp.Tensor_out": _clamped,
    "logical_and.out": lambda x, y: bool(x) and bool(y),
    "logical_not.out": lambda x: not x,
}
"""The ops in the order in which level 5 asks for them, as functions of numbers."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

# --- all of them --------------------------------------------------------------------------------


def _kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield each overload with its kernel."""
    own: dict[str, Callable[..., Any]] = {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "resize_": resize_,
        "fill_.Scalar": fill_,
        "fill_.Tensor": fill_,
        "zero_": lambda x: fill_(x, 0),
        "arange.start_out": arange,
        "eye.out": eye,
        "eye.m_out": eye,
        "linspace.out": linspace,
        "_copy_from": copy_from,
        "_local_scalar_dense": item,
        "as_strided": as_strided,
        "set_.source_Storage": set_storage,
        "set_.source_Storage_storage_offset": set_storage,
    }
    yield from own.items()
    for name in ("view", "view.dtype", "_reshape_alias", "unfold"):
        packet, _, overload = name.partition(".")
        yield name, _view(getattr(getattr(ATEN, packet), overload or "default"))
    for name, f in FUNCTIONS.items():
        yield name, _pointwise(f)
    for name in COMPARISONS:
        for kind in ("Tensor", "Scalar"):
            yield f"{name}.{kind}_out", _pointwise(getattr(operator, name))


def _restored(storage: Any, location: str) -> Any:
    """Return a storage that was read from a file, if it belongs here."""
    if location.partition(":")[0] != NAME:
        return None
    mine = _allocated(storage.nbytes())
    ctypes.memmove(mine.block, storage.data_ptr(), storage.nbytes())
    return mine


_setup_privateuseone_for_python_backend(NAME, Slate())
_LIBRARY = torch.library.Library("aten", "IMPL")
for _name, _kernel in _kernels():
    _LIBRARY.impl(_name, _kernel, "PrivateUse1")
torch.serialization.register_package(
    0, lambda storage: NAME if storage.device.type == NAME else None, _restored
)
