"""Which values of a graph may share memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..rules.ops import op_of

LINEAR = torch._C._nn.linear  # stands in graphs that are about to run, see :mod:`.peephole`


def may_alias(n: fx.Node) -> bool:
    """Whether the result of a call may share memory with an argument."""
    func: Any = n.target
    if func is LINEAR:
        return False
    return type(func) is not torch._ops.OpOverload or func._can_decompose() or any(a.alias_info is not None for a in func._schema.arguments)


def functional_pointwise(func: object) -> bool:
    """Whether ``func`` computes each element of a new tensor from those at the same place."""
    if type(func) is not torch._ops.OpOverload or torch.Tag.pointwise not in func.tags or func._can_decompose():
        return False
    schema = func._schema
    return not schema.is_mutable and len(schema.returns) == 1 and schema.returns[0].alias_info is None


def fresh(n: fx.Node) -> bool:
    """Whether the call is known to give a tensor in memory of its own, laid out without gaps or overlaps."""
    if n.op != "call_function":
        return False
    if n.target is LINEAR or functional_pointwise(n.target):
        return True
    record = op_of(n.target).record if isinstance(n.target, torch._ops.OpOverload) else None
    return record is not None and record.fresh


def within_reach(forward: fx.Graph, n_results: int) -> tuple[int, ...]:
    """Which of the tensors that ``forward`` gives after its ``n_results`` results the caller can write to: those that may share memory
    with what it was given or with a result."""
    behind: dict[fx.Node, frozenset[fx.Node]] = {}  # the values of whose memory a value may be
    for n in forward.nodes:
        own = frozenset((n,))
        behind[n] = own.union(*(behind[u] for u in n.all_input_nodes)) if n.op == "call_function" and may_alias(n) else own
    given = [n for n in forward.nodes if n.op in ("placeholder", "get_attr")]
    (returned,) = forward.output_node().args
    results: Any = returned
    seen = frozenset(given).union(*(behind[n] for n in results[:n_results] if isinstance(n, fx.Node)))
    kept = results[n_results:]
    return tuple(i for i, n in enumerate(kept) if behind[n] & seen and isinstance(n.meta.get("val"), torch.Tensor))
