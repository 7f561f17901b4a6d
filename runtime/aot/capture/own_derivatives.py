"""Find the derivatives of custom Functions in a joint graph, for second derivatives.

    class Step(Function):
        forward:  x -> (x > 0).to(x.dtype)
        backward: g -> 3 * g

    f(x) = Step(x) * x     joint: x, t -> Step(x) * x, t * Step(x) + 3 * (t * x)

The second derivative of ``f`` differentiates ``t * Step(x)``, where the derivative of ``Step(x)``
is ``g -> 3 * g``. No call of ATen in ``forward`` shows that, but the joint graph has it: it is what
leads from ``t * x``, the cotangent that ``backward`` got, to ``3 * (t * x)``, which it returned.
:class:`Application` notes both ends for each call of a Function. :class:`OwnDerivative` is the part
of the graph between them, as the backward of a Function of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from ...autograd.function import Function, FunctionClass, rule
from ...autograd.function_rules import run_functional
from ...seam.graph_walks import inputs_of, walk
from ...torch_private.native_autograd import set_grad_enabled
from ...trace.graph_module import GraphModule
from ...trace.provenance import Line, text_of
from .shown import WholeTensorsLevel

NO_GRAD = "its backward computes under no_grad, as once_differentiable does"
APPLIES = "its backward calls a custom Function"
CONSTANT = "its backward returns a tensor that is no result of a call"
NOT_RUN = "its backward did not run in the first backward pass"


@dataclass(eq=False)
class Application:
    """A call of a custom Function in the program. All nodes are those of the joint graph."""

    name: str
    line: Line | None
    # The tensor of each edge of the call, None for an edge without a gradient.
    inputs: Sequence[fx.Node | None]
    # The outputs with a gradient, by number.
    outputs: dict[int, fx.Node] = field(default_factory=dict)
    # The arguments of `backward`, by the number of the output.
    cotangents: dict[int, fx.Node] = field(default_factory=dict)
    # The results of `backward`, one for each edge.
    gradients: Sequence[fx.Node | None] = ()
    # The calls that `backward` made.
    calls: frozenset[fx.Node] = frozenset()
    # Why these calls do not determine the derivative. Empty if they do.
    why: str = NOT_RUN

    def ends(self) -> list[fx.Node]:
        """Return the nodes that the application is noted by."""
        known = (node for node in (*self.inputs, *self.gradients) if node is not None)
        return [*known, *self.outputs.values(), *self.cotangents.values()]

    def refusal(self, why: str) -> str:
        """Return the reason why there is no second derivative, with the line of the call."""
        where = ""
        if self.line is not None:
            where = f", called at {text_of(self.line)}"
        return f"its derivative uses what the custom Function {self.name} returned{where}; {why}"


@rule(WholeTensorsLevel)
def _apply(
    level: WholeTensorsLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[Any, Any]:
    """Run a Function whose derivative nobody records: inside another one."""
    level.applied += 1
    return run_functional(level, cls, args)


def ends_of_used(applications: Sequence[Application], graph: fx.Graph) -> set[fx.Node]:
    """Return the ends of the ``applications`` that a result of ``graph`` depends on."""
    if not applications:
        return set()
    needed = set(walk([graph.output_node()], inputs_of))
    ends: set[fx.Node] = set()
    for application in applications:
        if not needed.isdisjoint(application.outputs.values()):
            ends.update(application.ends())
    return ends


class NoGradWatch(TorchFunctionMode):
    """Note in ``seen`` whether the program turns grad mode off, although it is off already.

    A first backward pass runs with grad mode off. So ``no_grad`` in a backward changes nothing
    there, and only this call shows that the gradients have no derivative.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[object] = (), kwargs: Any = None
    ) -> Any:
        """Note a call that turns grad mode off."""
        if func is set_grad_enabled and not args[0] and not torch.is_grad_enabled():
            self.seen = True
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Part:
    """Delimit the part of a joint graph that is the backward of one application."""

    application: Application
    # The last of its outputs.
    last: fx.Node
    # The nodes that it reads besides the cotangents and outputs.
    rest: tuple[fx.Node, ...]
    # Its calls, in program order.
    nodes: tuple[fx.Node, ...]

    def reads(self) -> list[fx.Node]:
        """Return the nodes that a pullback computes before it applies the part."""
        inputs = [node for node in self.application.inputs if node is not None]
        return [*inputs, *self.application.outputs.values(), *self.rest]


