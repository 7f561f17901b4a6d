"""What a trace asks about every call of one overload."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._C import DispatchKey

from ..rules.ops import op_of


class CallFacts(NamedTuple):
    """What a trace asks about every call of one overload."""

    node_name: str  # as torch's: `add` for `aten.add.Tensor`
    composite: bool
    may_draw: bool  # random numbers; of an op of another library nobody says that it does not
    reads: bool  # its result in Python depends on elements
    reshapes: bool  # in place
    may_write: bool
    written: tuple[int, ...]  # positions of the arguments that its schema says it writes to
    returned: int | None  # the one among them that is its only result


@cache
def facts_of(func: Any) -> CallFacts:
    schema, op = func._schema, op_of(func)
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    return CallFacts(
        fx.graph._snake_case(func.overloadpacket.__name__),
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), DispatchKey.CompositeImplicitAutograd),
        torch.Tag.nondeterministic_seeded in func.tags or (func.namespace != "aten" if op.record is None else bool(op.record.draws)),
        torch.Tag.data_dependent_output in func.tags,
        torch.Tag.inplace_view in func.tags,
        bool(written) or (op.record is not None and op.record.hidden_writes is not None),
        written,
        next((i for i in written if len(schema.returns) == 1 and _same_alias(schema.arguments[i], schema.returns[0])), None),
    )


def _same_alias(argument: Any, result: Any) -> bool:
    return result.alias_info is not None and result.alias_info.before_set == argument.alias_info.before_set
