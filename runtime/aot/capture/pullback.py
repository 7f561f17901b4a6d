"""The gradients of a joint graph as a function of arguments and cotangents. A second derivative
differentiates this function.

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
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_module import GraphModule
from ...trace.provenance import line_of
from .boundary import Boundary
from .origins import ORIGIN
from .own_derivatives import APPLIES, Application, OwnDerivative, Part, apply, part_of

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
    that the forward pass must save, too; their numbers come after the others. ``parts``: the
    derivatives of custom Functions that it needs. ``refused``: why there is none, or empty.
    """

    primals: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    nodes: frozenset[fx.Node] = frozenset()  # the calls that it makes
    refused: str = ""
    drawn: tuple[fx.Node, ...] = ()
    parts: tuple[Part, ...] = ()

    def module(
        self, joint: fx.GraphModule, inputs: Sequence[fx.Node], gradients: Sequence[Any]
    ) -> fx.GraphModule:
        """Return the graph that computes ``gradients`` from ``inputs``."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        rules: dict[str, Any] = {}
        last = {part.last: part for part in self.parts}
        for n in inputs:
            env[n] = graph.placeholder(n.name)
        for n in joint.graph.nodes:
            if n in self.nodes and n not in env:
                env[n] = _copied(graph, n, env)
            part = last.get(n)
            if part is not None:
                rules[name := f"derivative_{len(rules)}"] = OwnDerivative.of(part, _copied, joint)
                _apply(graph, part, env, name)
        graph.output([env[g] if isinstance(g, fx.Node) else g for g in gradients])
        return GraphModule({**_attributes(joint, graph), **rules}, graph, "Pullback")


def _copied(graph: fx.Graph, n: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """Call ``n`` of a joint graph, written to ``graph``."""
    if n.target is _BATCH_NORM:
        made = _copied_batch_norm(graph, n, env)
    else:
        made = graph.node_copy(n, env.__getitem__)
    # made under no_grad
    if n.meta.get(DERIVATIVE) == NONE and isinstance(n.meta.get("val"), torch.Tensor):
        return graph.call_function(torch.ops.aten.detach.default, (made,))
    return made


def _copied_batch_norm(graph: fx.Graph, n: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """Write a batch norm to ``graph``. Where the pullback does not compute its running statistics,
    the op is the one that gives no new values of them."""
    made = graph.node_copy(n, env.get)
    if made.args[3] is None:
        made.target, made.meta["val"] = torch.ops.aten.native_batch_norm.default, n.meta["val"][:3]
    return made


def _apply(graph: fx.Graph, part: Part, env: dict[fx.Node, fx.Node], name: str) -> None:
    """Give the outputs of a custom Function in ``env`` its derivative, the attribute ``name``."""
    outputs = list(part.application.outputs.values())
    detach = torch.ops.aten.detach.default
    values = [env[n] for n in part.application.inputs if n is not None]
    values += [graph.call_function(detach, (env[n],)) for n in outputs]
    values += [env[n] for n in part.rest]
    results = graph.call_function(apply, (graph.get_attr(name), *values))
    for i, n in enumerate(outputs):
        env[n] = graph.call_function(operator.getitem, (results, i))
        env[n].meta = dict(n.meta)


def _attributes(joint: fx.GraphModule, graph: fx.Graph) -> dict[str, object]:
    """Return what ``graph`` reads of the module of the joint graph."""
    names = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    return {name: getattr(joint, name) for name in names if hasattr(joint, name)}


class _Search:
    """Finds what a pullback computes. ``given``: what it takes, with the numbers of saved values.
    ``applications``: by output, the calls of custom Functions."""

    def __init__(
        self,
        joint: fx.GraphModule,
        primals: dict[fx.Node, int],
        saved: Sequence[fx.Node | None],
        saves_draws: bool,
        applications: Iterable[Application],
    ) -> None:
        self.varying = _varying(joint.graph, primals)
        self.changed = _changed_unseen(joint.graph)
        self.given = {
            n: i
            for i, n in enumerate(saved)
            if n is not None and n not in primals and n not in self.varying
        }
        self.n_saved = len(saved)
        self.saves_draws = saves_draws
        self.places = {n: i for i, n in enumerate(joint.graph.nodes)}
        self.applications = {n: a for a in applications for n in a.outputs.values()}
        self.parts: dict[Application, Part] = {}
        self.found: set[fx.Node] = set()
        self.drawn: list[fx.Node] = []

    def run(self, stack: list[fx.Node]) -> str:
        """Find what leads to the nodes in ``stack``. Returns why there is no pullback, or
        nothing."""
        while stack:
            n = stack.pop()
            if n in self.found:
                continue
            self.found.add(n)
            if n in self.changed:
                return self.changed[n]
            if n in self.given:
                continue
            if n.meta.get(DERIVATIVE) == OWN and n in self.varying and (why := self._own(n, stack)):
                return why
            if _draws(n):
                if why := self._draw(n):
                    return why
                continue
            stack.extend(_read(n))
        return self._without_cotangents()

    def _own(self, n: fx.Node, stack: list[fx.Node]) -> str:
        """Find the derivative of a custom Function with the output ``n``."""
        application = self.applications.get(n)
        if application is None:
            return f"its derivative uses what a custom Function returned{_at(n)}"
        if application not in self.parts:
            part = part_of(application, self.places)
            if isinstance(part, str):
                return part
            if any(call.meta.get(DERIVATIVE) == OWN for call in part.nodes):
                return application.refusal(APPLIES)
            self.parts[application] = part
            stack.extend((*part.reads(), *part.nodes))
        return ""

    def _without_cotangents(self) -> str:
        """Return why an output of a custom Function has no derivative, or nothing."""
        for application in self.parts:
            for i, n in application.outputs.items():
                if n in self.found and i not in application.cotangents and self._used(n):
                    return application.refusal(
                        f"its backward got no cotangent of output {i} in the first backward pass"
                    )
        return ""

    def _used(self, n: fx.Node) -> bool:
        """Return whether a call of the pullback takes ``n``."""
        return any(u in self.found for u in n.users)

    def _draw(self, n: fx.Node) -> str:
        if ORIGIN in n.meta:
            return f"its derivative draws random numbers ({n.target}){_at(n)}"
        is_tensor = isinstance(n.meta.get("val"), torch.Tensor)
        if self.saves_draws and n not in self.varying and is_tensor:
            self.given[n] = self.n_saved + len(self.drawn)
            self.drawn.append(n)
            return ""
        return (
            f"it draws random numbers ({n.target}), and what was saved does not tell them{_at(n)}"
        )


def _at(n: fx.Node) -> str:
    """Return the user's line of ``n`` for a message; nothing if it is not known."""
    line = line_of(n)
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
    """``saved``: the nodes of the joint graph that the forward pass saves, None for one that
    is not in it. ``saves_draws``: whether it may save random numbers that only a second
    derivative needs. ``applications``: the calls of custom Functions."""
    if boundary.once:
        return Pullback(refused=boundary.once)
    placeholders = [n for n in joint.graph.nodes if n.op == "placeholder"]
    primals = {n: i for i, n in enumerate(placeholders[: len(boundary.inputs)])}
    search = _Search(joint, primals, saved, saves_draws, applications)
    results: Any = joint.graph.output_node().args[0]
    gradients = results[boundary.n_forward : boundary.n_forward + len(boundary.differentiated)]
    if why := search.run([g for g in gradients if isinstance(g, fx.Node)]):
        return Pullback(refused=why)
    found = search.found
    return Pullback(
        _numbers_of(found, primals),
        _numbers_of(found, search.given),
        frozenset(found - primals.keys()),
        drawn=tuple(search.drawn),
        parts=tuple(search.parts.values()),
    )


