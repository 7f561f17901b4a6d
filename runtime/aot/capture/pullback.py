"""Write the gradients of a joint graph as a function of arguments and cotangents.

A second derivative differentiates this function.

    f(x) = sin(x)        joint: x, t -> sin(x), cos(x) * t        pullback: x, t -> cos(x) * t

It computes again what it needs of the forward pass. Random numbers are not drawn again: it starts
from a value that was saved and that they alone decide, such as the mask of a dropout.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rules.ops import DIFFERENTIABLE, op_of
from ...seam.graph_walks import nodes_among, results_of
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_module import GraphModule
from ...trace.provenance import line_of
from .boundary import Boundary
from .origins import ORIGIN
from .own_derivatives import APPLIES, Application, OwnDerivative, Part, apply, part_of

DERIVATIVE = "derivative"
"""The key under which a call of a joint graph says how its result is differentiated.

Its value is one of the next three, and ``OF_THE_OP`` if there is none."""
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
    """Describe a pullback.

    It takes primals, saved values, drawn numbers and then cotangents.
    """

    # Numbers of the primals that it takes.
    primals: tuple[int, ...] = ()
    # Numbers of the saved values that it takes.
    saved: tuple[int, ...] = ()
    # The calls of the joint graph that it runs.
    nodes: frozenset[fx.Node] = frozenset()
    # Why there is no pullback. Empty if there is one.
    refused: str = ""
    # Random numbers that the forward pass must save too. Their numbers come after the others.
    drawn: tuple[fx.Node, ...] = ()
    # The derivatives of custom Functions that it needs.
    parts: tuple[Part, ...] = ()

    def module(
        self, joint: fx.GraphModule, inputs: Sequence[fx.Node], gradients: Sequence[fx.Node | None]
    ) -> fx.GraphModule:
        """Return the graph that computes ``gradients`` from ``inputs``."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        rules: dict[str, object] = {}
        # a part replaces the outputs of its Function as soon as the last of them is computed
        last = {part.last: part for part in self.parts}
        for node in inputs:
            env[node] = graph.placeholder(node.name)
        for node in joint.graph.nodes:
            if node in self.nodes and node not in env:
                env[node] = _copy(graph, node, env)
            part = last.get(node)
            if part is not None:
                name = f"derivative_{len(rules)}"
                rules[name] = OwnDerivative.of(part, _copy, joint)
                _apply(graph, part, env, name)
        graph.output([env[grad] if isinstance(grad, fx.Node) else grad for grad in gradients])
        return GraphModule({**_attributes(joint, graph), **rules}, graph, "Pullback")


