"""Asks a graph, with the graphs of its branches and loops, what a call does beside its results.

may_raise(module)           # True for an index, which may be out of range
draws(module)               # True for dropout, also in a branch of torch.cond
generators_of(module)       # [g] for torch.rand(2, generator=g)
runs_user_code(module)      # True for an op of another library
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from ...seam.containers import leaves_of
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import refuses

__all__ = ["draws", "generators_of", "may_raise", "runs_user_code"]

_RAISING = frozenset(
    (
        *("_assert_async", "_assert_scalar", "_linalg_check_errors", "bincount", "multinomial"),
        *("embedding", "gather", "index", "index_put", "_unsafe_index", "_unsafe_index_put"),
        *("index_add", "index_copy", "index_fill", "index_reduce", "index_select", "put", "take"),
        *("scatter", "scatter_add", "scatter_reduce", "nll_loss_forward", "nll_loss2d_forward"),
    )
)
"""Names of ATen's ops that refuse some values: indices out of range, singular matrices."""
_KNOWN = frozenset(("aten", "prims", "prim", "torch_transform_matrix"))
"""The names of torch's libraries of ops, and of this package's."""


def _nodes_of(module: fx.GraphModule) -> Iterator[tuple[fx.GraphModule, fx.Node]]:
    """Yield the nodes of a graph and of the graphs that it calls, each with its module."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in inner.graph.nodes:
                yield inner, node


def may_raise(module: fx.GraphModule) -> bool:
    """Return whether a call may raise an error that depends on the values of tensors."""
    return any(map(_may_raise, (node for _, node in _nodes_of(module))))


def _may_raise(node: fx.Node) -> bool:
    func = node.target
    if refuses(node):
        return True
    return isinstance(func, OpOverload) and func._schema.name.partition("::")[2] in _RAISING


def draws(module: fx.GraphModule) -> bool:
    """Return whether a call draws random numbers."""
    seeded = torch.Tag.nondeterministic_seeded
    return any(seeded in getattr(node.target, "tags", ()) for _, node in _nodes_of(module))


def generators_of(module: fx.GraphModule) -> list[torch.Generator]:
    """List the generators, but torch's default ones, from which a call draws."""
    found: dict[int, torch.Generator] = {}
    for owner, node in _nodes_of(module):
        values: tuple[object, ...] = (node.args, node.kwargs)
        if node.op == "get_attr":
            values = (getattr(owner, str(node.target), None),)
        found |= {id(x): x for x in leaves_of(values) if isinstance(x, torch.Generator)}
    return list(found.values())


def runs_user_code(module: fx.GraphModule) -> bool:
    """Return whether a call may run code that is not torch's or this package's, such as an op of
    another library, whose effects nobody knows."""
    return any(_is_of_another(node) for _, node in _nodes_of(module))


def _is_of_another(node: fx.Node) -> bool:
    """Return whether ``node`` calls an op of another library."""
    func = node.target
    return isinstance(func, OpOverload) and func.namespace not in _KNOWN