def _numbers_of(nodes: Container[fx.Node], numbers: Mapping[fx.Node, int]) -> tuple[int, ...]:
    """Return the ``numbers`` of those ``nodes`` that have one."""
    return tuple(i for n, i in numbers.items() if n in nodes)


def _read(n: fx.Node) -> Sequence[fx.Node]:
    """Return the values that decide ``n``. In training a batch norm reads its running statistics
    only to give their new values."""
    source = _source(n)
    if not _is_batch_norm_in_training(source):
        return n.all_input_nodes
    if n is source:
        return _nodes_among([*n.args[:3], *n.args[5:]])
    if n.args[1] in (3, 4):  # the new values of the statistics
        return [source, *_nodes_among(source.args[3:5])]
    return [source]


def _is_batch_norm_in_training(n: object) -> bool:
    # the op takes (input, weight, bias, running_mean, running_var, training, …)
    return isinstance(n, fx.Node) and n.target is _BATCH_NORM and bool(n.args[5])


def _nodes_among(arguments: Iterable[object]) -> list[fx.Node]:
    return [a for a in arguments if isinstance(a, fx.Node)]


def _source(n: fx.Node) -> Any:
    """Return the call of which ``n`` is an item; ``n`` itself if it is none."""
    return n.args[0] if n.target is operator.getitem else n


def _varying(graph: fx.Graph, primals: dict[fx.Node, int]) -> set[fx.Node]:
    """Return the values that may have a derivative with respect to a primal."""
    found: set[fx.Node] = set()
    for n in graph.nodes:
        if not _has_no_gradient(n) and (n in primals or _may_vary(n, found)):
            found.add(n)
    return found


def _may_vary(n: fx.Node, varying: set[fx.Node]) -> bool:
    """Return whether ``n``, which is no primal, may have a derivative with respect to one.
    ``varying``: the values before ``n`` that may have one."""
    derivative = n.meta.get(DERIVATIVE)
    if derivative == NONE:
        return False
    if n.op == "placeholder" or derivative == OWN:
        return True
    return not varying.isdisjoint(n.all_input_nodes) and not _without_derivative(n)


def _has_no_gradient(n: fx.Node) -> bool:
    """Return whether the value of ``n`` is a tensor of integers or booleans."""
    value = n.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype not in DIFFERENTIABLE


def _changed_unseen(graph: fx.Graph) -> dict[fx.Node, str]:
    """Return the values whose histories do not say how they were computed, each with the reason:
    what is read of a tensor after a write that autograd does not see."""
    found: dict[fx.Node, str] = {}
    for n in graph.nodes:
        if _has_no_gradient(n):
            continue
        why = n.meta.get(UNSEEN) or next((found[u] for u in n.all_input_nodes if u in found), "")
        if why:
            found[n] = why
    return found


def _draws(n: fx.Node) -> bool:
    """Return whether ``n`` draws random numbers."""
    if not isinstance(n.target, OpOverload):
        return False
    record = op_of(n.target).record
    if record is not None:
        return record.draws is not None
    return torch.Tag.nondeterministic_seeded in n.target.tags


def _without_derivative(n: fx.Node) -> bool:
    """Return whether the elements of the arguments have no gradient by a call: a factory, a
    comparison, a draw that shapes alone decide. Or whether ``n`` is a result of a call that has
    none, such as the noise of a ``rrelu``."""
    source = _source(n)
    if not isinstance(source.target, OpOverload):
        return False
    record = op_of(source.target).record
    if record is None:
        return False
    if source is not n:  # an item of a call that has a derivative by some result
        return isinstance(record.nondiff, tuple) and n.args[1] in record.nondiff
    return record.nondiff is True or record.draws == "shape"
