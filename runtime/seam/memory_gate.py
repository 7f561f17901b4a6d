"""The gate to the memory of tensors from outside, while a program is captured.

    jit(lambda x: x * float(b.numpy().sum()))       # the elements of b, a tensor from outside

``numpy()`` calls ``detach`` of ATen and takes the memory of the result. The capture would give it a
shell, which has none, see :mod:`.memory`. So the gate sees the method before, and turns the capture
off for it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import InplaceError, called_from
from ..torch_private.mode_stacks import (
    current_dispatch_modes,
    current_function_modes,
    unseen_by_handlers,
    without_dispatch_to_python,
    without_modes,
)
from ..torch_private.native_tensors import TensorBase
from .level_mode import EnteringMode, LevelMode
from .levels import Level, bottom
from .literals import has_values, readable, stacked
from .memory import place, refuse_data, storage_of
from .padded_rows import Encoders
from .shells import VALUES


class MemoryGate(TorchFunctionMode):
    """While entered, methods that reach for the memory of a tensor from outside find it.

    ``shared``: by address of a storage, where the program got an array or a storage that shares
    it. A later write of the program to the tensor would not show in the array."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[int, str] = {}

    def __enter__(self) -> MemoryGate:
        _ENCODERS.enter()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _ENCODERS.exit()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OF_LISTS and args and has_values(data := readable(args[0])):
            return _made_of_list(func, data, *args[1:], **kwargs or {})
        access = _ACCESSES.get(func) or _access_by_name(func)
        if access is None or not args or not _is_outside(args[0]):
            return func(*args, **kwargs or {})
        return access(self, func, args, kwargs or {})

    def refuse_written(self, t: torch.Tensor) -> None:
        """Raise if the program, which has written to ``t``, has an array that shares its memory."""
        place = self.shared.get(address_of(t)) if self.shared else None
        if place is not None:
            raise InplaceError(
                "the program writes to a tensor whose memory it has taken as an array or a "
                "storage, which would not show the write. Let it read the elements by tolist(), "
                f"or write before or after the transformed function. It was taken{place}"
            )


def memory_gate() -> AbstractContextManager[MemoryGate]:
    """The gate of this thread, which a program enters that is captured."""
    gate = _gate()
    if gate is None:
        return MemoryGate()
    return nullcontext(gate)


def _gate() -> MemoryGate | None:
    for mode in reversed(current_function_modes()):
        if isinstance(mode, MemoryGate):
            return mode
    return None


_ENCODERS = Encoders(captures=lambda: _gate() is not None)


def _is_outside(t: Any) -> bool:
    """Return whether ``t`` is a tensor that belongs to no transform."""
    while type(t) in VALUES:
        if t._level.number:
            return False
        t = t._inner
    return isinstance(t, torch.Tensor)


def _made_of_list(
    func: object,
    data: object,
    dtype: Any = None,
    device: object = None,
    *,
    requires_grad: bool = False,
) -> object:
    """``torch.tensor`` and its like of a list with values in it, whose memory torch would read."""
    return stacked(data, dtype, device).requires_grad_(requires_grad)


def address_of(t: Any) -> int:
    """Where the storage of ``t`` is. 0: it has none, or several."""
    t = bottom(t)
    with without_dispatch_to_python():
        if t.layout is not torch.strided:
            return 0
        return int(storage_of(t)._cdata)


def _around() -> Iterator[Level | EnteringMode]:
    """What captures the program. Nothing, if this package or torch works for the capture."""
    for mode in current_dispatch_modes():
        if isinstance(mode, LevelMode):
            yield mode.level
        elif isinstance(mode, EnteringMode):
            yield mode


def _read(gate: MemoryGate, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the elements of a tensor from outside. The modes around note that the program knows
    them."""
    t = args[0]
    address = address_of(t)
    for each in _around():
        if address and each.overtakes(address):
            raise InplaceError(
                f"{func.__name__}() of a tensor that the program has written to: the write is in "
                "the graph, and the memory has the elements from before. Read the elements before "
                f"the write, or outside.{place()}"
            )
        each.note_elements(t)
    with without_modes():
        return func(*args, **kwargs)


def _share(gate: MemoryGate, func: object, args: Any, kwargs: object) -> object:
    found = _read(gate, func, args, kwargs)
    if any(_around()):
        gate.shared.setdefault(address_of(args[0]), called_from())
    return found


def _copy(gate: MemoryGate, func: Any, args: Any, kwargs: Any) -> object:
    """``copy.deepcopy(t)`` as a call that a capture sees."""
    t, memo = args
    if t.requires_grad or vars(t) or t.layout is not torch.strided:
        raise RuntimeError(
            "copy.deepcopy() of a tensor that requires grad or has attributes, in a program that "
            f"is captured. Use clone(), or copy it outside.{place()}"
        )
    memo[id(t)] = copied = t.clone()
    return copied


def _refuse(gate: MemoryGate, func: Any, args: object, kwargs: object) -> object:
    raise RuntimeError(
        f"{func.__name__}() writes to the memory of a tensor by a function of Python, and a graph "
        f"has calls of ATen alone. Compute with tensor operations, or call it outside.{place()}"
    )


def _move(gate: MemoryGate, func: Any, args: Any, kwargs: Any) -> object:
    with without_modes():
        return func(*args, **kwargs)


_OF_LISTS = frozenset((torch.tensor, torch.as_tensor, torch.asarray))
_Access = Callable[[MemoryGate, Any, Any, Any], Any]
_BY_NAME: dict[_Access, tuple[str, ...]] = {
    _read: ("tolist", "__reduce_ex__", "__repr__", "__format__"),
    _share: ("numpy", "__array__", "__dlpack__", "storage", "untyped_storage", "_typed_storage"),
    _copy: ("__deepcopy__",),
    _move: ("share_memory_", "data_ptr"),
    _refuse: ("apply_", "map_", "map2_"),
}
_METHODS = {name: access for access, names in _BY_NAME.items() for name in names}
_ACCESSES: dict[Any, _Access] = {
    getattr(torch.Tensor, name): access for name, access in _METHODS.items()
}
_ACCESSES[TensorBase.data.__set__] = lambda gate, func, args, kwargs: refuse_data()  # type: ignore[attr-defined]


def _access_by_name(func: object) -> _Access | None:
    """The access of a method that something has put in the place of torch's, as a drop-in does."""
    name = str(getattr(func, "__name__", ""))
    access = _METHODS.get(name)
    if access is not None and getattr(torch.Tensor, name) is func:
        return access
    return None


def elements_of(t: torch.Tensor) -> bytes:
    """Return what the elements of ``t``, which is of no transform, are now: to be compared later.
    ``RuntimeError`` with the user's line for a tensor of a class that cannot be saved."""
    t = bottom(t)
    with without_modes(), torch.no_grad(), unseen_by_handlers():
        if type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided:
            flat = t.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            if not flat.numel():
                return b""
            return flat.view(torch.uint8).numpy().tobytes()
        file = io.BytesIO()
        try:
            torch.save(t.detach(), file)
        except Exception as error:  # whatever the class raises
            raise RuntimeError(
                f"the program reads the elements of a {type(t).__name__} that it closes over, "
                f"which cannot be saved to compare them in later calls.{place()}"
            ) from error
        return file.getvalue()
