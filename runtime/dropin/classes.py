"""Change torch's own classes while the drop-in is installed: constructors, ``requires_grad`` of
plain tensors, custom functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..autograd import function
from ..seam.call_types import Arguments
from ..seam.levels import constant_of
from ..seam.literals import readable
from ..seam.own_modules import is_own_module
from ..seam.shells import VALUES
from ..seam.surgery import exchange, set_class
from ..session.subclasses import HOOKS, holds_instance, note_policy, unnoted, wrapper_subclass
from ..session.tensor import Tensor, as_kind, dispatches, unwrap, wrap
from ..torch_private.mode_stacks import unseen_by_classes
from ..torch_private.native_tensors import (
    TensorBase,
    as_installed,
    make_subclass,
    make_wrapper_subclass,
    set_state,
    set_tensor_metadata,
)
from .patches import Patches
from .tensor_attributes import UNINITIALIZED, patch_attributes
from .tensor_factories import as_runtime, inside_dispatch

_requires_grad: Any = TensorBase.requires_grad
_native_requires_grad_: Any = TensorBase.requires_grad_
_Function: Any = torch.autograd.function.Function
_new_tensor = torch.Tensor.__new__
_new_parameter = torch.nn.Parameter.__new__
_swap_tensors: Any = torch.utils.swap_tensors


def become_runtime(tensor: torch.Tensor) -> torch.Tensor:
    """Turn a plain tensor into a runtime tensor of the same storage, in place. All references to it
    then refer to a runtime tensor."""
    value = wrap(tensor.detach())
    swap(tensor, value)
    return tensor


def swap(first: torch.Tensor, second: torch.Tensor) -> None:
    """Do ``torch.utils.swap_tensors``. It exchanges what the two say for ``__class__``. Their
    types are exchanged here. So are slots of a user's class, which the instances have."""
    class_of_first, class_of_second = type(first), type(second)
    with unnoted(first, second):
        # both are values around instances, which are exchanged together with the values
        if holds_instance(first) and holds_instance(second):
            exchange(first, second)
            return
        _swap_tensors(first, second)
        set_class(first, class_of_second)
        set_class(second, class_of_first)


class _RequiresGrad:
    """The attribute ``Tensor.requires_grad`` of plain tensors. Reading it is as in torch. Setting
    it makes the tensor a runtime tensor."""

    def __get__(self, tensor: object, owner: object = None) -> object:
        return _requires_grad.__get__(tensor)

    def __set__(self, tensor: torch.Tensor, value: bool) -> None:
        if isinstance(tensor, UNINITIALIZED):
            _requires_grad.__set__(tensor, value)
        else:
            _require(tensor, value)


def _require(tensor: torch.Tensor, requires_grad: bool = True) -> object:
    """Do ``requires_grad_`` of a tensor that is not a value, which becomes one."""
    if inside_dispatch() or isinstance(tensor, UNINITIALIZED):
        return _native_requires_grad_(tensor, requires_grad)
    if not requires_grad and not tensor.requires_grad:
        return tensor
    return become_runtime(tensor).requires_grad_(requires_grad)


def _construct(cls: type, *args: Any, **kwargs: Any) -> object:
    """Return a new tensor of the session, for ``torch.Tensor.__new__``."""
    if inside_dispatch():
        return _new_tensor(cls, *args, **kwargs)
    if cls is Tensor:
        # `type(x)(…)`. A parameter is one by an attribute, so `x` may be one. Only it has this
        # keyword.
        if "requires_grad" in kwargs:
            return torch.nn.Parameter(*args, **kwargs)
        return torch.Tensor(*args, **kwargs)
    match args:
        case [Tensor() as tensor] if not kwargs:
            return tensor.as_subclass(cls)
    # torch's constructor reads the items of a nested list below Python, where values have none
    args = tuple(
        readable(argument) if isinstance(argument, (list, tuple)) else argument for argument in args
    )
    tensor = as_runtime(_new_tensor(torch.Tensor, *args, **kwargs))
    if cls is torch.Tensor:
        return tensor
    return as_kind(tensor, cls)


