"""Cutting a joint graph into a forward and a backward module: which values are kept between the two, and which are computed again.

A forward module maps primals to (forward results, kept values); a backward module maps (kept values, tangents) to gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..rules.ops import op_of
from .min_cut import INFINITE, min_cut
from .tangents import primals_and_tangents

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def default_partition(
    joint_module: fx.GraphModule, joint_inputs: Any = None, *, num_fwd_outputs: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Keep every value that the forward computes anyway and the backward uses; what only the backward needs is computed there."""
    parts = _Parts(joint_module, num_fwd_outputs, joint_inputs)
    kept = [n for n in parts.forward if any(u in parts.backward for u in n.users)]
    return parts.cut(kept)


def min_cut_rematerialization_partition(
    joint_module: fx.GraphModule,
    joint_inputs: Any = None,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    may_recompute: Callable[[fx.Node], bool] | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Keep the fewest bytes from which cheap ops can compute what the backward needs.

    The values are vertices split in two, the edge between weighing as much as keeping the value costs. Edges that cannot be cut lead
    from the source to what exists without recomputation (inputs, ops that may not be run twice) and from what the backward uses to
    the sink; the cheapest cut is what to keep. Of equally cheap ones the nearest to the backward, which recomputes least.

    ``static_lifetime_input_indices``: inputs that stay alive in any case (parameters) and so cost nothing to keep.
    ``may_recompute``: overrides which calls may be run again (see :func:`recomputable`).
    """
    parts = _Parts(joint_module, num_fwd_outputs, joint_inputs)
    again = may_recompute or recomputable
    static = {parts.primals[i] for i in static_lifetime_input_indices or ()}
    candidates = [n for n in parts.nodes if n not in parts.after_tangents and n.op != "output"]
    number = {n: i for i, n in enumerate(candidates)}
    source, sink = 2 * len(candidates), 2 * len(candidates) + 1
    edges: list[tuple[int, int, int]] = []
    for n, i in number.items():
        first = n.op in ("placeholder", "get_attr") or not (again(n) or _is_item(n) or _is_size(n))
        if first:
            edges.append((source, 2 * i, INFINITE))
        edges.append((2 * i, 2 * i + 1, 0 if n in static or n.op == "get_attr" or _is_size(n) else _cost(n)))
        for user in n.users:
            if user in number:
                edges.append((2 * i + 1, 2 * number[user], INFINITE))
            elif user in parts.backward:
                edges.append((2 * i + 1, sink, INFINITE))
        if n in parts.gradients:
            edges.append((2 * i + 1, sink, INFINITE))
    if not any(b == sink for _, b, _ in edges):
        return parts.cut([])
    _, on_sink_side = min_cut(sink + 1, edges, source, sink)
    kept = [n for n, i in number.items() if not on_sink_side[2 * i] and on_sink_side[2 * i + 1] and n.op != "get_attr"]
    return parts.cut(kept)


def recomputable(n: fx.Node) -> bool:
    """Whether a call may be run again in the backward: without effect, not random, and cheap as far as its record knows."""
    func = n.target
    if not isinstance(func, torch._ops.OpOverload):
        return True
    record = op_of(func).record
    if record is None or record.draws or func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return record.cost == "low" or (record.cost is None and func.namespace == "aten")


def _is_item(n: fx.Node) -> bool:
    return n.target is operator.getitem


def _is_size(n: fx.Node) -> bool:
    """A number computed from sizes: kept or computed again at no cost that counts."""
    value = n.meta.get("val")
    return not isinstance(value, (torch.Tensor, list, tuple)) and value is not None


def _cost(n: fx.Node) -> int:
    """Bytes to keep a value; a call with several results is kept by its items."""
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return INFINITE
    elements = 1
    for size in value.shape:
        elements *= _hint(size)
    return max(1, elements * value.element_size())


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


class _Parts:
    """What of a joint graph belongs where.

    ``forward``: what the forward results need; ``after_tangents``: what depends on a tangent; ``backward``: what the gradients need and
    the forward does not give, so that it must run in the backward.
    """

    def __init__(self, module: fx.GraphModule, num_fwd_outputs: int, joint_inputs: Any = None) -> None:
        self.module = module
        self.nodes = list(module.graph.nodes)
        output = self.nodes[-1]
        results: Any = output.args[0]
        self.results = list(results[:num_fwd_outputs])
        self.gradients = list(results[num_fwd_outputs:])
        self.primals, self.tangents = primals_and_tangents(module, joint_inputs)
        self.after_tangents = _closure(self.tangents, lambda n: n.users)
        self.effects = [n for n in self.nodes if n.op == "call_function" and n.is_impure() and n not in self.after_tangents]
        start = [*(n for n in self.results if isinstance(n, fx.Node)), *self.effects]
        needed_forward = _closure(start, lambda n: n.all_input_nodes)
        leaking = needed_forward & self.after_tangents
        if leaking:
            raise RuntimeError(f"a forward result depends on a tangent: {sorted(n.name for n in leaking)}")
        self.forward = [n for n in self.nodes if (n in needed_forward or n in self.primals) and n.op != "get_attr"]
        needed_backward = _closure([n for n in self.gradients if isinstance(n, fx.Node)], lambda n: n.all_input_nodes)
        self.backward = needed_backward - set(self.forward)

    def cut(self, kept: list[fx.Node]) -> tuple[fx.GraphModule, fx.GraphModule]:
        kept = list(dict.fromkeys([*_without_tuples(kept), *(g for g in self.gradients if g in self.forward)]))
        tensors = [n for n in kept if not _is_size(n)]
        sizes = [n for n in kept if _is_size(n)]
        kept = [*tensors, *sizes]
        forward = self._extract(self.primals, [*self.results, *kept], "Forward", self.effects)
        backward = self._extract([*kept, *self.tangents], self.gradients, "Backward")
        return forward, backward

    def _extract(self, inputs: Sequence[fx.Node], outputs: Sequence[Any], name: str, effects: Sequence[fx.Node] = ()) -> fx.GraphModule:
        """The module that computes ``outputs`` from ``inputs``, running what lies between, and ``effects`` (draws, unused ones too)."""
        needed: set[fx.Node] = set()
        stack = [*effects, *(o for o in outputs if isinstance(o, fx.Node))]
        given = set(inputs)
        while stack:
            n = stack.pop()
            if n not in needed:
                needed.add(n)
                if n not in given:
                    stack.extend(n.all_input_nodes)
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for n in inputs:
            env[n] = graph.placeholder(n.name)
            env[n].meta = dict(n.meta)
        for n in self.nodes:
            if n not in needed or n in given:
                continue
            if n.op == "placeholder":
                raise RuntimeError(f"{name.lower()} needs {n.name}, which is not among its inputs")
            env[n] = graph.node_copy(n, lambda x: env[x])
        graph.output([env[o] if isinstance(o, fx.Node) else o for o in outputs])
        return fx.GraphModule(self.module, graph, name)


def _without_tuples(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Calls with several results are kept by those of their items that somebody uses."""
    out: list[fx.Node] = []
    for n in nodes:
        if isinstance(n.meta.get("val"), (list, tuple)):
            out.extend(u for u in n.users if _is_item(u))
        else:
            out.append(n)
    return out


def _closure(start: Sequence[fx.Node], following: Callable[[fx.Node], Any]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(start)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(following(n))
    return found
