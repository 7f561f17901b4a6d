"""Defines the nested tensors of the session: values whose components differ in size.

Their layout is ``torch.strided``. They have one size, that of their first dimension, and no shape.
ATen stores the sizes of the components as a matrix, which is
:class:`runtime.rules.record.NestedMeta` here. ``rules/tensors/nested.py`` has the records of their
ops. Only the tape of the session takes them. :class:`Nested` sees every call before the levels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import MissingRule, NestedTensor
from ..rules.ops import nested_op_of
from ..seam.containers import tensors_of
from ..seam.dispatch import innermost
from ..seam.keys import reopen_keys
from ..seam.level_mode import LevelMode
from ..seam.shells import VALUES
from ..tape.metas import refuse_recorded
from ..torch_private.mode_stacks import current_dispatch_modes, no_function_handler
from .tensor import SESSION, Tensor


class Nested(Tensor):
    """A nested tensor. It is a subclass of the session's class, so torch asks it first about every
    call that it is an argument of."""

    _nested = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raise if a transform would see the nested tensor: the call has values of a transform, or
        a transform has entered its mode."""
        if _has_value_of_transform(args, kwargs) or any(
            isinstance(mode, LevelMode) for mode in current_dispatch_modes()
        ):
            raise NestedTensor
        return no_function_handler(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[object] = (), kwargs: Any = None
    ) -> Any:
        """Run a call on the tape of the session. Raise for values of a transform, and for a
        tangent."""
        kwargs = kwargs or {}
        if _has_value_of_transform(args, kwargs):
            raise NestedTensor
        for tensor in tensors_of((*args, *kwargs.values())):
            if type(tensor) not in VALUES:
                refuse_recorded(func, tensor)
            elif SESSION.tangent_of(tensor) is not None:
                raise MissingRule(str(func), "jvp", case="for nested tensors")
        reopen_keys(func)
        return SESSION.record(nested_op_of(func), args, kwargs)


def _has_value_of_transform(args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Return whether a value of a transform is among the arguments."""
    level = innermost(args, kwargs)
    return level is not None and level is not SESSION


SESSION.nested_class = Nested
