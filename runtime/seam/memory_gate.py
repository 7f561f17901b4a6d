"""Lets a captured program read the memory of tensors from outside.

    jit(lambda x: x * float(b.numpy().sum()))       # the elements of b, a tensor from outside

``numpy()`` calls ``detach`` of ATen and takes the memory of the result. A capture would return a
shell from that ``detach``: a tensor without memory, see :mod:`.memory`. So the gate, a mode for
functions of torch, sees the call of ``numpy()`` first, and turns the capture off for it.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, GetSetDescriptorType, MethodDescriptorType
from typing import Any

import torch
from torch.distributions import ContinuousBernoulli, Distribution, Geometric
from torch.overrides import TorchFunctionMode

from ..errors import InplaceError, called_from
from ..torch_private.dispatcher import OpOverload, OpOverloadPacket
from ..torch_private.mode_stacks import (
    current_dispatch_modes,
    current_function_modes,
    unseen_by_handlers,
    without_dispatch_to_python,
    without_modes,
)
from ..torch_private.native_tensors import TensorBase
from .call_types import Arguments, Kernel, Keywords
from .exchanged_methods import (
    ExchangedMethod,
    give_arrays,
    make_forward,
    make_validating,
)
from .level_mode import EnteringMode, LevelMode
from .levels import Level, bottom
from .literals import has_values, readable, stacked
from .memory import place, refuse_data, storage_of
from .shape_errors import note_own_error
from .shells import VALUES
from .user_code import is_user_code_watched, noted


class MemoryGate(TorchFunctionMode):
    """A mode in which methods that reach for the memory of a tensor from outside get it.

    ``shared``: for each storage that an array of the program shares, by address: the line that
    created the array. A later write of the program to the tensor would not show in the array.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[int, str] = {}

    def __enter__(self) -> MemoryGate:
        for method in _EXCHANGED:
            method.enter()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for method in _EXCHANGED:
            method.exit()

    def __torch_function__(
        self,
        func: Kernel,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        kwargs = kwargs or {}
        # `torch.tensor` of a list dispatches nothing, so no level would see the values in it
        if func in _FROM_LISTS and args:
            data = readable(args[0])
            if has_values(data):
                return _tensor_of_list(func, data, *args[1:], **kwargs)
        args = _with_tensors_of_places(func, args)
        access = _ACCESSES.get(func) or _access_by_name(func)
        if access is not None and args and _is_outside(args[0]):
            return access(self, func, args, kwargs)
        # this package names a method of torch's in order to ask the object itself
        if args and type(args[0]) in VALUES and is_user_code_watched():
            func = _own_method(func, type(args[0]))
        return _called(func, args, kwargs)

    def refuse_written(self, tensor: torch.Tensor) -> None:
        """Raise ``InplaceError`` if the program has an array that shares the memory of ``tensor``,
        to which it has written."""
        if not self.shared:
            return
        line = self.shared.get(address_of(tensor))
        if line is not None:
            raise InplaceError(
                "the program writes to a tensor whose memory it has taken as an array or a "
                "storage, which would not show the write. Let it read the elements by tolist(), "
                f"or write before or after the transformed function. It was taken{line}"
            )


def _own_method(func: Kernel, cls: type) -> Kernel:
    """Return what the class ``cls`` of values has in place of ``func`` of torch's class of tensors.

    torch.Tensor.storage_offset(x)      # is as x.storage_offset()
    torch.Tensor.is_leaf.__get__(x)     # as x.is_leaf
    torch.ops.aten.is_leaf(x)           # the same
    """
    name = _NATIVE_NAMES.get(func)
    if name is None and isinstance(func, (OpOverload, OpOverloadPacket)):
        name = _name_of_question(func)
    if name is None:
        return func
    own = getattr(cls, name)
    if isinstance(own, property):
        return own.fget or func
    if isinstance(own, FunctionType) and own is not vars(torch.Tensor).get(name):
        return own
    return func


def _name_of_question(op: OpOverload | OpOverloadPacket) -> str | None:
    """Return the method of tensors that asks what an operator of ATen asks about the object."""
    space, _, name = str(op).partition(".")
    name = name.partition(".")[0].removeprefix("sym_")
    return name if space == "aten" and name in _QUESTIONS else None


def memory_gate() -> AbstractContextManager[MemoryGate]:
    """Return a context with the gate of this thread: a new one, or the one that is entered."""
    gate = _gate()
    if gate is None:
        return MemoryGate()
    return nullcontext(gate)


def _gate() -> MemoryGate | None:
    """Return the gate that this thread has entered."""
    for mode in reversed(current_function_modes()):
        if isinstance(mode, MemoryGate):
            return mode
    return None


def _is_capturing() -> bool:
    """Return whether this thread captures a program: only then exchanged methods are ours."""
    return _gate() is not None


_EXCHANGED = (
    ExchangedMethod(torch.nn.TransformerEncoder, "forward", make_forward, _is_capturing),
    ExchangedMethod(Distribution, "__init__", make_validating, _is_capturing),
    ExchangedMethod(Distribution, "_validate_sample", make_validating, _is_capturing),
    ExchangedMethod(Geometric, "__init__", make_validating, _is_capturing),
    ExchangedMethod(ContinuousBernoulli, "__init__", make_validating, _is_capturing),
)
give_arrays(_is_capturing)


def _is_outside(tensor: Any) -> bool:
    """Return whether ``tensor`` is a tensor that belongs to no transform. Level 0 is the
    session."""
    while type(tensor) in VALUES:
        if tensor._level.number:
            return False
        tensor = tensor._inner
    return isinstance(tensor, torch.Tensor)


def _tensor_of_list(
    func: object,
    data: object,
    dtype: torch.dtype | None = None,
    device: object = None,
    *,
    requires_grad: bool = False,
) -> object:
    """Return ``torch.tensor(data)`` of a list with values in it. Torch would read their memory."""
    return stacked(data, dtype, device).requires_grad_(requires_grad)


def _with_tensors_of_places(func: Kernel, args: Arguments) -> Arguments:
    """Return ``args`` with another index, if ``func`` takes one: see :func:`_index_of_tensors`."""
    if func not in _OF_INDICES or len(args) < 2:
        return args
    return (args[0], _index_of_tensors(args[1]), *args[2:])


def _index_of_tensors(index: object) -> object:
    """Return ``index`` with a tensor in place of each list that has values in it.

    Example: ``x[[0, i],]`` takes the places 0 and ``i``, and torch would read the memory of ``i``.
    A list by itself is a tuple to torch if it is short and has tensors or lists: ``x[[0, i]]`` is
    ``x[0, i]``.
    """
    if not has_values(index):
        return index
    if isinstance(index, tuple) or len(index) < _LONGEST_TUPLE:  # type: ignore[arg-type]
        return tuple(map(_tensor_of_places, index))  # type: ignore[call-overload]
    return _tensor_of_places(index)


def _tensor_of_places(index: object) -> object:
    """Return the tensor of a list with values in it, and any other index as it is."""
    data = readable(index)
    if has_values(data):
        return stacked(data, None, None)
    return index


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of the storage of ``tensor``. 0 if it has none, or several."""
    tensor = bottom(tensor)
    with without_dispatch_to_python():
        if tensor.layout is not torch.strided:
            return 0
        return int(storage_of(tensor)._cdata)


def _captures() -> Iterator[Level | EnteringMode]:
    """Yield what captures the program. That is nothing while this package or torch works for the
    capture."""
    for mode in current_dispatch_modes():
        if isinstance(mode, LevelMode):
            yield mode.level
        elif isinstance(mode, EnteringMode):
            yield mode


def _called(func: Kernel, args: Arguments, kwargs: Keywords) -> object:
    """Return ``func(*args, **kwargs)`` of torch."""
    try:
        return func(*args, **kwargs)
    except Exception as error:
        note_own_error(error, func, args, kwargs or {})
        raise


def _read(gate: MemoryGate, func: Any, args: Arguments, kwargs: Any) -> Any:
    """Call a method that reads the elements of a tensor from outside. The captures note that the
    program knows them.

    ``InplaceError`` if the program has written to the tensor before.
    """
    tensor = args[0]
    address = address_of(tensor)
    for capture in _captures():
        if address and capture.overtakes(address):
            raise noted(
                InplaceError(
                    f"{func.__name__}() of a tensor that the program has written to: the "
                    "write is in "
                    "the graph, and the memory has the elements from before. Read the "
                    "elements before "
                    f"the write, or outside.{place()}"
                )
            )
        capture.note_elements(tensor)
    with without_modes():
        return _called(func, args, kwargs)


def _share(gate: MemoryGate, func: object, args: Arguments, kwargs: object) -> object:
    """Call a method that returns an array or a storage of the tensor's memory, and note it."""
    array = _read(gate, func, args, kwargs)
    if any(_captures()):
        # the first line that took the memory is the one to change
        gate.shared.setdefault(address_of(args[0]), called_from())
    return array


def _copy(gate: MemoryGate, func: Kernel, args: Arguments, kwargs: Keywords) -> object:
    """Copy a tensor for ``copy.deepcopy(tensor)`` by ``clone``, a call that a capture sees."""
    tensor, memo = args
    # what `clone` does not copy: the flag, the attributes and the memory of another layout
    if tensor.requires_grad or vars(tensor) or tensor.layout is not torch.strided:
        raise noted(
            RuntimeError(
                "copy.deepcopy() of a tensor that requires grad or has attributes, in a "
                "program that "
                f"is captured. Use clone(), or copy it outside.{place()}"
            )
        )
    # `deepcopy` looks here when it meets the same tensor again
    memo[id(tensor)] = clone = tensor.clone()
    return clone


def _refuse(gate: MemoryGate, func: Kernel, args: object, kwargs: object) -> object:
    """Raise for a method that writes by a function of Python."""
    raise noted(
        RuntimeError(
            f"{func.__name__}() writes to the memory of a tensor by a function of Python, and "
            "a graph "
            f"has calls of ATen alone. Compute with tensor operations, or call it outside.{place()}"
        )
    )


def _move(gate: MemoryGate, func: Kernel, args: Arguments, kwargs: Keywords) -> object:
    """Call a method that needs the memory, and from which the program learns no element."""
    with without_modes():
        return func(*args, **kwargs)


def _compare(gate: MemoryGate, func: Kernel, args: Arguments, kwargs: Keywords) -> object:
    """Call a method that compares the memory of two tensors. Those from outside have theirs, which
    the values of the trace for them have not."""
    if all(map(_is_outside, (*args, *kwargs.values()))):
        return _move(gate, func, args, kwargs)
    return _called(func, args, kwargs)


_FROM_LISTS = frozenset((torch.tensor, torch.as_tensor, torch.asarray))
_LONGEST_TUPLE = 32  # a list with so many items is a list of places to torch, whatever they are
_OF_INDICES = frozenset((torch.Tensor.__getitem__, torch.Tensor.__setitem__))
# (gate, method, its arguments, its keywords) -> its result
_Access = Callable[[MemoryGate, Kernel, Any, Any], object]
_BY_NAME: dict[_Access, tuple[str, ...]] = {
    _read: ("tolist", "__reduce_ex__", "__repr__", "__format__"),
    _share: ("numpy", "__array__", "__dlpack__", "storage", "untyped_storage", "_typed_storage"),
    _copy: ("__deepcopy__",),
    _move: ("share_memory_", "data_ptr"),
    _compare: ("is_set_to",),
    _refuse: ("apply_", "map_", "map2_"),
}
_METHODS: dict[str, _Access] = {}
for _access, _names in _BY_NAME.items():
    _METHODS.update(dict.fromkeys(_names, _access))
_ACCESSES: dict[object, _Access] = {
    getattr(torch.Tensor, name): access for name, access in _METHODS.items()
}
_ACCESSES[TensorBase.data.__set__] = lambda gate, func, args, kwargs: refuse_data()  # type: ignore[attr-defined]


_MARK = "requires_grad"
"""The mark of torch's own engine, which this package asks natively in the user's code."""
_QUESTIONS = frozenset(
    (
        "_version",
        "is_inference",
        "is_leaf",
        "is_set_to",
        "output_nr",
        "requires_grad",
        "retains_grad",
        "storage_offset",
    )
)
"""Operators of ATen that tell of the object itself, and not of its elements."""
# by method of torch's class of tensors that changes nothing, or by getter of an attribute: its name
_NATIVE_NAMES: dict[Any, str] = {}
for _cls in (TensorBase, torch.Tensor):
    for _name, _own in vars(_cls).items():
        # methods that write, and special ones, are no questions
        if _name.endswith("_") or _name in ("retain_grad", _MARK):
            continue
        if isinstance(_own, (FunctionType, MethodDescriptorType)):
            _NATIVE_NAMES[_own] = _name
        elif isinstance(_own, (GetSetDescriptorType, property)):
            _NATIVE_NAMES[_own.__get__] = _name


def _access_by_name(func: object) -> _Access | None:
    """Return the access of a method that has replaced torch's, as a drop-in does. None for any
    other function."""
    name = str(getattr(func, "__name__", ""))
    access = _METHODS.get(name)
    if access is not None and getattr(torch.Tensor, name) is func:
        return access
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is of torch's own classes, and neither sparse nor nested, so that
    its memory has all of its elements."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return tensor.layout is torch.strided and not tensor.is_nested


def elements_of(tensor: torch.Tensor) -> bytes:
    """Return the present elements of ``tensor`` as bytes, which are only compared.

    ``tensor`` belongs to no transform. ``RuntimeError`` with the user's line for a tensor of a
    class that cannot be saved.
    """
    tensor = bottom(tensor)
    with without_modes(), torch.no_grad(), unseen_by_handlers():
        if tensor.is_meta:  # without elements, nothing can differ
            return b""
        if _is_plain(tensor):
            flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            if not flat.numel():
                return b""
            # by its address: after `numpy()` the memory could never be resized
            return ctypes.string_at(flat.data_ptr(), flat.nbytes)
        # finds the tensors in which a sparse one, or one of a user's class, has its elements
        file = io.BytesIO()
        try:
            torch.save(tensor.detach(), file)
        except Exception as error:  # whatever the class raises
            raise noted(
                RuntimeError(
                    f"the program reads the elements of a {type(tensor).__name__} that it "
                    "closes over, "
                    f"which cannot be saved to compare them in later calls.{place()}"
                )
            ) from error
        return file.getvalue()
