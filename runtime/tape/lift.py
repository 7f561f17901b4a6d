"""A plain tensor into which a value is written becomes a value, in place, and a plain tensor again when the transform returns.

``b = torch.zeros(3); b[0] = x[0]`` without the drop-in: ``b`` is torch's, made below every level, so nobody could say what its history is.
On the first such write the Python object ``b`` changes hands (:func:`runtime.seam.surgery.exchange`) with a fresh value of the level that
holds what ``b`` was. When the transform returns, it changes back. That is sound only if nobody else sees that memory under another name: a
view taken before the write would go on without history. So the write is refused unless every user of the storage is known. What a
transform makes of values of other levels is its own from the start: see :class:`runtime.seam.levels.Scope`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..seam.levels import SCOPE, Level, Value
from ..seam.surgery import exchange
from .view_history import View

_as_strided = torch.ops.aten.as_strided.default
_SHELLS = "_lifted_by"  # on a lifted tensor: how many levels have made a value of it, each of which uses the storage once


def lift_in_place(level: Level, t: Any, what: Any) -> Any:
    """``t``, and what it is a view of, as values of ``level``. ``what`` writes to it. ``InplaceError`` where that cannot be."""
    base: Any = t._base if type(t) is torch.Tensor and t._is_view() else None
    known: list[Any] = [t] if base is None else [base, t]
    if not all(_is_simple(x, base) for x in known) or users(t) != sum(1 + int(getattr(x, _SHELLS, 0)) for x in known):
        level.refuse_captured_write(what)
    place = None if base is None else (t.shape, t.stride(), t.storage_offset() - base.storage_offset())
    if SCOPE.levels:
        _renew_counter(base, t)
    for each in (*SCOPE.levels, level):  # from the outermost inwards, as what is made in the scope of several transforms
        for x in known:
            _become_value(each, x)
        v: Any = t
        if base is not None:
            v._view = View(base, ((_as_strided, place, {}, None),), "")
            if isinstance(v._inner, Value):
                v._inner._view.base = base._inner  # the object `base` has changed hands once more
    return t


def _is_simple(t: Any, base: Any) -> bool:
    """A plain tensor without history, laid out so that a tangent of its shape has the same views."""
    if type(t) is not torch.Tensor or t.layout is not torch.strided or t.requires_grad or t.is_conj() or t.is_neg():
        return False
    return (base is not None and t is not base) or t.is_contiguous()


def users(t: torch.Tensor) -> int:
    """How many tensors share the storage of ``t``, itself included; the Python object made here to ask counts as one more."""
    storage: Any = t.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def _renew_counter(base: Any, t: Any) -> None:
    """The dispatcher will count the present write on the tensor that it was called with, when all levels have counted it already."""
    place = (t.shape, t.stride(), t.storage_offset())
    whole = t if base is None else base
    exchange(whole, whole.data)
    if base is not None:
        exchange(t, base.as_strided(*place))


def _become_value(level: Level, t: Any) -> None:
    """The object ``t`` becomes a value of ``level``, whose inner tensor is a new object with what ``t`` was."""
    value = level.wrap(t)
    if type(t) is torch.Tensor:
        setattr(t, _SHELLS, getattr(t, _SHELLS, 0) + 1)
    exchange(t, value)
    t._inner = value
    level.on_close(partial(_give_back, level, t))


def _give_back(level: Level, t: Any) -> None:
    """The transform has returned: ``t`` belongs to the next outer level again, or to none, with all that was written to it."""
    if isinstance(t, Value) and t._level is level:
        inner = t._inner
        other: Any = torch.ops.aten.alias.default(inner) if isinstance(inner, Value) else inner.detach()
        exchange(t, other)
        if isinstance(t, Value) and t._level.keeps_history:
            t._level.on_close(partial(_give_back, t._level, t))
