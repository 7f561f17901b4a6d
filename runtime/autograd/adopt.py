"""A tensor from outside that is written with a value of a transform becomes a value of that transform, in place.

``b = torch.zeros(3); b[0] = x[0]`` inside a transformed function: ``b``, a plain tensor or one of the session (under the drop-in), never
met the level, so nobody could say what its history is. On the first such write the Python object ``b`` changes hands with a fresh value of
the level that holds what ``b`` was; when the transform returns, it changes back. That is sound only if nobody else sees that memory under
another name (a view taken before the write would go on without history), so it is refused unless every user of the storage is known.
"""

from __future__ import annotations

from typing import Any

import torch

from ..levels import Level, Value
from . import inplace
from .views import View

_as_strided = torch.ops.aten.as_strided.default
_SHELLS = "_adopted_by"  # on an adopted tensor: how many levels have made a value of it, each of which uses the storage once


def adopt(level: Any, t: torch.Tensor, what: Any) -> Any:
    """``t``, and what it is a view of, as values of ``level``. ``what`` writes to it. ``InplaceError`` where that cannot be."""
    base = _base_of(t)
    known = [t] if base is None else [base, t]
    if not all(map(_is_bare, known)) or any(_is_captured(level, x) for x in known) or _users(t) != sum(map(_own_users, known)):
        inplace.refuse(level, what)
    for x in known:
        _become_value(level, x)
    v: Any = t
    if base is not None:
        if isinstance(v._inner, Value):
            v._inner._view.base = base._inner  # what was a view of the object ``base`` is one of what that was
        v._view = View(base, ((_as_strided, (t.shape, t.stride(), t.storage_offset() - base.storage_offset()), {}, None),), "")
    return v


def _base_of(t: Any) -> Any:
    if isinstance(t, Value):
        return None if t._view is None else t._view.base
    return t._base if t._is_view() else None


def _is_bare(t: Any) -> bool:
    """A plain tensor, or one of the session without history, laid out so that a tangent of its shape has the same views."""
    from ..tensor import Tensor

    if type(t) is not torch.Tensor and (type(t) is not Tensor or (t._view is not None and t._view.creation)):
        return False
    simple = t.layout is torch.strided and not (t.requires_grad or t.is_conj() or t.is_neg())
    return simple and (_base_of(t) is not None or t.is_contiguous())


def _is_captured(level: Level, t: Any) -> bool:
    """Whether a tensor of the session is older than the transform. A plain one does not tell its age."""
    return isinstance(t, Value) and t._born < level.number  # type: ignore[attr-defined]


def _own_users(t: Any) -> int:
    """How many tensors that share the storage belong to ``t``: it, what a value holds, and the values that levels have made of it."""
    return 1 + isinstance(t, Value) + int(getattr(t, _SHELLS, 0))


def _users(t: torch.Tensor) -> int:
    """How many tensors share the storage of ``t``, itself included; the Python object made here to ask counts as one more."""
    storage: Any = t.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def _become_value(level: Any, t: Any) -> None:
    """The object ``t`` becomes a value of ``level``, whose inner tensor is a new object with what ``t`` was."""
    value = level.wrap(t, None)
    if not isinstance(t, Value):  # whose shells have no storage
        setattr(t, _SHELLS, getattr(t, _SHELLS, 0) + 1)
    _exchange(t, value)
    t._inner = value
    if level.number:
        if level.adopted is None:
            level.adopted = []
        level.adopted.append(t)


def give_back(level: Level) -> None:
    """The transform has returned: what it adopted belongs to the next level out again, or to none, with all that was written to it."""
    for t in level.adopted or ():
        if isinstance(t, Value) and t._level is level:
            inner = t._inner
            other: Any = torch.ops.aten.alias.default(inner) if isinstance(inner, Value) else inner.detach()
            _exchange(t, other)
            if isinstance(t, Value) and t._level.number:
                t._level.adopted = [*(t._level.adopted or ()), t]
    level.adopted = None


def _exchange(a: Any, b: Any) -> None:
    """``a`` and ``b`` change hands: object identities stay, tensors, classes and attributes move."""
    torch._C._swap_tensor_impl(a, b)
    a.__class__, b.__class__ = b.__class__, a.__class__
    a.__dict__, b.__dict__ = b.__dict__, a.__dict__