def _construct_parameter(
    cls: Any, data: torch.Tensor | None = None, requires_grad: bool = True
) -> object:
    """Return a new parameter of the session, for ``torch.nn.Parameter.__new__``."""
    if data is None:
        data = torch.empty(0)
    # a parameter that a transformed function creates is a leaf of the session; in a program that is
    # captured it is a leaf of the program's tape
    constant = constant_of(data)
    if type(constant) in (torch.Tensor, torch.nn.Parameter):
        data = wrap(constant.detach())
    elif type(constant) is Tensor:
        data = constant
    if cls is not torch.nn.Parameter and type(data) is Tensor:
        return as_installed(make_subclass)(cls, data, requires_grad)
    parameter = _new_parameter(cls, data, requires_grad)
    if type(parameter) is Tensor:
        parameter._shown = torch.nn.Parameter
    return parameter


def _subclass(cls: type, data: torch.Tensor, require_grad: bool = False, **options: Any) -> object:
    """Do ``torch.Tensor._make_subclass``: return a leaf of that class that shares the memory of
    ``data``."""
    is_torchs = bool(options) or issubclass(cls, UNINITIALIZED)
    if is_torchs or (inside_dispatch() and not _creates_in_hook(cls)):
        return make_subclass(cls, unwrap(data), require_grad, **options)
    kind = getattr(cls, "_kind", cls)
    with unseen_by_classes():  # the attributes of the class are set later
        if dispatches(kind):
            return wrap(make_subclass(kind, unwrap(data)), require_grad)
        return as_kind(wrap(data.detach()), kind).requires_grad_(require_grad)


def _creates_in_hook(cls: type) -> bool:
    """Return whether a user's hook makes an instance of ``cls`` that handles its own calls."""
    return HOOKS.depth > 0 and dispatches(getattr(cls, "_kind", cls))


def _wrapper_subclass(cls: object, *args: object, **kwargs: object) -> object:
    """Do ``torch.Tensor._make_wrapper_subclass``: return a tensor of the session around the
    instance, which is below the tape."""
    options = note_policy(cls, args, kwargs)
    if inside_dispatch() and not HOOKS.depth:
        return make_wrapper_subclass(cls, **options)
    return wrapper_subclass(make_wrapper_subclass, cls, options)


def _rebuild_from_type_v2(
    rebuild: Callable[..., Any], kind: type, args: Arguments, state: object
) -> object:
    """Do ``torch._tensor._rebuild_from_type_v2``: return a pickled tensor with attributes, or
    of a user's class."""
    tensor = rebuild(*args)
    if kind is not torch.Tensor and not isinstance(tensor, kind):
        tensor = tensor.as_subclass(kind)
    # a user's class restores its attributes itself
    if type(tensor).__setstate__ is not torch.Tensor.__setstate__:
        tensor.__setstate__(state)
        return tensor
    return set_state(tensor, state)


_rebuild_from_type_v2.__module__ = "torch._tensor"  # pickle finds a function by its module and name


def _set_metadata(tensor: torch.Tensor, metadata: object) -> None:
    """Do ``torch._utils.set_tensor_metadata``, which makes a tensor that was just loaded lazily
    conjugated or negative."""
    set_tensor_metadata(unwrap(tensor), metadata)


def _backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Do ``Tensor.backward`` of a plain tensor."""
    from ..autograd import backward

    backward(tensor, *args, **kwargs)


def _name_values(patches: Patches) -> None:
    """Let the classes of values say that they are of torch. Libraries look up the module of a
    class."""
    for cls in VALUES:
        if is_own_module(cls.__module__):
            patches.set(cls, "__module__", "torch")


def patch_classes(patches: Patches) -> None:
    """Replace constructors and attributes of torch's classes, until ``patches`` are undone."""
    _name_values(patches)
    patches.set(torch.utils, "swap_tensors", swap)
    patches.set(torch.Tensor, "__new__", staticmethod(_construct))
    patches.set(torch.nn.Parameter, "__new__", staticmethod(_construct_parameter))
    patches.set(torch.Tensor, "_make_subclass", staticmethod(_subclass))
    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(_wrapper_subclass))
    # what unpickling calls in place of a constructor
    patches.set(torch._tensor, "_rebuild_from_type_v2", _rebuild_from_type_v2)
    patches.set(torch._utils, "set_tensor_metadata", _set_metadata)
    patch_attributes(
        patches,
        {"requires_grad_": _require, "backward": _backward},
        {"requires_grad": _RequiresGrad()},
    )
    patches.set(
        _Function,
        "apply",
        classmethod(lambda cls, *args, **kwargs: function.apply(cls, args, kwargs)),
    )
