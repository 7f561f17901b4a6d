"""Defines level zero: the eager session, the outermost tape, which is always open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from ..errors import InplaceError
from ..rules.ops import Op
from ..seam.keys import VIEWS
from ..seam.levels import Level, Value
from ..seam.shells import VALUES
from ..tape.grad_level import GradLevel
from ..tape.nodes import Edge
from ..tape.running import STAND_IN, STAND_INS, current_dual, current_stand_in
from ..torch_private.dispatcher import OpOverload, set_excluded
from ..torch_private.native_tensors import make_subclass


class Session(GradLevel):
    """The tape of the tensors of users. There is one session.

    ``class_of(kind)``: the class of values with a tensor of class ``kind`` inside.
    ``nested_class``: the class for nested tensors.
    """

    __slots__ = ("class_of", "nested_class", "value_class")
    what = "the session"
    wrapped_dtypes = frozenset(
        dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
    )
    packs = shows_values = restrides_views = releases_written = True
    leaves_parts = False

    def __init__(self, value_class: type[Value]) -> None:
        Level.__init__(self)
        self.number = 0
        self.value_class = self.nested_class = value_class
        self.class_of: Callable[[type[torch.Tensor]], type[Value]] = lambda kind: value_class
        value_class._level = value_class._home = self

    def wrap(self, inner: Any, edge: Edge | None = None, /) -> Any:
        """Return a tensor of the session with the inner tensor ``inner`` and history ``edge``."""
        value: Any
        kind = type(inner)
        if kind is torch.Tensor:  # as same_shape, without its frame
            value = make_subclass(self.nested_class if inner.is_nested else self.value_class, inner)
            value._inner = inner
        elif kind in VALUES and inner._level is self:
            # a rule that runs in a backward pass made a constant of the session
            return self.wrap(inner._inner, edge)
        else:
            value = self.class_of(kind).holding(inner)
        value._edge = edge
        return value

    def call(self, func: OpOverload | Op, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Run one call, by what stands in for the session in this thread or by the tape."""
        if STAND_INS and STAND_IN.session is not None:
            return STAND_IN.session.call(func, args, kwargs)
        return GradLevel.call(self, func, args, kwargs)

    def record(self, func: OpOverload | Op, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Run one call by the tape. What stands in for the session calls this."""
        return GradLevel.call(self, func, args, kwargs)

    def outward(self, op: Op, inner: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        """Run the kernel of ``op`` on inner tensors. There are no outer levels."""
        if not op.fills:
            return op.kernel(*inner, **kwargs)
        # `uncounted`, without its call: filling a fresh result is no write (the
        # dispatcher counts out=)
        set_excluded(VIEWS, True)
        try:
            return op.kernel(*inner, **kwargs)
        finally:
            set_excluded(VIEWS, False)

    def layer(self, func: object, args: Sequence[object]) -> Any:
        """Let what stands in for the session run a layer, see :meth:`Level.layer`."""
        stand_in = current_stand_in()
        if stand_in is None:
            return NotImplemented
        return stand_in.layer(func, args)

    def acting(self) -> Any:
        """Return the stand-in for the session in this thread, or else the session itself."""
        return current_stand_in() or self

    def tangent_of(self, value: object) -> Any:
        """Return the tangent that a dual level of ``forward_ad`` gives ``value``, or None."""
        dual = current_dual()
        if dual is None:
            return None
        return dual.tangents.of(value)

    def copy_before_write(self, inner: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``inner``, with a copy of its tangent if a dual level gives it one."""
        dual = current_dual()
        if dual is None:
            return inner.clone()
        return dual.copy_before_write(inner)  # type: ignore[no-any-return]

    def run_inside(
        self, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Any:
        return function(*args, **kwargs)  # the session is no transform, so it has no scope

    def is_constant(self, value: Value) -> bool:
        return False

    def on_close(self, finalize: Callable[[], None]) -> None:
        """Do nothing: the session never closes."""

    def refuse_captured_write(self, what: object) -> NoReturn:
        """Raise: the call ``what`` writes to a tensor that cannot take on the history."""
        raise InplaceError(
            f"{what} writes a value of the session that requires grad into a tensor "
            "that cannot take on its history, because it is older than the transform, "
            "belongs to another one, or is seen by other views (whose history would be lost). "
            "Make the buffer a runtime tensor (runtime.wrap, new_zeros of one, "
            "any factory under the drop-in), or detach what is written."
        )
