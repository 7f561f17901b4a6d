"""Replaces the contents of a tensor object that the program still refers to.

``x.t_()`` and ``b[0] = x[0]`` change the object that they are called on, so a level cannot answer
with a new value. The object stays, and something inside it is replaced. The runtime does this in
three ways, all of them here:

- :func:`refit` replaces the sizes, strides, offset and storage that the object shows. That is for
  ``resize_`` and ``set_``, whose kernel changed the inner tensor, for an assignment to ``.data``,
  and for ``t_`` and its like, by :func:`change_geometry`, which also copies the attributes of the
  view op's result.
- :func:`detach_inner` replaces the inner tensor of a value, for ``detach_``: outer levels drop the
  history as well.
- :func:`exchange` replaces everything: two objects swap their contents. That is for a write of a
  value into a tensor that is no value: it becomes one, and changes back when the transform returns
  (``tape/lift.py``).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import called_from
from ..torch_private.dispatcher import DispatchKey, DispatchKeySet, OpOverload, without_keys
from ..torch_private.mode_stacks import without_dispatch_to_python
from ..torch_private.native_tensors import TensorBase, swap_contents
from ..torch_private.pytrees import pytree

# sets the type of an object, which may say another class when it is asked for ``__class__``
set_class: Any = object.__dict__["__class__"].__set__
_set_data: Any = TensorBase.data.__set__  # type: ignore[attr-defined]
# What an assignment to `.data` here must not pass through. ATen asks an op whether the two are
# compatible. It must not make memory of a lazy conjugate, since a shell has none. And the gate to
# memory (`.memory`), which answers with the keys of autograd, refuses this to users.
_UNASKED = functools.reduce(
    operator.or_,
    map(
        DispatchKeySet,
        (
            DispatchKey.Conjugate,
            DispatchKey.Negative,
            DispatchKey.AutogradFunctionality,
            DispatchKey.AutogradNestedTensor,
            DispatchKey.AutogradOther,
        ),
    ),
)

# In-place ops that change only sizes and strides. Each is its view op plus a change of the value's
# own geometry. They are listed here because this floor has no records, and because torch's tag
# `inplace_view` also covers `detach_`, `resize_` and `set_`, which `tape/inplace.py` handles.
GEOMETRY = frozenset(
    ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_")
)


def refit(value: Any, fresh: Any) -> None:
    """Give the value ``value`` the sizes, strides and storage of ``fresh``, a value of the same
    class. ``value`` keeps its version counter."""
    with without_dispatch_to_python(), without_keys(_UNASKED):
        _set_data(value, fresh)
    value._geometry = fresh._geometry


def show_geometry(tensor: Any, like: torch.Tensor, inner: object) -> None:
    """Give ``tensor`` the sizes and strides of ``like``, a detached view of it. History and version
    stay. ``inner``: what a value holds from now on; None for a tensor that is no value."""
    if inner is not None:
        refit(tensor, like)
        tensor._inner = inner
        return
    with without_dispatch_to_python(), without_keys(_UNASKED):
        _set_data(tensor, like)


def change_geometry(
    view_op: OpOverload, target: Any, args: Sequence[object], kwargs: dict[str, object]
) -> Any:
    """Run ``x.squeeze_()`` and its like on any value: ``target`` gets the geometry and the
    attributes of the result of ``view_op``."""
    # then a view of it is a normal tensor, too
    if torch.is_inference_mode_enabled() and not target.is_inference():
        recording = torch.is_grad_enabled()  # which leaving the inference mode would switch on
        with torch.inference_mode(False), torch.set_grad_enabled(recording):
            return change_geometry(view_op, target, args, kwargs)
    fresh = view_op(target, *args, **kwargs)
    # views of the target lead from the geometry that they know
    if target.layout is torch.strided:
        target._earlier = {
            **(target._earlier or {}),
            target._reshaped: (target.shape, target.stride(), target.storage_offset()),
        }
    refit(target, fresh)
    state = dict(fresh.__dict__)
    for name in ("_nesting", "_root"):  # which are about `fresh` as a view of `target`
        state.pop(name, None)
    if target._view is None:
        state.pop("_view", None)
    target.__dict__.update(state)
    target._reshaped += 1
    target._reshaped_at = called_from()
    return target


def detach_inner(value: Any) -> None:
    """Detach the inner tensor of ``value``, so that it has no history at outer levels."""
    value._inner = value._inner.detach()


def exchange(first: Any, second: torch.Tensor) -> None:
    """Swap the contents of ``first`` and ``second``: tensor, class and attributes. Each object
    keeps its identity."""
    swap_contents(first, second)
    class_of_first, class_of_second = type(first), type(second)
    set_class(first, class_of_second)
    set_class(second, class_of_first)
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__


class Left(torch.Tensor):
    """The former self of a tensor object, before :func:`replace`. C++ may still refer to it and
    return it. Whatever is asked of it is asked of the object, ``_now``."""

    _now: torch.Tensor

    def __getattribute__(self, name: str) -> object:
        if name in ("_now", "__torch_function__"):  # torch asks the object for the latter
            return object.__getattribute__(self, name)
        return getattr(self._now, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._now, name, value)

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self._now)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        args, kwargs = pytree.tree_map(now, (args, kwargs or {}))
        return func(*args, **kwargs)


def now(tensor: object) -> Any:
    """Return the object that a :class:`Left` was. Anything else as it is."""
    if type(tensor) is Left:
        return tensor._now
    return tensor


def replace(tensor: object, other: Any) -> None:
    """Give ``tensor`` the contents of ``other``, a tensor of the same memory. ``other`` becomes the
    former self of ``tensor``, a :class:`Left`, and leads to it."""
    exchange(tensor, other)
    other._now = tensor
    set_class(other, Left)
