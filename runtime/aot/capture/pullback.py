"""The gradients of a joint graph as a function of arguments and cotangents. A second derivative
differentiates this function.

    f(x) = sin(x)        joint: x, t -> sin(x), cos(x) * t        pullback: x, t -> cos(x) * t

It computes again what it needs of the forward pass. Random numbers are not drawn again: it starts
from a value that was saved and that they alone decide, such as the mask of a dropout.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rules.ops import DIFFERENTIABLE, op_of
from ...trace.graph_module import GraphModule
from .boundary import Boundary
from .origins import ORIGIN

DERIVATIVE = "derivative"
"""The key under which a call of a joint graph says how its result is differentiated: the next
three, ``OF_THE_OP`` if it says nothing."""
NONE, OWN, OF_THE_OP = "none", "a custom Function's", "of the op"
UNSEEN = "unseen"
"""The key under which a call says why its result has the history of another value: one
of the next two."""
WRITTEN = (
    "it writes to a tensor under no_grad, or through detach() or .data, "
    "that has a history, and reads it"
)
PACKED = "it sets hooks on saved tensors, which give other values in their place"

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default


@dataclass(frozen=True)
class Pullback:
    """``primals``: numbers of the primals that it takes. ``saved``: numbers of the saved
    values that it takes, after the primals. Cotangents come last. ``drawn``: random numbers
    that the forward pass must save, too; their numbers come after the others. ``refused``: why
    there is none, or empty.
    """

    primals: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    nodes: frozenset[fx.Node] = frozenset()  # the calls that it makes
    refused: str = ""
    drawn: tuple[fx.Node, ...] = ()

    def module(
        self, joint: fx.GraphModule, inputs: Sequence[fx.Node], gradients: Sequence[Any]
    ) -> fx.GraphModule:
        """The graph that computes ``gradients`` from ``inputs``."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for n in inputs:
            env[n] = graph.placeholder(n.name)
        for n in joint.graph.nodes:
            if n in self.nodes and n not in env:
                env[n] = graph.node_copy(n, env.get if n.target is _BATCH_NORM else env.__getitem__)
                if n.target is _BATCH_NORM and env[n].args[3] is None:
                    env[n].target, env[n].meta["val"] = (
                        torch.ops.aten.native_batch_norm.default,
                        n.meta["val"][:3],
                    )
                # made under no_grad
                if n.meta.get(DERIVATIVE) == NONE and isinstance(n.meta.get("val"), torch.Tensor):
                    env[n] = graph.call_function(torch.ops.aten.detach.default, (env[n],))
        graph.output([env[g] if isinstance(g, fx.Node) else g for g in gradients])
        return GraphModule(joint, graph, "Pullback")


def pullback_of(
    joint: fx.GraphModule,
    boundary: Boundary,
    saved: Sequence[fx.Node | None],
    saves_draws: bool = True,
) -> Pullback:
    """``saved``: the nodes of the joint graph that the forward pass saves, None for one that
    is not in it. ``saves_draws``: whether it may save random numbers that only a second
    derivative needs."""
    if boundary.once:
        return Pullback(refused=boundary.once)
    placeholders = [n for n in joint.graph.nodes if n.op == "placeholder"]
    primals = {n: i for i, n in enumerate(placeholders[: len(boundary.inputs)])}
    varying = _varying(joint.graph, primals)
    changed = _changed_unseen(joint.graph)
    given = {
        n: i for i, n in enumerate(saved) if n is not None and n not in primals and n not in varying
    }
    results: Any = joint.graph.output_node().args[0]
    found: set[fx.Node] = set()
    drawn: list[fx.Node] = []
    stack = [
        g
        for g in results[boundary.n_forward : boundary.n_forward + len(boundary.differentiated)]
        if isinstance(g, fx.Node)
    ]
    while stack:
        n = stack.pop()
        if n in found:
            continue
        found.add(n)
        if n in changed:
            return Pullback(refused=changed[n])
        if n in given:
            continue
        if n.meta.get(DERIVATIVE) == OWN and n in varying:
            return Pullback(refused="its derivative uses what a custom Function returned")
        if _draws(n) and ORIGIN in n.meta:
            return Pullback(refused=f"its derivative draws random numbers ({n.target})")
        if (
            _draws(n)
            and saves_draws
            and n not in varying
            and isinstance(n.meta.get("val"), torch.Tensor)
        ):
            given[n] = len(saved) + len(drawn)
            drawn.append(n)
            continue
        if _draws(n):
            return Pullback(
                refused=(
                    f"it draws random numbers ({n.target}), and what was saved does not tell them"
                )
            )
        stack.extend(_read(n))
    numbers = tuple(i for n, i in primals.items() if n in found)
    return Pullback(
        numbers,
        tuple(i for n, i in given.items() if n in found),
        frozenset(found - primals.keys()),
        drawn=tuple(drawn),
    )


def _read(n: fx.Node) -> Sequence[fx.Node]:
    """The values that decide ``n``. In training a batch norm reads its running statistics only to
    give their new values."""
    source = n.args[0] if n.target is operator.getitem else n
    if not isinstance(source, fx.Node) or source.target is not _BATCH_NORM or not source.args[5]:
        return n.all_input_nodes
    statistics = [a for a in source.args[3:5] if isinstance(a, fx.Node)]
    if n is source:
        return [a for i, a in enumerate(n.args) if isinstance(a, fx.Node) and i not in (3, 4)]
    return [source, *(statistics if n.args[1] in (3, 4) else ())]


def _varying(graph: fx.Graph, primals: dict[fx.Node, int]) -> set[fx.Node]:
    """The values that may have a derivative with respect to a primal."""
    found: set[fx.Node] = set()
    for n in graph.nodes:
        value = n.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype not in DIFFERENTIABLE:
            continue
        if n.meta.get(DERIVATIVE) == NONE and n not in primals:
            continue
        if (
            n in primals
            or n.op == "placeholder"
            or (any(u in found for u in n.all_input_nodes) and not _without_derivative(n))
        ):
            found.add(n)
    return found


def _changed_unseen(graph: fx.Graph) -> dict[fx.Node, str]:
    """The values whose histories do not say how they were computed, each with the reason: what is
    read of a tensor after a write that autograd does not see."""
    found: dict[fx.Node, str] = {}
    for n in graph.nodes:
        value = n.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype not in DIFFERENTIABLE:
            continue
        why = n.meta.get(UNSEEN) or next((found[u] for u in n.all_input_nodes if u in found), "")
        if why:
            found[n] = why
    return found


def _draws(n: fx.Node) -> bool:
    record = op_of(n.target).record if isinstance(n.target, torch._ops.OpOverload) else None
    if record is not None:
        return record.draws is not None
    return (
        isinstance(n.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in n.target.tags
    )


def _without_derivative(n: fx.Node) -> bool:
    """Whether the elements of the arguments have no gradient by a call: a factory, a comparison, a
    draw that shapes alone decide. Or whether ``n`` is a result of a call that has none, such as the
    noise of a ``rrelu``."""
    source: Any = n.args[0] if n.target is operator.getitem else n
    record = (
        op_of(source.target).record if isinstance(source.target, torch._ops.OpOverload) else None
    )
    if record is None:
        return False
    if source is not n:  # an item of a call that has a derivative by some result
        return isinstance(record.nondiff, tuple) and n.args[1] in record.nondiff
    return record.nondiff is True or record.draws == "shape"
