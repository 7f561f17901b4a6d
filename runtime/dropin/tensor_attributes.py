"""Attributes of ``torch.Tensor`` that the session's tensors answer in their own way.

    torch.Tensor.grad.__get__(x)      # as x.grad
    torch.Tensor.numpy(x)             # as x.numpy()

A program may take a method or a property from the class. Torch's own would read what torch stores
for ``x``, such as a gradient that torch's engine has never set. A user's ``__torch_function__``
gets these functions too, and compares them with the attributes of ``torch.Tensor``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..seam.levels import Value
from ..seam.shells import VALUES
from ..session.subclasses import NATIVE, PUBLIC, asking
from ..session.tensor import Tensor
from ..torch_private.mode_stacks import unseen_by_classes
from ..torch_private.native_tensors import TensorBase
from .patches import Patches

UNINITIALIZED = (UninitializedParameter, UninitializedBuffer)
METHODS = (
    *("__array__", "__deepcopy__", "__dlpack__", "__format__", "__reduce_ex__", "__repr__"),
    *("_is_view", "as_subclass", "detach_", "numpy", "register_hook", "retain_grad", "tolist"),
    *("register_post_accumulate_grad_hook", "requires_grad_", "share_memory_", "backward"),
    *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"),
)
PROPERTIES = (
    *("_backward_hooks", "_base", "_grad", "data", "grad", "grad_dtype", "grad_fn", "is_leaf"),
    *("output_nr", "requires_grad", "retains_grad"),
)
# the methods of plain tensors of the session that a mode for functions of torch sees
_SEEN_BY_MODES = (
    *("backward", "detach_", "numpy", "register_hook", "requires_grad_", "retain_grad", "tolist"),
)


def _own(tensor: object, name: str) -> Any:
    """Return the attribute ``name`` of the runtime's class of ``tensor``, whatever a user's class
    has. None: it has torch's."""
    for cls in type(tensor).__mro__:
        if issubclass(cls, Value) and name in vars(cls):
            return vars(cls)[name]
    return None


class Property:
    """A property of ``torch.Tensor``: the session's own for values, else torch's."""

    def __init__(self, name: str, native: Any) -> None:
        self.name = name
        self.native = native
        # `_grad` is another name of `grad`, as in torch
        self._own_name = "grad" if name == "_grad" else name

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> object:
        """Return the attribute of ``tensor``, by the class of the session if it is a value."""
        if tensor is None:
            return self
        if type(tensor) not in VALUES:
            if not isinstance(tensor, UNINITIALIZED):
                return self.native.__get__(tensor)
            # the class of a lazy parameter recognizes torch's own descriptors alone
            with unseen_by_classes():
                return self.native.__get__(tensor)
        own = _own(tensor, self._own_name)
        if own is None:
            return self.native.__get__(tensor)
        return own.__get__(tensor)

    def __set__(self, tensor: torch.Tensor, value: object) -> None:
        """Set the attribute, as :meth:`__get__` reads it."""
        if type(tensor) not in VALUES:
            if not isinstance(tensor, UNINITIALIZED):
                self.native.__set__(tensor, value)
                return
            with unseen_by_classes():
                self.native.__set__(tensor, value)
            return
        attribute = _own(tensor, self._own_name)
        if attribute is None:
            attribute = self.native
        attribute.__set__(tensor, value)

    def __delete__(self, tensor: object) -> None:
        attribute = _own(tensor, self.name) if type(tensor) in VALUES else None
        if attribute is None:
            attribute = self.native
        attribute.__delete__(tensor)


def _method(name: str, native: Callable[..., object]) -> Callable[..., object]:
    """Return a method of ``torch.Tensor``: the session's own for values, else ``native``."""

    @functools.wraps(getattr(torch.Tensor, name))
    def method(self: object, *args: object, **kwargs: object) -> object:
        own = _own(self, name) if type(self) in VALUES else None
        return (own or native)(self, *args, **kwargs)

    return method


def patch_attributes(
    patches: Patches, methods: Mapping[str, Callable[..., object]], properties: Mapping[str, object]
) -> None:
    """Replace the attributes. ``methods`` and ``properties``: what plain tensors do instead of
    torch's own."""
    natives = {name: getattr(torch.Tensor, name) for name in METHODS}
    # PUBLIC has what a user's __torch_function__ gets, and NATIVE torch's own function for that
    for name in PROPERTIES:
        native = properties.get(name) or getattr(torch.Tensor, name)
        attribute = Property(name, native)
        patches.set(torch.Tensor, name, attribute)
        PUBLIC[name] = attribute.__get__
        for accessor in ("__get__", "__set__", "__delete__"):
            NATIVE[getattr(attribute, accessor)] = getattr(getattr(TensorBase, name), accessor)
    for name in METHODS:
        method = _method(name, methods.get(name) or getattr(torch.Tensor, name))
        patches.set(torch.Tensor, name, method)
        PUBLIC[name] = method
        NATIVE[method] = natives[name]
    for name in _SEEN_BY_MODES:
        patches.set(Tensor, name, asking(name, getattr(Tensor, name)))
    # torch's set of properties whose results stay as they are names the present ones
    torch.overrides.get_default_nowrap_functions.cache_clear()
    patches.callback(_forget)


def _forget() -> None:
    """Empty the tables, when torch's attributes are back."""
    PUBLIC.clear()
    NATIVE.clear()
    torch.overrides.get_default_nowrap_functions.cache_clear()
