"""Merge sums of small matrices over their rows into one sum of their stack.

    b1 = g1.sum(0); b2 = g2.sum(0); …        # becomes stack([g1, g2, …]).sum(1).unbind()

The gradient of a vector that a program uses many times has such a sum for each use. The kernel adds
the rows of each matrix of a stack as it adds those of a single one, so the bits are the same. For
matrices of a thousand elements that is a third of the time.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from ...torch_private.mode_stacks import without_modes
from ...trace.graph_edits import add_call, replace_each
from ..capture.aliasing import functional_pointwise
from .ordering import bring_together, movable, successors
from .overloads import on_cpu

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float64)
_FEWEST = 4  # matrices of a stack
# of the matrices of one stack, which live at the same time; threads do not share the work on so few
_BYTES = 1 << 16


def sums(graph: fx.Graph) -> None:
    """Merge the sums whose results only go into pointwise calls.

    A result that is returned, or that has views, must have memory of its own.
    """
    nodes = movable(graph)
    after = successors(nodes)
    groups: dict[Hashable, list[fx.Node]] = {}
    # how many sums lie on the longest way to a node: those of one level do not need one another
    level = dict.fromkeys(nodes, 0)
    for node in nodes:
        if _is_sum(node):
            level[node] += 1
            matrix = _matrix(node)
            groups.setdefault((level[node], matrix.shape, matrix.dtype), []).append(node)
        for user in after[node]:
            level[user] = max(level[user], level[node])
    # a stack of few matrices does not pay for its copies
    stacks: list[list[fx.Node]] = []
    for group in groups.values():
        stacks += [part for part in _split(group) if len(part) >= _FEWEST]
    if stacks:
        bring_together(graph, nodes, after, stacks)
    for stack in stacks:
        _stack(graph, stack)


def _is_sum(node: fx.Node) -> bool:
    """Return whether ``node`` adds the rows of a small matrix, and only pointwise calls use it.

    Nothing else uses the matrix.
    """
    if node.target is not aten.sum.dim_IntList or node.kwargs or node.args[1:] != ([0],):
        return False
    x: Any = node.args[0]
    if not on_cpu(x) or len(x.users) > 1:
        return False
    # an item of the stack's sum is a view, and another user could tell
    if not all(functional_pointwise(user.target) for user in node.users):
        return False
    value = x.meta["val"]
    return value.dtype is node.meta["val"].dtype and _is_small_matrix(value)


def _is_small_matrix(value: torch.Tensor) -> bool:
    """Return whether a stack may have several matrices like ``value``."""
    if value.nbytes * _FEWEST > _BYTES:
        return False
    return value.dim() == 2 and value.dtype in _DTYPES and value.is_contiguous()


def _matrix(node: fx.Node) -> Any:
    """Return the abstract value of the matrix whose rows the call ``node`` adds."""
    source: Any = node.args[0]
    return source.meta["val"]


def _split(group: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Split ``group`` into parts, each as long as a stack may be."""
    each = max(_FEWEST, _BYTES // max(1, _matrix(group[0]).nbytes))
    return [list(group[index : index + each]) for index in range(0, len(group), each)]


def _stack(graph: fx.Graph, calls: Sequence[fx.Node]) -> None:
    """Replace the sums ``calls`` by one of their stack, behind the last of them."""
    matrices = [call.args[0] for call in calls]
    before, after = _matrix(calls[0]), calls[0].meta["val"]
    with without_modes():
        values = (
            before.new_empty((len(calls), *before.shape)),
            after.new_empty((len(calls), *after.shape)),
        )
    meta = calls[0].meta

    def add_behind(
        behind: fx.Node, target: Any, args: tuple[object, ...], value: object
    ) -> fx.Node:
        """Add a call behind another one, with its abstract value."""
        with graph.inserting_after(behind):
            call = add_call(graph, target, args)
        call.meta = {**meta, "val": value}
        return call

    # stack, sum, unbind, and an item in place of each sum
    stacked = add_behind(calls[-1], aten.stack.default, (matrices,), values[0])
    total = add_behind(stacked, aten.sum.dim_IntList, (stacked, [1]), values[1])
    each = add_behind(total, aten.unbind.int, (total,), [after] * len(calls))
    items: dict[fx.Node, fx.Node] = {}
    for index, node in enumerate(calls):
        items[node] = add_behind(each, operator.getitem, (each, index), after)
    replace_each(items)
    for call in calls:
        graph.erase_node(call)
