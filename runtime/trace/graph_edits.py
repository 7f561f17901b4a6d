"""Edits ``torch.fx`` graphs: adds calls, replaces nodes, and removes unused ones.

    node = add_call(graph, torch.ops.aten.add.Tensor, (x, y))

``Graph.create_node`` searches nested arguments for raw symbols, which takes twice as long as
everything else in it. A trace calls :func:`add_call` for every call of its program, and none of
them has such a symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import Any

import torch
from torch import fx

from ..rules.hidden_writes import hidden_writes, may_hide
from ..rules.ops import op_of
from ..torch_private.dispatcher import OpOverload
from .number_reads import MAY_RAISE, on_side
from .raising_calls import may_raise

_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
_REFUSALS = frozenset((on_side, *_ASSERTIONS))
_EFFECTS: dict[int, bool] = {}  # by id of an overload of ATen, which lives as long as the process
# The setters of `node.args` and `node.kwargs`. An assignment also moves the node in the graph's
# table of nodes by op and target, which depends on neither, and takes three times as long.
_set_args: Any = fx.Node.args.fset  # type: ignore[attr-defined]
_set_kwargs: Any = fx.Node.kwargs.fset  # type: ignore[attr-defined]


def add_call(
    graph: fx.Graph,
    func: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    name: str | None = None,
) -> fx.Node:
    """Return a new call at the graph's place for insertions."""
    node = graph.create_node("call_function", func, name=name)
    _set_args(node, args)
    if kwargs:
        _set_kwargs(node, kwargs)
    return node


def copy_of(graph: fx.Graph) -> fx.Graph:
    """Return another graph of the same nodes, with the same names and values in ``meta``."""
    copied_graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        nodes[node] = copied_node = copied_graph.create_node(
            node.op, node.target, name=node.name, type_expr=node.type
        )
        _set_args(copied_node, fx.map_arg(node.args, nodes.__getitem__))
        if node.kwargs:
            _set_kwargs(copied_node, fx.map_arg(node.kwargs, nodes.__getitem__))
        copied_node.meta.update(node.meta)
    return copied_graph


def replace_each(by: Mapping[fx.Node, object]) -> None:
    """Let all users of the keys take the values. A user that takes thousands of them, as an output
    does, gets its arguments once; ``replace_all_uses_with`` would make them anew for each."""

    def substitute(node: fx.Node) -> Any:
        return by.get(node, node)

    for user in dict.fromkeys(chain.from_iterable(node.users for node in by)):
        _set_args(user, fx.map_arg(user.args, substitute))
        if user.kwargs:
            _set_kwargs(user, fx.map_arg(user.kwargs, substitute))


def without_unused(graph: fx.Graph, kept: Collection[fx.Node] = ()) -> None:
    """Leave out unused calls without effect and unused constants, except those in ``kept``."""
    # from the end, so that what only an unused call takes is unused when it is looked at
    for node in reversed(graph.nodes):
        if node.users or node in kept:
            continue
        if node.op == "get_attr" or (node.op == "call_function" and not stays_unused(node)):
            graph.erase_node(node)


def stays_unused(node: fx.Node) -> bool:
    """Return whether a call has an effect, or may have one if nothing uses it: an error."""
    return has_effect(node) or (not node.users and may_raise(node))


def refuses(node: fx.Node) -> bool:
    """Return whether ``node`` may refuse a call, after which the graph must have written
    nothing."""
    return node.target in _REFUSALS


def has_effect(node: fx.Node) -> bool:
    """Return whether an unused call stays: it writes, draws, or returns nothing, so that the
    program called it for an effect. Or it computes a number that nobody uses, so that the program
    called it for the error that Python may raise."""
    func = node.target
    if type(func) is not OpOverload:
        raises = func in MAY_RAISE and not node.users
        return node.is_impure() or func is on_side or raises
    effect = _EFFECTS.get(id(func))
    if effect is None:
        effect = node.is_impure() or not func._schema.returns
        if may_hide(op := op_of(func)):
            return effect or bool(hidden_writes(op, node.args, node.kwargs))
        if func.namespace == "aten":  # an op of another library may get another definition
            _EFFECTS[id(func)] = effect
    return effect
