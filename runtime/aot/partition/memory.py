"""Compute how much memory a partition takes: bytes saved between forward and backward, and the peak
of both, by the lives of values.

    Memory(parts).peak(saved)       # 4096
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from ...seam.containers import items_of
from ...seam.graph_walks import nodes_among
from ...torch_private.dispatcher import OpOverload
from .halves import Parts
from .recompute import is_item, n_bytes


class Memory:
    """Find the memories of the values of one joint graph.

    Arguments and constants belong to the caller, so they count nothing.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        # for each value the calls that allocate the memories in which it lies
        self.homes: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self.size: dict[fx.Node, int] = {}
        for node in parts.nodes:
            self.homes[node] = self._homes(node)
            if node in self.homes[node]:
                self.size.setdefault(node, _own_bytes(node))
        for node in parts.tangents:
            self.size[node] = n_bytes(node.meta.get("val"))

    def _homes(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Return the calls in whose memories ``node`` lies, the homes of its inputs being known."""
        if node.op != "call_function":
            return (node,)
        value = node.meta.get("val")
        # the call has a memory for each result, or all results lie in those of its arguments
        if is_item(node):
            call: Any = node.args[0]
            if call in self.homes[call]:
                return (self._items(call)[node.args[1]],)
            return self.homes[call]
        if not isinstance(value, (torch.Tensor, list, tuple)):
            # a size lies in no memory of a tensor
            return (node,)
        shared = _aliased_arguments(node)
        if shared:
            return tuple(self._homes_of(shared))
        if isinstance(value, torch.Tensor):
            return (node,)
        items = list(self._items(node).values())
        # the home of the results that nobody takes is the call itself
        self.size[node] = n_bytes(value) - sum(n_bytes(item.meta.get("val")) for item in items)
        return (*items, node)

    def _homes_of(self, nodes: Iterable[fx.Node]) -> dict[fx.Node, None]:
        """Return the homes of ``nodes``, each once, in order."""
        homes: dict[fx.Node, None] = {}
        for node in nodes:
            homes.update(dict.fromkeys(self.homes[node]))
        return homes

    @staticmethod
    def _items(call: fx.Node) -> dict[object, fx.Node]:
        """Return for each result of a call that somebody takes the first node that does so."""
        items: dict[object, fx.Node] = {}
        for user in call.users:
            if is_item(user):
                items.setdefault(user.args[1], user)
        return items

    def saved(self, saved: Iterable[fx.Node]) -> int:
        """Return the bytes of ``saved``, every memory counted once.

        Arguments count if they are saved.
        """
        total = 0
        for home in self._homes_of(saved):
            if home.op == "placeholder":
                total += n_bytes(home.meta.get("val"))
            else:
                total += self.size[home]
        return total

    def peak(self, saved: Sequence[fx.Node]) -> int:
        """Return the most bytes at any time of forward and backward, results included."""
        results = nodes_among(self.parts.results)
        forward = self._run(self.parts.forward_order(saved), (), [*results, *saved])
        gradients = nodes_among(self.parts.gradients)
        # the caller has the results during the backward
        backward = self._run(
            self.parts.backward_order(saved),
            [*saved, *self.parts.tangents],
            [*results, *gradients],
            results,
        )
        return max(forward, backward)

    def _run(
        self,
        order: Sequence[fx.Node],
        inputs: Iterable[fx.Node],
        outputs: Iterable[fx.Node],
        alive_throughout: Iterable[fx.Node] = (),
    ) -> int:
        """Return the peak of one graph. Each value is freed after its last use."""
        last = self._last_uses(order, outputs)
        alive = {home for home in self._homes_of((*inputs, *alive_throughout)) if home in last}
        freed: dict[int, list[fx.Node]] = {}
        for home, place in last.items():
            freed.setdefault(place, []).append(home)
        now = peak = self._bytes(alive)
        # a call has its arguments and its results at once, so it frees after the peak is taken
        for index, node in enumerate(order):
            begun = [home for home in self.homes[node] if home not in alive]
            alive.update(begun)
            now += self._bytes(begun)
            peak = max(peak, now)
            ended = [home for home in freed.get(index, ()) if home in alive]
            alive.difference_update(ended)
            now -= self._bytes(ended)
        return peak

    def _bytes(self, homes: Iterable[fx.Node]) -> int:
        return sum(self.size[home] for home in homes)

    def _last_uses(
        self, order: Sequence[fx.Node], outputs: Iterable[fx.Node]
    ) -> dict[fx.Node, int]:
        """Return for each memory the place of the last call that uses it.

        An output is used after all calls.
        """
        last: dict[fx.Node, int] = {}
        for index, node in enumerate(order):
            for used in (node, *node.all_input_nodes):
                last.update(dict.fromkeys(self.homes[used], index))
        for node in outputs:
            last.update(dict.fromkeys(self.homes[node], len(order)))
        return last


def _aliased_arguments(node: fx.Node) -> list[fx.Node]:
    """Return the arguments in whose memory the result of a call lies, by the schema of its op."""
    func = node.target
    if not isinstance(func, OpOverload):
        return []
    if func._can_decompose():
        # it may be a view or not
        return node.all_input_nodes
    # the names that the schema has for memories of results
    names: set[str] = set()
    for result in func._schema.returns:
        if result.alias_info is not None:
            names |= result.alias_info.before_set
    nodes: list[fx.Node] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and names & argument.alias_info.before_set:
            nodes += _nodes_of_argument(node, index, argument.name)
    return nodes


def _nodes_of_argument(node: fx.Node, index: int, name: str) -> list[fx.Node]:
    """List the values that a call takes as one argument, which may be a list of tensors."""
    value = node.args[index] if index < len(node.args) else node.kwargs.get(name)
    return nodes_among(items_of((value,)))


def _own_bytes(node: fx.Node) -> int:
    """Return the bytes that ``node`` allocates. A caller's tensor counts nothing."""
    if node.op in ("placeholder", "get_attr", "output"):
        return 0
    return n_bytes(node.meta.get("val"))


def in_units(size: int) -> str:
    """Return a number of bytes as text: ``1.5 MiB`` for 1572864."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"
