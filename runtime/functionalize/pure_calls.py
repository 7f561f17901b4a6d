"""Calls that only compute, which most calls of a program are."""

from __future__ import annotations

from ..rules.ops import FUNCTIONAL, Op, op_of
from ..rules.record import listeners
from .stores import UNSAFE

_PURE: dict[int, bool] = {}  # by id of the overload, which lives as long as the process
listeners.append(_PURE.clear)  # a new record makes these facts stale


def is_pure(func: object) -> bool:
    """Return whether each call of ``func`` computes one new tensor, and does nothing else: it
    writes to nothing, the result shares no memory, and ATen does not take it apart."""
    known = _PURE.get(id(func))
    if known is None:
        known = _PURE[id(func)] = _found(op_of(func))
    return known


def _found(op: Op) -> bool:
    returns = op.func._schema.returns
    hidden = op.record is not None and op.record.hidden_writes is not None
    fresh = len(returns) == 1 and str(returns[0].type) == "Tensor" and returns[0].alias_info is None
    return (
        op.kind is FUNCTIONAL
        and fresh
        and not (op.composite or op.fills_argument or hidden or op.func in UNSAFE)
    )
