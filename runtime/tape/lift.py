"""Turns a plain tensor into a value when a value is written into it, and into a plain tensor again
when the transform returns.

Example, without the drop-in: ``b = torch.zeros(3); b[0] = x[0]``. ``b`` is a plain tensor of no
level, so it has no history. On the first such write ``b`` swaps its contents
(:func:`runtime.seam.surgery.exchange`) with a new value, whose inner tensor is the former ``b``.
When the transform returns, they are swapped back. This is right only if no other tensor shares that
memory: a view taken before the write would have no history. So the write is refused unless every
user of the storage is known. A result of a call with values of other levels is a value of the
transform from the start: see :class:`runtime.seam.scope.Scope`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..seam.levels import Level, Value
from ..seam.memory import storage_of
from ..seam.scope import SCOPE, RunningLevel
from ..seam.surgery import exchange, replace
from ..seam.transforms_of_torch import wraps_tensors
from ..torch_private.native_tensors import storage_use_count
from .view_history import View, replay

_alias = torch.ops.aten.alias.default
_as_strided = torch.ops.aten.as_strided.default
_view_as_real = torch.ops.aten.view_as_real.default
_view_as_complex = torch.ops.aten.view_as_complex.default
# attribute of a lifted tensor: how many levels have made a value of it; each value uses
# the storage once
_SHELLS = "_lifted_by"


def lift_in_place(level: Level, tensor: Any, what: object) -> Any:
    """Turn ``tensor``, and its base if it is a view, into values of ``level``, and return
    ``tensor``. ``InplaceError`` if that is impossible. ``what``: the op that writes to
    ``tensor``."""
    base: Any = None
    sharers: list[Any] = [tensor]
    if type(tensor) is torch.Tensor and tensor._is_view():
        base = tensor._base
        sharers = [base, tensor]
    if wraps_tensors() or not _is_liftable(tensor, base, sharers):
        level.refuse_captured_write(what)
    path = _path(base, tensor)
    _renew(base, tensor, path)
    # outermost first, as for a tensor that is made in the scope of several transforms
    for each in (*SCOPE.levels, level):
        for sharer in sharers:
            _become_value(each, sharer)
        value: Any = tensor
        if base is not None:
            value._view = View(base, path, "")
            if isinstance(value._inner, Value):
                # the contents of `base` at the outer level are in another object now
                value._inner._view.base = base._inner
    return tensor


def _is_liftable(tensor: torch.Tensor, base: object, sharers: list[object]) -> bool:
    """Return whether only ``sharers``, that is ``tensor`` and its ``base``, show this memory, and
    their views can be taken again."""
    if not all(_is_simple(x, base) for x in sharers):
        return False
    return users(tensor) == sum(1 + int(getattr(x, _SHELLS, 0)) for x in sharers)


def _is_simple(tensor: object, base: object) -> bool:
    """Return whether ``tensor`` is a plain tensor without history, in a layout in which a tangent
    of its shape has the same views. A tangent starts at offset 0, and so must the base of a
    view."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return False
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        return False
    is_view = base is not None and tensor is not base
    if is_view:
        return True
    if not tensor.is_contiguous():
        return False
    return base is None or not tensor.storage_offset()


def users(tensor: torch.Tensor) -> int:
    """Count the tensors that share the storage of ``tensor``, itself included."""
    storage: Any = storage_of(tensor)
    # `storage`, made here, is a user itself
    return int(storage_use_count(storage._cdata)) - 1


def _path(base: torch.Tensor | None, tensor: torch.Tensor) -> tuple[object, ...]:
    """Return the view ops that lead from ``base`` to its view ``tensor``, as the chain of a
    :class:`View`. None lead to a tensor without a base. A view of another dtype shows a complex
    base as real or a real one as complex."""
    if base is None:
        return ()
    shape, stride, start = tensor.shape, tensor.stride(), tensor.storage_offset()
    if tensor.dtype is base.dtype:
        return (_step(_as_strided, shape, stride, start),)
    if base.is_complex():
        return (_step(_view_as_real), _step(_as_strided, shape, stride, start))
    # a complex number is two real ones that lie side by side
    pairs = _step(_as_strided, (*shape, 2), (*(2 * step for step in stride), 1), 2 * start)
    return (pairs, _step(_view_as_complex))


def _step(func: object, *rest: object) -> tuple[object, ...]:
    return func, rest, {}, None


def _renew(base: Any, tensor: torch.Tensor, path: tuple[object, ...]) -> None:
    """Give ``tensor`` and its base other tensors of the same memory. What they were leads to them:
    a call of ``torch.ops.aten.add_.Tensor(tensor, x)`` returns the tensor that it was called with.

    In the scope of a transform they get version counters of their own. The dispatcher counts the
    present write on the tensor that it was called with, after all levels have counted it.
    """
    whole = base
    if base is None:
        whole = tensor
    # `data` has a version counter of its own, `detach` shares the one of `whole`
    same_memory = whole.data if SCOPE.levels else whole.detach()
    replace(whole, same_memory)
    if base is not None:
        replace(tensor, replay(path, base))


def _become_value(level: RunningLevel, tensor: Value) -> None:
    """Make the object ``tensor`` a value of ``level``. Its inner tensor is a new object with the
    former contents of ``tensor``."""
    value = level.wrap(tensor)
    if type(tensor) is torch.Tensor:
        setattr(tensor, _SHELLS, getattr(tensor, _SHELLS, 0) + 1)
    exchange(tensor, value)
    tensor._inner = value
    level.on_close(partial(give_back, level, tensor))


def give_back(level: RunningLevel, tensor: object) -> None:
    """Make ``tensor`` a value of the next outer level again, or a plain tensor, with all that was
    written to it. The transform has returned."""
    if isinstance(tensor, Value) and tensor._level is level:
        inner: Any = tensor._inner
        # another object with the contents of `inner`: the program may refer to `inner` too
        if isinstance(inner, Value):
            exchange(tensor, _alias(inner))
        else:
            exchange(tensor, inner.detach())
        if isinstance(tensor, Value) and tensor._level.keeps_history:
            tensor._level.on_close(partial(give_back, tensor._level, tensor))
