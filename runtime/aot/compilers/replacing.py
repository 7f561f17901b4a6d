"""Replacing one value of a graph by another one of the same elements, where nobody can tell.

The results of a program are tensors of their own: two of them are not one object, and share memory
only where they did."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

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


def returned(n: fx.Node) -> bool:
    """Whether a result of the graph is ``n``, or may share memory with it."""
    return any(user.op == "output" for v in shown(n) for user in v.users)


def results_in(n: fx.Node) -> list[fx.Node]:
    """The results of the graph that may share memory with ``n``, one by one."""
    views = set(shown(n))
    results: Any = n.graph.output_node().args[0]
    return [r for r in results if r in views] if isinstance(results, (list, tuple)) else list(views)


def replace(n: fx.Node, by: Any, same_memory: bool = False) -> None:
    """Let the users of ``n`` take ``by``, which has the same elements and layout. What makes
    results of the graph of ``n`` takes it only where no other result is ``by``, an argument or
    memory of one of these.
    ``same_memory``: they are two names of the same memory."""
    if not same_memory and isinstance(by, fx.Node) and fresh(by) and not returned(by):
        n.replace_all_uses_with(by)
        return
    for user in list(n.users):
        if user.op == "output" or (not same_memory and may_alias(user) and returned(user)):
            continue
        user.replace_input_with(n, by)


def without_copies(graph: fx.Graph) -> None:
    """A copy of a value that nothing writes to is the value. ``neg(neg(x))`` is ``x``."""
    for n in calls_of(graph):
        source: Any = n.args[0] if n.args else None
        if n.target is aten.copy.default:
            source = n.args[1]
        elif (
            n.target is aten.neg.default
            and isinstance(source, fx.Node)
            and source.target is aten.neg.default
        ):
            source = source.args[0]
        elif n.target not in _COPIES:
            continue
        if (
            not static(n)
            or not static(source)
            or not same_layout(n, source)
            or _lazy(source)
            or source.meta["val"].requires_grad
        ):
            continue
        replace(n, source)


def _lazy(n: fx.Node) -> bool:
    value = n.meta["val"]
    return bool(value.is_conj() or value.is_neg())


def without_repetitions(graph: fx.Graph) -> None:
    """What is computed twice is computed once. A large value does not live longer for that: its
    memory may be what a checkpoint saves."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    known: dict[Hashable, fx.Node] = {}
    for n in calls_of(graph):
        if not _pure(n):
            continue
        key = (n.target, _key(n.args), _key(tuple(n.kwargs.items())))
        first = known.setdefault(key, n)
        alias = may_alias(n) and n.target is not operator.getitem
        if first is not n and (
            alias or _small(n) or any(order[u] > order[n] for v in shown(first) for u in v.users)
        ):
            replace(n, first, same_memory=alias)


def _pure(n: fx.Node) -> bool:
    func: Any = n.target
    if func is operator.getitem or func is LINEAR:
        return True
    if (
        type(func) is not torch._ops.OpOverload
        or func.namespace != "aten"
        or torch.Tag.nondeterministic_seeded in func.tags
    ):
        return False
    return (
        not func._schema.is_mutable
        and not has_effect(n)
        and not func._schema.name.startswith("aten::empty")
    )


def _key(a: Any) -> Hashable:
    """What tells an argument from others. A node has a name of its own."""
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