def part_of(application: Application, places: Mapping[fx.Node, int]) -> Part | str:
    """Return the backward of ``application`` as a part of the graph, or why there is none.

    ``places``: the number of each node.
    """
    if application.why:
        return application.refusal(application.why)
    # a pullback applies the derivative once it has this output, and can pass what is before it
    last = max(application.outputs.values(), key=places.__getitem__)
    ends = {*application.cotangents.values(), *application.outputs.values()}

    def inputs_within(node: fx.Node) -> list[fx.Node]:
        """Return the inputs of ``node``. Empty for an end, and for a node of the forward."""
        if node in ends or places[node] <= places[last]:
            return []
        return node.all_input_nodes

    gradients = [node for node in application.gradients if node is not None]
    read = set(walk(gradients, inputs_within)) - ends
    rest = {node for node in read if places[node] <= places[last]}
    calls = read - rest
    if not calls <= application.calls:
        return application.refusal("its backward uses what the program computed after it")
    order = places.__getitem__
    return Part(application, last, tuple(sorted(rest, key=order)), tuple(sorted(calls, key=order)))


def apply(own: OwnDerivative, *values: object) -> tuple[Any, ...]:
    """Return the outputs of a custom Function among ``values``, with its derivative."""
    outputs: tuple[Any, ...] = _Own.apply(own, *values)
    return outputs


class OwnDerivative(torch.nn.Module):
    """Give the outputs of a custom Function its derivative, in a pullback.

    :func:`apply` takes the tensors whose gradients the Function returns, its outputs, and ``rest``.
    The graph takes cotangents, the outputs and ``rest``.
    """

    def __init__(self, graph: fx.GraphModule, n_inputs: int, n_outputs: int, numbers: Any) -> None:
        super().__init__()
        self.graph = graph
        # the number of tensors whose gradients the Function returns
        self.n_inputs = n_inputs
        self.n_outputs = n_outputs
        # for each cotangent that the graph takes the number of its output, counted among the
        # outputs with a gradient
        self.numbers: tuple[int, ...] = tuple(numbers)

    @classmethod
    def of(
        cls, part: Part, copied: Callable[[fx.Graph, fx.Node, Any], fx.Node], root: fx.GraphModule
    ) -> OwnDerivative:
        """Return the derivative that ``part`` computes.

        ``copied(graph, node, values)`` writes a call of the joint graph to another graph. ``root``:
        the module of the joint graph.
        """
        application = part.application
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        # the arguments: the cotangents that arrived, all outputs, and what else the calls read
        order = list(application.outputs)
        taken = [number for number in order if number in application.cotangents]
        cotangents = [application.cotangents[number] for number in taken]
        for node in (*cotangents, *application.outputs.values(), *part.rest):
            env[node] = graph.placeholder(node.name)
            env[node].meta = dict(node.meta)
        for node in part.nodes:
            env[node] = copied(graph, node, env)
        # an input that does not require grad gets no gradient
        gradients: list[fx.Node | None] = []
        for source, grad in zip(application.inputs, application.gradients, strict=True):
            if source is not None:
                gradients.append(None if grad is None else env[grad])
        graph.output(gradients)
        module = GraphModule(root, graph, f"BackwardOf{application.name}")
        return cls(module, len(gradients), len(order), list(map(order.index, taken)))


class _Own(Function):
    """Return the outputs among ``values``, with the derivative that the first argument has."""

    generate_vmap_rule = True

    @staticmethod
    def forward(own: OwnDerivative, *values: Any) -> tuple[Any, ...]:
        """Return the outputs, as views."""
        outputs = values[own.n_inputs : own.n_inputs + own.n_outputs]
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save what the derivatives need."""
        own, *values = inputs
        ctx.own, ctx.n_values = own, len(values)
        rest = values[own.n_inputs + own.n_outputs :]
        # torch saves tensors alone, so numbers have a list of their own with None between them
        tensors: list[Any] = [None] * len(rest)
        ctx.numbers = [None] * len(rest)
        for index, value in enumerate(rest):
            place = tensors if isinstance(value, torch.Tensor) else ctx.numbers
            place[index] = value
        ctx.save_for_backward(*output, *tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: object) -> tuple[Any, ...]:
        """Return the gradients, by the graph of the derivative."""
        own: OwnDerivative = ctx.own
        saved = ctx.saved_tensors
        tensors = saved[own.n_outputs :]
        # sizes are no tensors, and cannot be saved
        rest = [
            number if tensor is None else tensor
            for tensor, number in zip(tensors, ctx.numbers, strict=True)
        ]
        taken = [cotangents[index] for index in own.numbers]
        gradients = own.graph(*taken, *saved[: own.n_outputs], *rest)
        # none for `own`, for the outputs, and for what else the graph reads
        return (None, *gradients, *[None] * (ctx.n_values - own.n_inputs))
