"""What is exchanged inside a tensor object that a program goes on holding.

``x.t_()`` and ``b[0] = x[0]`` return the very object that they were called on, so a level cannot answer with a new value. The object stays,
and something inside it is exchanged. There are three such exchanges in the runtime, all of them here:

| exchange | what changes | needed for |
|---|---|---|
| :func:`refit` | sizes, strides, offset and storage that the object shows | ``resize_`` and ``set_``, whose kernel changed the tensor that the value holds; assignment to ``.data``; ``t_`` and its like, by :func:`change_geometry`, which also takes over what the result of the view op knows of itself |
| :func:`detach_inner` | the tensor that a value holds | ``detach_``: outer levels are to forget the history as well |
| :func:`exchange` | everything: two objects change hands | a write of a value into a tensor that is none: it becomes a value, and a plain tensor again when the transform returns (``tape/lift.py``) |
"""  # noqa: E501

from __future__ import annotations

from typing import Any

import torch

_set_data: Any = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]

# In-place ops that change only sizes and strides; each is its view op plus a change of the value's own geometry. They stand here because
# this floor knows no records, and torch's tag `inplace_view` also names `detach_`, `resize_` and `set_`, which `tape/inplace.py` handles.
GEOMETRY = frozenset(("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_"))


def refit(v: Any, fresh: Any) -> None:
    """Give the value ``v`` the sizes, strides and storage of ``fresh``, a value of the same class. ``v`` keeps its version counter."""
    with torch._C._DisableTorchDispatch():  # ATen asks by an op whether the two are compatible, which no level need see
        _set_data(v, fresh)
    v._geometry = fresh._geometry


def change_geometry(view_op: Any, target: Any, args: Any, kwargs: Any) -> Any:
    """``x.squeeze_()`` and its like on any value: ``target`` takes over what the result of ``view_op`` is and holds."""
    fresh = view_op(target, *args, **kwargs)
    refit(target, fresh)
    state = dict(fresh.__dict__)
    if target._view is None:
        state.pop("_view", None)
    target.__dict__.update(state)
    target._reshaped += 1
    return target


def detach_inner(v: Any) -> None:
    """Let ``v`` hold its tensor without the history that outer levels have of it."""
    v._inner = v._inner.detach()


def exchange(a: Any, b: Any) -> None:
    """``a`` and ``b`` change hands: the objects keep their identity; tensors, classes and attributes move."""
    torch._C._swap_tensor_impl(a, b)
    a.__class__, b.__class__ = b.__class__, a.__class__
    a.__dict__, b.__dict__ = b.__dict__, a.__dict__
