"""Calls that only compute, which most calls of a program are."""

from __future__ import annotations

from typing import Any

from ..rules.ops import FUNCTIONAL, Op, op_of
from ..rules.record import listeners
from .stores import UNSAFE

_PURE: dict[int, Op | None] = {}  # by id of the overload, which lives as long as the process
listeners.append(_PURE.clear)  # a new record makes these facts stale


def pure_op(func: Any) -> Op | None:
    """The op of ``func`` if each call of it computes one new tensor, and does nothing else: it writes to nothing, the result shares no
    memory, and ATen does not take it apart. Else None."""
    known = _PURE.get(id(func), _PURE)
    if known is _PURE:
        op = op_of(func)
        known = _PURE[id(func)] = op if _is_pure(op) else None
    return known  # type: ignore[return-value]


def _is_pure(op: Op) -> bool:
    returns = op.func._schema.returns
    hidden = op.record is not None and op.record.hidden_writes is not None
    fresh = len(returns) == 1 and str(returns[0].type) == "Tensor" and returns[0].alias_info is None
    return op.kind is FUNCTIONAL and fresh and not (op.composite or op.fills_argument or hidden or op.func in UNSAFE)
