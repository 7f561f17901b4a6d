"""A plain tensor that is written with a value becomes a value, in place, and belongs to nobody again when the transform returns.

``b = torch.zeros(3); b[0] = x[0]`` without the drop-in: ``b`` is torch's, made below every level, so nobody could say what its history is.
On the first such write the Python object ``b`` changes hands with a fresh value of the level that holds what ``b`` was; when the transform
returns, it changes back. That is sound only if nobody else sees that memory under another name (a view taken before the write would go on
without history), so it is refused unless every user of the storage is known. What a transform makes of values of other levels is its own
from the start: see :class:`runtime.levels.Scope`.
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
    base = t._base if type(t) is torch.Tensor and t._is_view() else None
    known = [t] if base is None else [base, t]
    if not all(_is_simple(x, base) for x in known) or _users(t) != sum(1 + int(getattr(x, _SHELLS, 0)) for x in known):
        inplace.refuse(level, what)
    for x in known:
        _become_value(level, x)
    v: Any = t
    if base is not None:
        v._view = View(base, ((_as_strided, (t.shape, t.stride(), t.storage_offset() - base.storage_offset()), {}, None),), "")
    return v


def _is_simple(t: Any, base: Any) -> bool:
    """A plain tensor without history, laid out so that a tangent of its shape has the same views."""
    if type(t) is not torch.Tensor or t.layout is not torch.strided or t.requires_grad or t.is_conj() or t.is_neg():
        return False
    return (base is not None and t is not base) or t.is_contiguous()


def _users(t: torch.Tensor) -> int:
    """How many tensors share the storage of ``t``, itself included; the Python object made here to ask counts as one more."""
    storage: Any = t.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def _become_value(level: Any, t: Any) -> None:
    """The object ``t`` becomes a value of ``level``, whose inner tensor is a new object with what ``t`` was."""
    value = level.wrap(t, None)
    setattr(t, _SHELLS, getattr(t, _SHELLS, 0) + 1)
    _exchange(t, value)
    t._inner = value
    if level.number:
        level.adopted = [*(level.adopted or ()), t]


def give_back(level: Level) -> None:
    """The transform has returned: what it adopted belongs to the next level out again, or to none, with all that was written to it."""
    for t in level.adopted or ():
        if isinstance(t, Value) and t._level is level:
            inner = t._inner
            other: Any = torch.ops.aten.alias.default(inner) if isinstance(inner, Value) else inner.detach()
            _exchange(t, other)
            if isinstance(t, Value) and t._level.keeps_history and t._level.number:
                t._level.adopted = [*(t._level.adopted or ()), t]
    level.adopted = None


def _exchange(a: Any, b: Any) -> None:
    """``a`` and ``b`` change hands: object identities stay, tensors, classes and attributes move."""
    torch._C._swap_tensor_impl(a, b)
    a.__class__, b.__class__ = b.__class__, a.__class__
    a.__dict__, b.__dict__ = b.__dict__, a.__dict__
