"""Ops whose results have a size that depends on values, and when the values are the same at each
run of the graph.

    pairs = torch.combinations(x)        # x.index_select(0, ...) with masked_select of a
                                         # triangular mask of ones

The mask is made of nothing but sizes, so that its number of elements is a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def size_depends_on_values(func: Any, args: Sequence[Any]) -> bool:
    """Whether how many elements a call returns depends on the elements of an argument, which
    another run of the graph may change. An index depends on a mask alone."""
    # whose lengths are numbers
    if torch.Tag.dynamic_output_shape not in func.tags or func is aten._ctc_loss.default:
        return False
    deciding = list(args)
    if func is aten.index.Tensor:
        deciding = [
            i
            for i in args[1]
            if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8)
        ]
        if not deciding:
            return False
    if func is aten.masked_select.default:
        deciding = [args[1]]
    return not all(
        _made_of_sizes(t) for t in pytree.tree_leaves(deciding) if isinstance(t, torch.Tensor)
    )


def _made_of_sizes(t: Any) -> bool:
    """Whether factories and functional ops made ``t`` of no tensor and no random number."""
    node, seen = getattr(t, "_node", None), set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (
            node is None
            or node.op != "call_function"
            or _is_open(node.target)
            or any(map(_writes, node.users))
        ):
            return False
        waiting += node.all_input_nodes
    return True


def _is_open(target: Any) -> bool:
    """Whether a call may return another value at another run, or writes."""
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", "") != "getitem"
    return (
        target._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in target.tags
        or target in _UNINITIALIZED
    )


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


_UNINITIALIZED = frozenset(
    (
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_like.default,
        aten.new_empty.default,
    )
)
