"""Copies and pickles tensors of the session as torch's own. A file names nothing of this package,
so any torch can read it. Under the drop-in, torch's rebuilding functions make tensors of the
session again."""

from __future__ import annotations

import copy
import copyreg
from collections import OrderedDict
from typing import Any

import torch
from torch.utils.hooks import warn_if_has_hooks

from ..seam.levels import Value
from ..seam.user_code import settled
from ..torch_private.native_tensors import (
    TensorBase,
    rebuild_parameter,
    rebuild_parameter_with_state,
    rebuild_with_attributes,
    rebuild_wrapper_subclass,
)

# the names by which torch caches sizes and strides that a user's class tells
_CACHED = ("_sym_sizes_capsule", "_sym_strides_capsule", "_value")
_requires_grad: Any = TensorBase.requires_grad


def state_of(tensor: object, own: frozenset[str]) -> object:
    """Return ``object.__getstate__(tensor)`` without the attributes ``own``, which belong to the
    session."""
    state = object.__getstate__(tensor)
    # a pair for a class with slots
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    of_users = {
        name: value
        for name, value in (attributes or {}).items()
        if name not in own and not name.startswith(_CACHED)
    }
    if slots:
        return of_users or None, slots
    return of_users or None


def reduced(tensor: Any, kind: type, protocol: object) -> Any:
    """Return the result of ``__reduce_ex__`` for ``tensor``, whose class is ``kind`` for users. It
    names torch's functions and the tensor's storage."""
    warn_if_has_hooks(tensor)
    state = tensor.__getstate__()
    if kind is torch.Tensor and state and state.pop("_is_param", False):
        arguments: Any = (tensor.data, tensor.requires_grad, OrderedDict())
        if state:
            return rebuild_parameter_with_state(), (*arguments, state)
        return rebuild_parameter(), arguments
    reducer = copyreg.dispatch_table.get(kind)
    if reducer is not None:
        return reducer(tensor)
    plain = plain_leaf(tensor, tensor.requires_grad)
    rebuild, arguments = plain._reduce_ex_internal(protocol)
    if rebuild is rebuild_wrapper_subclass:
        # as users see it: the instance below the tape requires no grad
        arguments = (kind, *arguments[1:-1], tensor.requires_grad)
    if kind is torch.Tensor and not state:
        return rebuild, arguments
    return rebuild_with_attributes(), (rebuild, kind, arguments, state)


def plain_leaf(tensor: Value, requires_grad: bool) -> torch.Tensor:
    """Return the inner tensor of ``tensor``. With ``requires_grad``, and if it is a plain tensor:
    detached, with that flag set."""
    inner: torch.Tensor = tensor._inner
    if requires_grad and type(inner) is torch.Tensor:
        inner = inner.detach()
        _requires_grad.__set__(inner, True)
    return inner


def deep_copied(tensor: Any, memo: dict[int, object]) -> Any:
    """Return ``copy.deepcopy`` of a leaf. Raise for any other tensor. Copies of tensors that share
    memory share memory, too."""
    if not tensor.is_leaf:
        raise settled(
            RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        )
    copied = tensor._copy_with(
        copy.deepcopy(tensor._inner, memo), copy.deepcopy(tensor.__getstate__(), memo)
    )
    memo[id(tensor)] = copied
    copied._grad = copy.deepcopy(tensor._grad, memo)
    return copied


def _reduced_class(cls: type) -> Any:
    """Return how a class of tensors is pickled: a class of the session as the class that it stands
    for."""
    kind = getattr(cls, "_shown", cls)
    if kind is cls:
        return cls.__qualname__
    return copy.copy, (kind,)


# the metaclasses of tensors and of parameters
for _meta in (type(torch.Tensor), type(torch.nn.Parameter)):
    copyreg.pickle(_meta, _reduced_class)
