"""Reorder the calls of a graph: bring some of them together, and none before what it needs."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections import Counter
from collections.abc import Sequence

import torch
from torch import fx

from ...seam.graph_walks import walk_postorder
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import has_effect, refuses
from ..capture.aliasing import LINEAR

NUMBERS_OF_PYTHON = (int, float, torch.SymInt, torch.SymFloat)


def movable(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes between the placeholders and the output."""
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]


def successors(nodes: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Return the calls that must come after each.

    These are its users. For a draw or an effect it is also the next draw or effect.
    """
    movable_nodes = set(nodes)
    after = {node: [user for user in node.users if user in movable_nodes] for node in nodes}
    # a chain is enough: it orders each pair of these
    ordered = [node for node in nodes if node.op == "call_function" and _has_order(node)]
    for first, second in itertools.pairwise(ordered):
        after[first].append(second)
    return after


def _has_order(node: fx.Node) -> bool:
    """Return whether ``node`` is a draw or an effect, or may be one."""
    func = node.target
    # a number that is read from a tensor, or computed from such numbers
    if isinstance(node.meta.get("val"), NUMBERS_OF_PYTHON):
        return False
    if type(func) is not OpOverload:
        return func is not operator.getitem and func is not LINEAR
    return bool(
        torch.Tag.nondeterministic_seeded in func.tags
        or func._schema.is_mutable
        or func.namespace != "aten"
        or has_effect(node)
    )


def bring_together(
    graph: fx.Graph,
    nodes: Sequence[fx.Node],
    after: dict[fx.Node, list[fx.Node]],
    groups: Sequence[list[fx.Node]],
) -> None:
    """Move the calls of each group to the place of its last one, and what needs them behind them.

    Other calls stay in their order. ``after``: the :func:`successors` of ``nodes``. No call of a
    group may need another one of it, nor may two groups need one another.
    """
    place = {node: index for index, node in enumerate(nodes)}
    # what moves as one: a group, at the place of its last call, or a call that is in none
    unit_at = {index: [node] for node, index in place.items()}
    for group in groups:
        last = max(map(place.__getitem__, group))
        place.update(dict.fromkeys(group, last))
        unit_at[last] = group
    every_user = itertools.chain.from_iterable(after.values())
    # how many calls of others the unit at each place still waits for
    missing = Counter(map(place.__getitem__, every_user))
    # always the ready unit with the first place, so a call that could run anywhere stays
    ready = list(set(place.values()) - missing.keys())
    heapq.heapify(ready)
    end = graph.output_node()
    while ready:
        unit = unit_at[heapq.heappop(ready)]
        for node in unit:
            end.prepend(node)
        for user in itertools.chain.from_iterable(map(after.__getitem__, unit)):
            missing[place[user]] -= 1
            if not missing[place[user]]:
                heapq.heappush(ready, place[user])


def refuse_first(graph: fx.Graph) -> None:
    """Move the calls that may refuse, and what they need, before all others. Both parts stay in
    their order. Then the others may write."""
    nodes = movable(graph)
    refusals = list(filter(refuses, nodes))
    if not refusals:
        return
    before: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
    for node, users in successors(nodes).items():
        for user in users:
            before[user].append(node)
    needed = set(walk_postorder(refusals, before.__getitem__))
    first = next((node for node in nodes if node not in needed), graph.output_node())
    for node in filter(needed.__contains__, nodes):
        first.prepend(node)
