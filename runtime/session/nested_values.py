"""Nested tensors of the session: values whose components have sizes of their own.

Their layout is ``torch.strided``. They have one size, that of their first dimension, and no shape; ATen keeps the sizes of the components
as a matrix, which is :class:`runtime.rules.record.NestedMeta` here. What is known of ops that take them stands in ``rules/nested.py``.
Only the tape of the session takes them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import MissingRule, NestedTensor
from ..rules.ops import nested_op_of
from ..seam.keys import reopen_keys
from ..seam.levels import NESTED_VALUES, innermost
from ..seam.shells import VALUES
from ..tape.metas import refuse_recorded
from .tensor import SESSION, Tensor


class Nested(Tensor):
    """A nested tensor. As a subclass of the session's own class it is asked first about every op that it is an argument of."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if innermost(args, kwargs) is not SESSION:
            raise NestedTensor
        for a in (*args, *kwargs.values()):
            for t in a if isinstance(a, (list, tuple)) else (a,):
                if not isinstance(t, torch.Tensor):
                    continue
                if type(t) not in VALUES:
                    refuse_recorded(func, t)
                elif SESSION.tangent_of(t) is not None:
                    raise MissingRule(str(func), "jvp", case="for nested tensors")
        reopen_keys(func)
        return SESSION.record(nested_op_of(func), args, kwargs)


NESTED_VALUES.add(Nested)
SESSION.nested_class = Nested
