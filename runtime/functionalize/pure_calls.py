"""Recognize pure calls: no write, no view, no decomposition. Most calls of a program are pure."""

from __future__ import annotations

from ..rules.ops import FUNCTIONAL, Op, op_of
from ..rules.record import listeners
from .stores import UNSAFE

_PURE: dict[int, bool] = {}  # by id of the overload, which lives as long as the process
listeners.append(_PURE.clear)  # a new record makes these facts stale


def is_pure(func: object) -> bool:
    """Return whether each call of ``func`` computes one new tensor, and does nothing else: it
    writes to nothing, the result shares no memory, and ATen does not take it apart."""
    answer = _PURE.get(id(func))
    if answer is None:
        answer = _PURE[id(func)] = _is_pure_op(op_of(func))
    return answer


def _is_pure_op(op: Op) -> bool:
    """Return :func:`is_pure` of the overload of ``op``, by its schema and its record."""
    returns = op.func._schema.returns
    hidden = op.record is not None and op.record.hidden_writes is not None
    fresh = len(returns) == 1 and str(returns[0].type) == "Tensor" and returns[0].alias_info is None
    if op.kind is not FUNCTIONAL or not fresh:
        return False
    has_other_way = op.composite or op.fills_argument or op.func in UNSAFE
    return not (has_other_way or hidden)
