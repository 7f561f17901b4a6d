"""Calls on fake tensors, also of ops for which torch has no abstract kernel, such
as ``fractional_max_pool3d_backward``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from ..rules.ops import op_of
from ..rules.record import parameters

aten = torch.ops.aten
# draws from a generator, whose kernels take no sizes that are symbols, with the same ones from the
# default generator
_UNGIVEN = {
    aten.rand.generator: aten.rand.default,
    aten.randn.generator: aten.randn.default,
    aten.randint.generator: aten.randint.default,
    aten.randint.low_generator: aten.randint.low,
    aten.randperm.generator: aten.randperm.default,
}


def run_abstractly(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``func(*args, **kwargs)`` on fake tensors, in their mode: by ``abstract`` of the record, by
    torch, or by the decomposition in it.

    Raises ``UnsupportedOperatorException`` if there is none of these.
    """
    if "generator" in kwargs:  # nothing is drawn, and torch's decompositions refuse one
        others = {name: x for name, x in kwargs.items() if name != "generator"}
        func, kwargs = (
            (_UNGIVEN[func], others) if func in _UNGIVEN else (func, {**others, "generator": None})
        )
    op = op_of(func)
    record = op.record
    if record is not None and record.abstract is not None:
        return record.abstract(
            *(
                op.argument(op.arg_names.index(name), args, dict(kwargs))
                for name in parameters(record.abstract)
            )
        )
    try:
        return func(*args, **kwargs)
    except UnsupportedOperatorException:
        if record is None or record.decomposition is None:
            raise
        return record.decomposition(*args, **kwargs)
