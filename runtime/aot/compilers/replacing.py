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


def shown(n: fx.Node) -> list[fx.Node]:
    """``n`` and all that may share memory with it and is computed from it."""
    found = [n]
    known = {n}
    for v in found:
        new = [u for u in v.users if u.op == "call_function" and may_alias(u) and u not in known]
        found += new
        known.update(new)
    return found


def is_result(n: fx.Node) -> bool:
    """Return whether a result of the graph is ``n``."""
    return n.graph.output_node() in n.users


def returned(n: fx.Node) -> bool:
    """Return whether a result of the graph is ``n``, or may share memory with it. For one value:
    :class:`Returned` answers for all values of a graph in one walk."""
    return any(map(is_result, shown(n)))


def results_in(n: fx.Node) -> list[fx.Node]:
    """Return the results of the graph that may share memory with ``n``, one by one."""
    views = set(shown(n))
    results: Any = n.graph.output_node().args[0]
    return [r for r in results if r in views] if isinstance(results, (list, tuple)) else list(views)


class Returned:
    """The values of a graph with which a result may share memory, while a pass replaces some.

    Example: of ``y = x.t(); return y`` these are ``y`` and ``x``.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes: set[fx.Node] = set()
        self._add(graph.output_node().all_input_nodes)

    def __contains__(self, n: fx.Node) -> bool:
        return n in self._nodes

    def _add(self, nodes: list[fx.Node]) -> None:
        """Note ``nodes`` and whatever they may be views of."""
        new = [n for n in nodes if n not in self._nodes]
        for n in new:  # grows
            if n not in self._nodes:
                self._nodes.add(n)
                new += n.all_input_nodes if n.op == "call_function" and may_alias(n) else ()

    def replace(self, n: fx.Node, by: Any) -> None:
        """Let the users of ``n`` take ``by``, which has the same elements and layout. What makes
        results of the graph of ``n`` takes it only where no other result is ``by``, an argument or
        memory of one of these. Views of ``n`` take it only where it begins at the same place of
        its memory: what is known of a view counts from there."""
        if isinstance(by, fx.Node) and fresh(by) and by not in self:
            n.replace_all_uses_with(by)
            if n in self:
                self._add([by])
            return
        viewable = not isinstance(by, fx.Node) or _offset(by) == _offset(n)
        for user in list(n.users):
            if self._may_take_other(user, viewable):
                user.replace_input_with(n, by)

    def _may_take_other(self, user: fx.Node, viewable: bool) -> bool:
        """Return whether ``user`` of a value may take another one of the same elements.
        ``viewable``: whether a view of the other one is at the same place of its memory."""
        if user.op == "output":
            return False
        if not may_alias(user):
            return True
        return viewable and user not in self

    def replace_alias(self, n: fx.Node, by: fx.Node) -> None:
        """Let the users of ``n`` take ``by``, another name of the same memory. A result stays the
        tensor that it is."""
        replace_alias(n, by)
        if n in self:
            self._add([by])


def _offset(n: fx.Node) -> object:
    """Where ``n`` begins in its memory, None if it is no tensor of known sizes."""
    return n.meta["val"].storage_offset() if static(n) else None


def replace_alias(n: fx.Node, by: fx.Node) -> None:
    """:meth:`Returned.replace_alias`, for a pass that does not ask what is returned."""
    for user in list(n.users):
        if user.op != "output":
            user.replace_input_with(n, by)


def without_copies(graph: fx.Graph) -> None:
    """A copy of a value that nothing writes to is the value. ``neg(neg(x))`` is ``x``."""
    results = Returned(graph)
    for n in calls_of(graph):
        source = _source_of_copy(n)
        if static(n) and static(source) and _stands_for(source, n):
            results.replace(n, source)


def _source_of_copy(n: fx.Node) -> Any:
    """Return the value whose elements the result of ``n`` has; None if there is no such value."""
    if n.target is aten.copy.default:
        return n.args[1]
    source = next(iter(n.args), None)
    if n.target in _COPIES:
        return source
    if n.target is aten.neg.default and isinstance(source, fx.Node) and source.target is n.target:
        return source.args[0]
    return None


def _stands_for(source: fx.Node, n: fx.Node) -> bool:
    """Return whether ``source``, whose elements ``n`` has, has its layout and history too."""
    value = source.meta["val"]
    if value.is_conj() or value.is_neg() or value.requires_grad:
        return False
    return same_layout(n, source)


def without_repetitions(graph: fx.Graph) -> None:
    """What is computed twice is computed once. A large value does not live longer for that: its
    memory may be what a checkpoint saves."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    known: dict[Hashable, fx.Node] = {}
    results = Returned(graph)
    for n in calls_of(graph):
        if not _pure(n):
            continue
        key = (n.target, _key(n.args), _key(tuple(n.kwargs.items())))
        first = known.setdefault(key, n)
        if first is n:
            continue
        if may_alias(n) and n.target is not operator.getitem:
            results.replace_alias(n, first)
        elif _small(n) or _is_used_after(first, order[n], order):
            results.replace(n, first)


def _is_used_after(n: fx.Node, place: int, order: Mapping[fx.Node, int]) -> bool:
    """Return whether a node behind ``place`` uses the memory of ``n``, which lives so long."""
    users = itertools.chain.from_iterable(v.users for v in shown(n))
    return any(order[user] > place for user in users)


def _pure(n: fx.Node) -> bool:
    func: Any = n.target
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
        and not has_effect(n)
        and not func._schema.name.startswith("aten::empty")
    )


def _key(a: object) -> Hashable:
    """Return what tells an argument from others. A node has a name of its own."""
    if isinstance(a, (list, tuple)):
        return tuple(map(_key, a))
    return (id(a), torch.Tensor) if isinstance(a, torch.Tensor) else (type(a), repr(a))


def _small(n: fx.Node) -> bool:
    values: Any = n.meta.get("val")
    every = values if isinstance(values, (list, tuple)) else [values]
    return all(
        not isinstance(v, torch.Tensor)
        or (all(type(s) is int for s in v.shape) and v.numel() <= _ELEMENTS)
        for v in every
    )
