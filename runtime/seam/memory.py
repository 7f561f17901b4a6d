"""Guards the memory of tensors: the one gate to it.

    vmap(lambda x: x.untyped_storage())             # refused: the value of a vmap has no memory

A *shell* shows the sizes of a tensor and has no memory. While a program is captured, ATen gives a
shell also for what it computes of a tensor from outside. Most functions of torch call ATen, and a
level sees them. The others reach for the memory itself. Each of them passes here:

- A data pointer: torch raises when a kernel or NumPy asks a storage for it that :mod:`.shells`
  has closed.
- A storage, or a loop of Python over the elements: methods of a value refuse it, see
  :func:`guard_methods`.
- An exchange of memory, ``a.data = b``: torch asks ATen first whether the two are compatible.
  :func:`_are_compatible` answers, and refuses a shell.
- A tensor from outside, while a program is captured: see :mod:`.memory_gate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ..errors import called_from
from ..torch_private.dispatcher import DispatchKey, DispatchKeySet
from ..torch_private.mode_stacks import unseen_by_handlers
from ..torch_private.native_tensors import TensorBase, use_count
from .shells import VALUES
from .user_code import noted

_storage = TensorBase.untyped_storage


def is_shell(tensor: object) -> bool:
    """Return whether ``tensor`` is a value without memory of its own."""
    return type(tensor) in VALUES and tensor._geometry is not None  # type: ignore[attr-defined]


def refuse_access(how: str, value: Any) -> NoReturn:
    """Raise: the program reaches for the memory of ``value`` by ``how``."""
    why = "does not see a loop of Python"
    if is_shell(value):
        why = "has no memory of its own"
    raise noted(
        RuntimeError(
            f"{how} of a tensor inside {value._level.what}, which {why}. Compute with tensor "
            f"operations, or call it on the result or on what is outside.{place()}"
        )
    )


def storage_of(tensor: torch.Tensor) -> Any:
    """Return the storage of ``tensor``, also of a shell, for this package: past the gate."""
    with unseen_by_handlers():
        return _storage(tensor)


def place() -> str:
    """Return the user's line, as the end of an error message."""
    return f" It happened{called_from()}"


def refuse_data() -> NoReturn:
    """Raise: a program that is captured assigns to ``.data`` of a tensor."""
    raise noted(
        RuntimeError(
            "the program assigns to .data of a tensor. Let it use copy_(), which keeps the memory. "
            f"In place of p.grad.data = new it may assign p.grad = new.{place()}"
        )
    )


# --- the methods of values ------------------------------------------------------------------------

# What reaches for the memory without a call of ATen. The values of some levels have better answers
# for others: `numpy`, `tolist`, `__dlpack__`, `copy.deepcopy` and pickle.
_OF_MEMORY = (
    *("_typed_storage", "const_data_ptr", "data_ptr", "share_memory_", "storage"),
    "untyped_storage",
)
# What writes to the memory by a function of Python, which no level sees.
_LOOPS = ("apply_", "map2_", "map_")
# What `torch.utils.swap_tensors` asks of both before it exchanges them. A tensor from outside would
# be a value when the transform has returned.
_BEFORE_SWAP = "_use_count"


def _refusing_shells(name: str) -> Callable[..., object]:
    """Return the method ``name`` of torch's tensors, for values: a shell is refused."""
    of_torch = getattr(torch.Tensor, name)

    def method(self: Any, *args: object, **kwargs: object) -> Any:
        # only a shell was made from a geometry
        if self._geometry is not None:
            refuse_access(f"{name}()", self)
        return of_torch(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"Do ``torch.Tensor.{name}``. Refuse a value without memory."
    return method


def _loop(name: str) -> Callable[..., object]:
    """Return the method ``name`` of torch's tensors, for values: those of a transform are
    refused."""
    of_torch = getattr(torch.Tensor, name)

    def method(self: Any, *args: object) -> Any:
        # level 0 is the session, whose values have memory
        if self._level.number:
            refuse_access(f"{name}()", self)
        if self.requires_grad:
            raise RuntimeError(
                f"Can't call {name}() on Variable that requires grad. "
                f"Use var.detach().{name}() instead."
            )
        return of_torch(self, *args)

    method.__name__ = name
    method.__doc__ = f"Do ``torch.Tensor.{name}``. Refuse a value of a transform."
    return method


def _use_count(value: Any) -> object:
    """Do ``torch.Tensor._use_count``. Refuse a value of a transform."""
    if value._level.number:
        raise noted(
            RuntimeError(
                f"torch.utils.swap_tensors() of a tensor inside {value._level.what}, which would "
                "live on "
                f"after it. Write the numbers by copy_(), or swap outside.{place()}"
            )
        )
    return use_count(value)


def guard_methods(cls: object) -> None:
    """Give the class of values the methods that refuse to reach memory past a level."""
    for name in _OF_MEMORY:
        setattr(cls, name, _refusing_shells(name))
    for name in _LOOPS:
        setattr(cls, name, _loop(name))
    setattr(cls, _BEFORE_SWAP, _use_count)


# --- an exchange of memory ------------------------------------------------------------------------

_LIBRARY = torch.library.Library("aten", "IMPL")
_QUESTION = torch.ops.aten._has_compatible_shallow_copy_type.default
_KERNEL = DispatchKeySet(DispatchKey.CPU)  # one for all devices
# The keys with which torch may ask, outside of inference mode and in it.
_KEYS = (
    "AutogradCPU",
    "AutogradCUDA",
    "AutogradMPS",
    "AutogradXPU",
    "AutogradXLA",
    "AutogradHPU",
    "AutogradLazy",
    "AutogradMeta",
    "AutogradNestedTensor",
    "AutogradOther",
    "AutogradPrivateUse1",
    "AutogradPrivateUse2",
    "AutogradPrivateUse3",
    "Python",
)


def _are_compatible(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether ``tensor`` may take the memory of ``other``: torch's question before
    ``tensor.data = other``."""
    for one in (other, tensor):
        if is_shell(one):
            raise noted(
                RuntimeError(
                    "the program assigns to .data of a tensor, and the value is one of "
                    f"{one._level.what}, or the tensor is. "  # type: ignore[attr-defined]
                    f"Let it use copy_(), which keeps the memory.{place()}"
                )
            )
    answer: bool = _QUESTION.redispatch(_KERNEL, tensor, other)
    return answer


for _key in _KEYS:
    _LIBRARY.impl(_QUESTION._schema.name.partition("::")[2], _are_compatible, _key)