def _copy(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """Write call ``node`` of a joint graph to ``graph``."""
    if node.target is _BATCH_NORM:
        copy = _copy_batch_norm(graph, node, env)
    else:
        copy = graph.node_copy(node, env.__getitem__)
    # a call under no_grad has no history, and in the pullback it would get one
    if node.meta.get(DERIVATIVE) == NONE and isinstance(node.meta.get("val"), torch.Tensor):
        return graph.call_function(torch.ops.aten.detach.default, (copy,))
    return copy


def _copy_batch_norm(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """Write a batch norm to ``graph``.

    Where the pullback does not compute its running statistics, the op is the one that returns no
    new values of them.
    """
    # an argument that the pullback does not compute becomes None
    copy = graph.node_copy(node, env.get)
    if copy.args[3] is None:
        copy.target = torch.ops.aten.native_batch_norm.default
        copy.meta["val"] = node.meta["val"][:3]
    return copy


def _apply(graph: fx.Graph, part: Part, env: dict[fx.Node, fx.Node], name: str) -> None:
    """Give the outputs of a custom Function in ``env`` its derivative, the attribute ``name``."""
    outputs = list(part.application.outputs.values())
    detach = torch.ops.aten.detach.default
    # the outputs are read detached: their history is to be that of the Function alone
    values = [env[node] for node in part.application.inputs if node is not None]
    values += [graph.call_function(detach, (env[output],)) for output in outputs]
    values += [env[node] for node in part.rest]
    results = graph.call_function(apply, (graph.get_attr(name), *values))
    for index, node in enumerate(outputs):
        env[node] = graph.call_function(operator.getitem, (results, index))
        env[node].meta = dict(node.meta)


def _attributes(joint: fx.GraphModule, graph: fx.Graph) -> dict[str, object]:
    """Return the attributes of the module of the joint graph that ``graph`` reads."""
    names = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    return {name: getattr(joint, name) for name in names if hasattr(joint, name)}


class _Search:
    """Find what a pullback computes."""

    def __init__(
        self,
        joint: fx.GraphModule,
        primals: dict[fx.Node, int],
        saved: Sequence[fx.Node | None],
        saves_draws: bool,
        applications: Iterable[Application],
    ) -> None:
        self.varying = _differentiable_values(joint.graph, primals)
        self.changed = _reasons_of_unseen_changes(joint.graph)
        # a saved value that depends on a primal would hide that from the derivative
        self.given: dict[fx.Node, int] = {}
        for index, node in enumerate(saved):
            if node is not None and node not in primals and node not in self.varying:
                self.given[node] = index
        self.n_saved = len(saved)
        self.saves_draws = saves_draws
        self.places = {node: index for index, node in enumerate(joint.graph.nodes)}
        # by output, the calls of custom Functions
        self.applications: dict[fx.Node, Application] = {}
        for application in applications:
            self.applications.update(dict.fromkeys(application.outputs.values(), application))
        self.parts: dict[Application, Part] = {}
        self.found: set[fx.Node] = set()
        self.drawn: list[fx.Node] = []

    def run(self, stack: list[fx.Node]) -> str:
        """Find what leads to the nodes in ``stack``. Return why there is no pullback, or ``""``."""
        while stack:
            node = stack.pop()
            if node in self.found:
                continue
            self.found.add(node)
            if node in self.changed:
                return self.changed[node]
            # a saved value is an argument of the pullback, whatever it was computed from
            if node in self.given:
                continue
            if node.meta.get(DERIVATIVE) == OWN and node in self.varying:
                why = self._own(node, stack)
                if why:
                    return why
            # a second draw would give other numbers, so the first ones must be saved
            if _draws(node):
                if why := self._draw(node):
                    return why
                continue
            stack.extend(_read(node))
        return self._without_cotangents()

    def _own(self, node: fx.Node, stack: list[fx.Node]) -> str:
        """Find the derivative of a custom Function with the output ``node``.

        Return why it has none that the pullback can use, or nothing.
        """
        application = self.applications.get(node)
        if application is None:
            return f"its derivative uses what a custom Function returned{_at(node)}"
        if application not in self.parts:
            part = part_of(application, self.places)
            if isinstance(part, str):
                return part
            # the derivative of one Function is no graph that applies another one
            if any(call.meta.get(DERIVATIVE) == OWN for call in part.nodes):
                return application.refusal(APPLIES)
            self.parts[application] = part
            stack.extend((*part.reads(), *part.nodes))
        return ""

    def _without_cotangents(self) -> str:
        """Return why an output of a custom Function has no derivative, or nothing."""
        for application in self.parts:
            for number, output in application.outputs.items():
                if number in application.cotangents:
                    continue
                if output in self.found and self._is_used(output):
                    return application.refusal(
                        f"its backward got no cotangent of output {number} in the first backward "
                        "pass"
                    )
        return ""

    def _is_used(self, node: fx.Node) -> bool:
        """Return whether a call of the pullback takes ``node``."""
        return any(user in self.found for user in node.users)

    def _draw(self, node: fx.Node) -> str:
        """Let the forward pass save the random numbers of ``node``, or return why it cannot."""
        if ORIGIN in node.meta:
            return f"its derivative draws random numbers ({node.target}){_at(node)}"
        # a saved value is a constant for the second derivative, so nothing may lead to it
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if self.saves_draws and node not in self.varying and is_tensor:
            self.given[node] = self.n_saved + len(self.drawn)
            self.drawn.append(node)
            return ""
        return (
            f"it draws random numbers ({node.target}), and what was saved does not tell "
            f"them{_at(node)}"
        )


def _at(node: fx.Node) -> str:
    """Return the user's line of ``node`` for a message; nothing if it is not known."""
    line = line_of(node)
    if line is None:
        return ""
    return f", at {line}"


def pullback_of(
    joint: fx.GraphModule,
    boundary: Boundary,
    saved: Sequence[fx.Node | None],
    saves_draws: bool = True,
    applications: Iterable[Application] = (),
) -> Pullback:
    """Return the pullback of a joint graph.

    ``saved``: the nodes of the joint graph that the forward pass saves, None for one that is not in
    it. ``saves_draws``: whether it may save random numbers that only a second derivative needs.
    ``applications``: the calls of custom Functions.
    """
    if boundary.once:
        return Pullback(refused=boundary.once)
    placeholders = joint.graph.find_nodes(op="placeholder")
    primals = {node: index for index, node in enumerate(placeholders[: len(boundary.inputs)])}
    # walk back from the gradients to what the pullback takes
    search = _Search(joint, primals, saved, saves_draws, applications)
    results = results_of(joint.graph)
    gradients = results[boundary.n_forward : boundary.n_forward + len(boundary.differentiated)]
    if why := search.run(nodes_among(gradients)):
        return Pullback(refused=why)
    nodes = search.found
    return Pullback(
        _numbers_of(nodes, primals),
        _numbers_of(nodes, search.given),
        frozenset(nodes - primals.keys()),
        drawn=tuple(search.drawn),
        parts=tuple(search.parts.values()),
    )


def _numbers_of(nodes: Container[fx.Node], numbers: Mapping[fx.Node, int]) -> tuple[int, ...]:
    """Return the ``numbers`` of those ``nodes`` that have one."""
    return tuple(index for node, index in numbers.items() if node in nodes)


def _read(node: fx.Node) -> Sequence[fx.Node]:
    """Return the values that decide ``node``.

    In training a batch norm reads its running statistics only to compute their new values.
    """
    source = _source(node)
    if not _is_batch_norm_in_training(source):
        return node.all_input_nodes
    if node is source:
        return nodes_among([*node.args[:3], *node.args[5:]])
    if node.args[1] in (3, 4):  # the new values of the statistics
        return [source, *nodes_among(source.args[3:5])]
    return [source]


def _is_batch_norm_in_training(node: object) -> bool:
    # the op takes (input, weight, bias, running_mean, running_var, training, …)
    return isinstance(node, fx.Node) and node.target is _BATCH_NORM and bool(node.args[5])


def _source(node: fx.Node) -> Any:
    """Return the call of which ``node`` is an item; ``node`` itself if it is none."""
    if node.target is operator.getitem:
        return node.args[0]
    return node


def _differentiable_values(graph: fx.Graph, primals: dict[fx.Node, int]) -> set[fx.Node]:
    """Return the values that may have a derivative with respect to a primal."""
    varying: set[fx.Node] = set()
    for node in graph.nodes:
        if not _has_no_gradient(node) and (node in primals or _may_vary(node, varying)):
            varying.add(node)
    return varying


def _may_vary(node: fx.Node, varying: set[fx.Node]) -> bool:
    """Return whether ``node``, which is no primal, may have a derivative with respect to one.

    ``varying``: the values before ``node`` that may have one.
    """
    derivative = node.meta.get(DERIVATIVE)
    if derivative == NONE:
        return False
    if node.op == "placeholder" or derivative == OWN:
        return True
    return not varying.isdisjoint(node.all_input_nodes) and not _without_derivative(node)


def _has_no_gradient(node: fx.Node) -> bool:
    """Return whether the value of ``node`` is a tensor of integers or booleans."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype not in DIFFERENTIABLE


def _reasons_of_unseen_changes(graph: fx.Graph) -> dict[fx.Node, str]:
    """Return the values whose histories do not say how they were computed, each with the reason.

    Such a value is read of a tensor after a write that autograd does not see.
    """
    changed: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if _has_no_gradient(node):
            continue
        # its own reason, or that of the first value that it is computed of
        why = node.meta.get(UNSEEN)
        if not why:
            reasons = (changed[source] for source in node.all_input_nodes if source in changed)
            why = next(reasons, "")
        if why:
            changed[node] = why
    return changed


def _draws(node: fx.Node) -> bool:
    """Return whether ``node`` draws random numbers."""
    if not isinstance(node.target, OpOverload):
        return False
    record = op_of(node.target).record
    if record is not None:
        return record.draws is not None
    return torch.Tag.nondeterministic_seeded in node.target.tags


def _without_derivative(node: fx.Node) -> bool:
    """Return whether no gradient flows through ``node``.

    That is so for a factory, a comparison, or a draw that shapes alone decide. It is also so for a
    result without gradient of another call, such as the noise of a ``rrelu``.
    """
    source = _source(node)
    if not isinstance(source.target, OpOverload):
        return False
    record = op_of(source.target).record
    if record is None:
        return False
    if source is not node:  # an item of a call that has a derivative by some result
        return isinstance(record.nondiff, tuple) and node.args[1] in record.nondiff
    return record.nondiff is True or record.draws == "shape"
