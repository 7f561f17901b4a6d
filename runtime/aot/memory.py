"""How much memory a partition takes: bytes saved between forward and backward, and the peak of both, by the lives of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from .aliasing import may_alias
from .parts import Parts
from .recompute import is_item, n_bytes


class Memory:
    """The memories of the values of one joint graph. Arguments and constants belong to the caller, so they count nothing."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.homes: dict[fx.Node, tuple[fx.Node, ...]] = {}  # the calls that made the memories in which a value lies
        self.size: dict[fx.Node, int] = {}
        for n in parts.nodes:
            self.homes[n] = self._homes(n)
            if n in self.homes[n]:
                self.size.setdefault(n, 0 if n.op in ("placeholder", "get_attr", "output") else n_bytes(n.meta.get("val")))
        for n in parts.tangents:
            self.size[n] = n_bytes(n.meta.get("val"))

    def _homes(self, n: fx.Node) -> tuple[fx.Node, ...]:
        if n.op != "call_function":
            return (n,)
        value = n.meta.get("val")
        if is_item(n):
            call: Any = n.args[0]
            return self.homes[call] if call not in self.homes[call] else (self._items(call)[n.args[1]],)
        if may_alias(n):
            shared = [u for u in n.all_input_nodes if _share(u.meta.get("val"), value)]
            if shared:
                return tuple(dict.fromkeys(home for u in shared for home in self.homes[u]))
        if not isinstance(value, (list, tuple)):
            return (n,)
        items = list(self._items(n).values())
        self.size[n] = n_bytes(value) - sum(n_bytes(item.meta.get("val")) for item in items)  # the results that nobody asks for
        return (*items, n)

    @staticmethod
    def _items(call: fx.Node) -> dict[Any, fx.Node]:
        """For each result of a call that somebody asks for, the node that does so first."""
        found: dict[Any, fx.Node] = {}
        for u in call.users:
            if is_item(u):
                found.setdefault(u.args[1], u)
        return found

    def saved(self, saved: Iterable[fx.Node]) -> int:
        """The bytes of ``saved``, every memory counted once. Arguments count if they are saved."""
        homes = dict.fromkeys(home for n in saved for home in self.homes[n])
        return sum(self.size[h] if h.op != "placeholder" else n_bytes(h.meta.get("val")) for h in homes)

    def peak(self, saved: Sequence[fx.Node]) -> int:
        """The most bytes at any time of forward and backward, results included."""
        results = [n for n in self.parts.results if isinstance(n, fx.Node)]
        forward = self._run(self.parts.forward_order(saved), (), [*results, *saved])
        gradients = [n for n in self.parts.gradients if isinstance(n, fx.Node)]
        backward = self._run(self.parts.backward_order(saved), [*saved, *self.parts.tangents], [*results, *gradients], results)
        return max(forward, backward)

    def _run(self, order: Sequence[fx.Node], given: Iterable[fx.Node], outputs: Iterable[fx.Node], kept: Iterable[fx.Node] = ()) -> int:
        """The peak of one graph. Each value is freed after its last use."""
        last: dict[fx.Node, int] = {}
        for i, n in enumerate(order):
            for u in (n, *n.all_input_nodes):
                for home in self.homes[u]:
                    last[home] = i
        for n in outputs:
            for home in self.homes[n]:
                last[home] = len(order)
        alive = dict.fromkeys(home for n in (*given, *kept) for home in self.homes[n] if home in last)
        freed: dict[int, list[fx.Node]] = {}
        for home, i in last.items():
            freed.setdefault(i, []).append(home)
        now = peak = sum(self.size[home] for home in alive)
        for i, n in enumerate(order):
            for home in self.homes[n]:
                if home not in alive:
                    alive[home] = None
                    now += self.size[home]
            peak = max(peak, now)
            for home in freed.get(i, ()):
                if home in alive:
                    del alive[home]
                    now -= self.size[home]
        return peak


def _share(a: Any, b: Any) -> bool:
    """Whether two values of the trace may lie in the same memory."""
    if isinstance(a, (list, tuple)):
        return any(_share(x, b) for x in a)
    if isinstance(b, (list, tuple)):
        return any(_share(a, x) for x in b)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.layout is not torch.strided or b.layout is not torch.strided:
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
