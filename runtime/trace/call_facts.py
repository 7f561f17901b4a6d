"""What a trace asks about every call of one overload."""

from __future__ import annotations

from collections.abc import Callable
from keyword import iskeyword
from typing import Any, NamedTuple

import torch
from torch import fx

from ..rules.core import QUESTIONS
from ..rules.hidden_writes import may_hide
from ..rules.ops import is_composite, op_of
from ..rules.record import listeners

aten = torch.ops.aten
_SIZES = frozenset(
    (
        aten.sym_size.int,
        aten.sym_size.default,
        aten.sym_stride.default,
        aten.sym_stride.int,
        aten.sym_numel.default,
    )
)
_STORED = frozenset(
    getattr(aten, name).default
    for name in ("values", "_values", "indices", "_indices", "col_indices", "row_indices", "_nnz")
)
WITHOUT_MEMORY = aten._efficientzerotensor.default
_LITERALS = frozenset((aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default))


class CallFacts(NamedTuple):
    """What a trace asks about every call of one overload."""

    node_name: str  # as torch's: `add` for `aten.add.Tensor`
    # what answers it at once, if it asks for the geometry of a tensor
    question: Callable[[torch.Tensor], Any] | None
    literal: bool  # it makes a tensor of numbers in the text of a program
    asks_size: bool  # of a symbolic tensor
    tells_stored: bool  # how many elements a sparse tensor stores, which depends on values
    sized_by_values: bool  # the sizes of its result may depend on values
    composite: bool
    may_draw: bool  # random numbers; of an op of another library nobody says that it does not
    reads: bool  # its result in Python depends on elements
    reshapes: bool  # in place
    may_write: bool
    written: tuple[int, ...]  # positions of the arguments that its schema says it writes to
    returned: int | None  # the one among them that is its only result
    follows: bool  # its result follows from its arguments and shares no memory with them
    special: bool  # a trace may do more with a call than write it down


_FACTS: dict[int, CallFacts] = {}  # by id of the overload, which lives as long as the process
listeners.append(_FACTS.clear)  # a new record makes these facts stale


def facts_of(func: Any) -> CallFacts:
    facts = _FACTS.get(id(func))
    if facts is None:
        facts = _FACTS[id(func)] = _found(func)
    return facts


def _found(func: Any) -> CallFacts:
    schema, op = func._schema, op_of(func)
    written = tuple(
        i
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    question = QUESTIONS.get(schema.name.split("::")[1])
    # `prim::layout` is no operator of the dispatcher
    known = torch._C._dispatch_has_kernel(func.name())
    composite = known and is_composite(func.name())
    sized_by_values = torch.Tag.dynamic_output_shape in func.tags
    reads = torch.Tag.data_dependent_output in func.tags
    asks = question is not None or reads or func in _SIZES or func in _STORED
    return CallFacts(
        node_name=fx.graph._snake_case(func.overloadpacket.__name__),
        question=question,
        literal=func in _LITERALS,
        asks_size=func in _SIZES,
        tells_stored=func in _STORED,
        sized_by_values=sized_by_values,
        composite=composite,
        may_draw=torch.Tag.nondeterministic_seeded in func.tags
        or (func.namespace != "aten" if op.record is None else bool(op.record.draws)),
        reads=reads,
        reshapes=torch.Tag.inplace_view in func.tags,
        may_write=bool(written) or may_hide(op),
        written=written,
        returned=next(
            (
                i
                for i in written
                if len(schema.returns) == 1 and _same_alias(schema.arguments[i], schema.returns[0])
            ),
            None,
        ),
        follows=torch.Tag.nondeterministic_seeded not in func.tags
        and all(r.alias_info is None for r in schema.returns),
        special=asks
        or func in _LITERALS
        or sized_by_values
        or composite
        or iskeyword(func._overloadname)
        or func is WITHOUT_MEMORY,
    )


def _same_alias(argument: Any, result: Any) -> bool:
    return (
        result.alias_info is not None
        and result.alias_info.before_set == argument.alias_info.before_set
    )
