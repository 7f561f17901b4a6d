"""Replacing one value of a graph by another one of the same elements, where nobody can tell.

The results of a program are tensors of their own: two of them are not one object, and share memory
only where they did."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import fx

from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import has_effect
from ..capture.aliasing import LINEAR, fresh, may_alias
from .overloads import aten, calls_of, same_layout, static

_ELEMENTS = 1 << 14  # of a tensor that may live longer than it did, as it is small
_COPIES = frozenset(
    (aten.clone.default, aten._to_copy.default, aten.copy.default, aten.lift_fresh_copy.default)
)


def shown(node: fx.Node) -> list[fx.Node]:
    """``node`` and all that may share memory with it and is computed from it."""
    found = [node]
    known = {node}
    for v in found:
        new = [u for u in v.users if u.op == "call_function" and may_alias(u) and u not in known]
        found += new
        known.update(new)
    return found


def is_result(node: fx.Node) -> bool:
    """Return whether a result of the graph is ``node``."""
    return node.graph.output_node() in node.users


def returned(node: fx.Node) -> bool:
    """Return whether a result of the graph is ``node``, or may share memory with it. For one value:
    :class:`Returned` answers for all values of a graph in one walk."""
    return any(map(is_result, shown(node)))


def results_in(node: fx.Node) -> list[fx.Node]:
    """Return the results of the graph that may share memory with ``node``, one by one."""
    views = set(shown(node))
    results: Any = node.graph.output_node().args[0]
    return [r for r in results if r in views] if isinstance(results, (list, tuple)) else list(views)


class Returned:
    """The values of a graph with which a result may share memory, while a pass replaces some.

    Example: of ``y = x.t(); return y`` these are ``y`` and ``x``.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes: set[fx.Node] = set()
        self._add(graph.output_node().all_input_nodes)

    def __contains__(self, node: fx.Node) -> bool:
        return node in self._nodes

    def _add(self, nodes: list[fx.Node]) -> None:
        """Note ``nodes`` and whatever they may be views of."""
        new = [n for n in nodes if n not in self._nodes]
        for node in new:  # grows
            if node not in self._nodes:
                self._nodes.add(node)
                new += (
                    node.all_input_nodes if node.op == "call_function" and may_alias(node) else ()
                )

    def replace(self, node: fx.Node, by: Any) -> None:
        """Let the users of ``node`` take ``by``, which has the same elements and layout. What makes
        results of the graph of ``node`` takes it only where no other result is ``by``, an argument
        or memory of one of these. Views of ``node`` take it only where it begins at the same place
        of its memory: what is known of a view counts from there."""
        if isinstance(by, fx.Node) and fresh(by) and by not in self:
            node.replace_all_uses_with(by)
            if node in self:
                self._add([by])
            return
        viewable = not isinstance(by, fx.Node) or _offset(by) == _offset(node)
        for user in list(node.users):
            if self._may_take_other(user, viewable):
                user.replace_input_with(node, by)

    def _may_take_other(self, user: fx.Node, viewable: bool) -> bool:
        """Return whether ``user`` of a value may take another one of the same elements.
        ``viewable``: whether a view of the other one is at the same place of its memory."""
        if user.op == "output":
            return False
        if not may_alias(user):
            return True
        return viewable and user not in self

    def replace_alias(self, node: fx.Node, by: fx.Node) -> None:
        """Let the users of ``node`` take ``by``, another name of the same memory. A result stays
        the tensor that it is."""
        replace_alias(node, by)
        if node in self:
            self._add([by])


def _offset(node: fx.Node) -> object:
    """Where ``node`` begins in its memory, None if it is no tensor of known sizes."""
    return node.meta["val"].storage_offset() if static(node) else None


def replace_alias(node: fx.Node, by: fx.Node) -> None:
    """:meth:`Returned.replace_alias`, for a pass that does not ask what is returned."""
    for user in list(node.users):
        if user.op != "output":
            user.replace_input_with(node, by)


def without_copies(graph: fx.Graph) -> None:
    """A copy of a value that nothing writes to is the value. ``neg(neg(x))`` is ``x``."""
    results = Returned(graph)
    for n in calls_of(graph):
        source = _source_of_copy(n)
        if static(n) and static(source) and _stands_for(source, n):
            results.replace(n, source)


def _source_of_copy(node: fx.Node) -> Any:
    """Return the value whose elements the result of ``node`` has; None if there is no such
    value."""
    if node.target is aten.copy.default:
        return node.args[1]
    source = next(iter(node.args), None)
    if node.target in _COPIES:
        return source
    if (
        node.target is aten.neg.default
        and isinstance(source, fx.Node)
        and source.target is node.target
    ):
        return source.args[0]
    return None


def _stands_for(source: fx.Node, node: fx.Node) -> bool:
    """Return whether ``source``, whose elements ``node`` has, has its layout and history too."""
    value = source.meta["val"]
    if value.is_conj() or value.is_neg() or value.requires_grad:
        return False
    return same_layout(node, source)


def without_repetitions(graph: fx.Graph) -> None:
    """What is computed twice is computed once. A large value does not live longer for that: its
    memory may be what a checkpoint saves."""
    order = {n: index for index, n in enumerate(graph.nodes)}
    known: dict[Hashable, fx.Node] = {}
    results = Returned(graph)
    for node in calls_of(graph):
        if not _pure(node):
            continue
        key = (node.target, _key(node.args), _key(tuple(node.kwargs.items())))
        first = known.setdefault(key, node)
        if first is node:
            continue
        if may_alias(node) and node.target is not operator.getitem:
            results.replace_alias(node, first)
        elif _small(node) or _is_used_after(first, order[node], order):
            results.replace(node, first)


def _is_used_after(node: fx.Node, place: int, order: Mapping[fx.Node, int]) -> bool:
    """Return whether a node behind ``place`` uses the memory of ``node``, which lives so long."""
    users = itertools.chain.from_iterable(v.users for v in shown(node))
    return any(order[user] > place for user in users)


def _pure(node: fx.Node) -> bool:
    func: Any = node.target
    if func is operator.getitem or func is LINEAR:
        return True
    if (
        type(func) is not OpOverload
        or func.namespace != "aten"
        or torch.Tag.nondeterministic_seeded in func.tags
    ):
        return False
    return (
        not func._schema.is_mutable
        and not has_effect(node)
        and not func._schema.name.startswith("aten::empty")
    )


def _key(argument: object) -> Hashable:
    """Return what tells an argument from others. A node has a name of its own."""
    if isinstance(argument, (list, tuple)):
        return tuple(map(_key, argument))
    return (
        (id(argument), torch.Tensor)
        if isinstance(argument, torch.Tensor)
        else (type(argument), repr(argument))
    )


def _small(node: fx.Node) -> bool:
    values: Any = node.meta.get("val")
    every = values if isinstance(values, (list, tuple)) else [values]
    return all(
        not isinstance(v, torch.Tensor)
        or (all(type(size) is int for size in v.shape) and v.numel() <= _ELEMENTS)
        for v in every
    )
