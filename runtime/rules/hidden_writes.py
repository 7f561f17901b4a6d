"""List arguments that an op writes to although its schema does not say so: running statistics of a
batch norm.

hidden_writes(op_of(aten.native_batch_norm.default), args, {})  # ("running_mean", "running_var") in
                                                                training, else ()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..seam.call_types import Keywords
from .ops import Op
from .record import parameters

aten = torch.ops.aten
_STATISTICS: tuple[str, ...] = ("running_mean", "running_var")
# Composite ops have no records, but a trace before dispatch records them as one call. For each: the
# argument that says whether it writes. None: it always writes.
_COMPOSITE = {
    aten.batch_norm.default: "training",
    aten._batch_norm_impl_index.default: "training",
    aten.instance_norm.default: None,
}


def may_hide(op: Op) -> bool:
    """Return whether some call of ``op`` has hidden writes."""
    return (op.record is not None and op.record.hidden_writes is not None) or op.func in _COMPOSITE


def hidden_writes(op: Op, args: Sequence[object], kwargs: Keywords) -> list[str]:
    """Return the names of the arguments that a call writes to and the schema of ``op`` does not
    mention. Arguments that are None are not among them.

    Example: ``["running_mean", "running_var"]`` for ``native_batch_norm`` in training.
    """

    def argument(name: str) -> Any:
        """Return the value of an argument of the call, or its default."""
        return op.argument(op.positions[name], args, kwargs)

    # an op that ATen composes of others has no record, and so a table of its own here
    names: tuple[str, ...] = ()
    if op.func in _COMPOSITE:
        condition = _COMPOSITE[op.func]
        if condition is None or argument(condition):
            names = _STATISTICS
    elif op.record is not None and op.record.hidden_writes is not None:
        hidden = op.record.hidden_writes
        if hidden.when(*map(argument, parameters(hidden.when))):
            names = hidden.arguments
    return [name for name in names if argument(name) is not None]
