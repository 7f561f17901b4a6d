"""Record the program of a joint graph on a tape, and note how each call is differentiated."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from torch import fx

from ...autograd.function_node import FunctionNode
from ...functionalize.functional_value import FunctionalValue
from ...functionalize.pure_calls import is_pure
from ...functionalize.stores import Memory
from ...rules.ops import DIFFERENTIABLE, INPLACE, VIEW, op_of
from ...seam.call_types import Arguments, Keywords
from ...seam.containers import leaves_of
from ...seam.levels import Value
from ...seam.surgery import GEOMETRY
from ...tape.nodes import Input, Node
from ...tape.running import RUNNING
from ...tape.values import GradValue, edge_of
from ...tape.view_history import base_edge
from ...torch_private.mode_stacks import dispatch_mode_at, number_of_dispatch_modes, without_modes
from ...torch_private.pytrees import pytree
from ...trace.provenance import here, user_line
from ...trace.trace_inputs import LITERAL_KINDS
from ...trace.trace_level import Trace
from ..control_flow.branches import ControlFlow
from .origins import PASS
from .own_derivatives import APPLIES, CONSTANT, NO_GRAD, Application, NoGradWatch
from .program_tape import ProgramTape
from .pullback import NONE, OF_THE_OP, OWN, PACKED, WRITTEN
from .shown import WholeTensorsLevel, refuse_recording, requiring_grad, shown
from .tangents import is_marked

_grad_enabled = torch.is_grad_enabled


class JointLevel(ProgramTape):
    """Record the calls of a joint graph.

    Hooks on saved tensors that the program itself sets see traced values, so their work is in the
    graph.
    """

    __slots__ = (
        "applications",
        "cotangents",
        "derivatives",
        "functional",
        "made",
        "refuses_recording",
        "reshaped",
        "trace",
        "turned",
        "unrecorded",
        "unseen",
    )
    notes_backward = True

    def __init__(self, trace: Trace, functional: WholeTensorsLevel) -> None:
        super().__init__()
        self.trace = trace
        self.functional = functional
        # by the node of the tape, the calls of custom Functions
        self.applications: dict[FunctionNode, Application] = {}
        # the cotangents that their backward has got
        self.cotangents: set[fx.Node] = set()
        # the calls in the forward of the last one
        self.made: set[fx.Node] = set()
        # how the result of each call is differentiated, see `.pullback`
        self.derivatives: dict[fx.Node, str] = {}
        # by id, the steps of chains of views that were taken under no_grad
        self.unrecorded: dict[int, object] = {}
        # whether an argument is one that torch's own autograd has recorded
        self.refuses_recording = False
        # nodes of a change of geometry under no_grad, which no call records
        self.turned: set[Node] = set()
        self.reshaped: list[object] = []  # values whose geometry has changed in place under no_grad
        # calls whose results have the history of another value, see `.pullback`
        self.unseen: dict[fx.Node, str] = {}

    def wrap(self, inner: Any, edge: Any = None, /) -> Any:
        """Return ``inner`` as a value of this tape, and note how it is differentiated."""
        application = None if edge is None else self.applications.get(edge[0])
        if application is not None:
            inner = self._output_of(application, edge[1], inner)
        value = shown(super().wrap(inner, edge), inner)
        node = getattr(getattr(inner, "_inner", None), "_node", None)
        # a constant of the program has no node
        if node is None:
            return value
        if edge is None:
            self.derivatives.setdefault(node, NONE)
        elif application is None:
            self.derivatives[node] = OF_THE_OP
        else:
            self.derivatives[node] = OWN
        return value

    def _output_of(self, application: Application, number: int, inner: object) -> object:
        """Return ``inner``, an output with a gradient, as a value that has no other history."""
        # a saved tensor that is read once more
        if number in application.outputs:
            return inner
        node = self._node_of(inner)
        # an input that the forward returns, or a value that it returns twice
        if node not in self.made or node in application.outputs.values():
            with torch.no_grad():
                inner = torch.ops.aten.alias.default(inner)
            node = self._node_of(inner)
        if node is not None:
            application.outputs[number] = node
        return inner

    def _node_of(self, v: object) -> fx.Node | None:
        """Return the node of the present value of ``v``, None for a constant of the program."""
        if isinstance(v, Value) and v._level is self:
            v = v._inner
        if not isinstance(v, FunctionalValue):
            return None
        with without_modes():
            node: fx.Node | None = getattr(v._level.read(v), "_node", None)
        return node

    def _calls_after(self, last: fx.Node | None) -> list[fx.Node]:
        """Return the calls of the graph after ``last``, in reverse order."""
        # from the end: the graph before ``last`` may be long
        return list(takewhile(lambda node: node is not last, reversed(self.trace.graph.nodes)))

    def _last_node(self) -> fx.Node | None:
        """Return the last node of the graph so far."""
        return next(iter(reversed(self.trace.graph.nodes)), None)

    def written_by_function(self, v: Any) -> None:
        """Note that a custom Function has written to ``v``, whose derivative is the Function's."""
        written = v._inner
        if isinstance(written, FunctionalValue):
            # what is read is a value of an outer level
            with without_modes():
                values = written._level.present(written._store), written._level.read(written)
            for value in values:
                node = getattr(value, "_node", None)
                if node is not None:
                    self.derivatives[node] = OWN

    def refuse_view_of_leaf(self, value: Any) -> None:
        """Refuse a view whose base has become a leaf since it was taken. It requires grad, and its
        gradient is discarded."""
        if not self._is_own(value):
            return
        view = value._view
        if view is None or value._edge is not None or value.dtype not in DIFFERENTIABLE:
            return
        edge = view.base._edge
        if edge and isinstance(edge[0], Input):
            raise RuntimeError(
                "the program takes a view of a tensor, calls requires_grad_() on the tensor, "
                f"and uses the view. Take the view after that.{here()}"
            )

    def call(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Record a call, by the shortest way that is right for it."""
        if not _grad_enabled():
            return self._call_under_no_grad(func, args, kwargs)
        # most calls compute of values without a history
        if not kwargs and (result := self._compute_directly(func, args)) is not None:
            return result
        if self.refuses_recording and not op_of(func).nondiff:
            refuse_recording((args, kwargs))
        for argument in args:
            self.refuse_view_of_leaf(argument)
        return super().call(func, args, kwargs)

    def _call_under_no_grad(self, func: Any, args: Arguments, kwargs: Keywords) -> object:
        """Call ``func``, and note the nodes, writes and views that are in no history."""
        op = op_of(func)
        in_place = op.kind is INPLACE and self._has_history(next(iter(args), None))
        memories = self._memories_with_histories((args, kwargs))
        # the state before the call, to which that after it is compared
        self._read_writes((args, kwargs))
        before = _generations(memories)
        last = self._last_node()
        result = super().call(func, args, kwargs)
        # a write is unseen if the value that it changes has a history without the write
        unseen = in_place or _generations(memories) != before
        for node in self._calls_after(last):
            self.derivatives.setdefault(node, NONE)
            if unseen:
                self.unseen[node] = WRITTEN
        # `detach` adds no step to the chain of views
        if op.kind is VIEW and op.func is not torch.ops.aten.detach.default:
            self._note_unrecorded_views(result)
        if in_place and op.base_name in GEOMETRY:
            edge: Any = edge_of(result)
            self.turned.add(edge[0])
            self.reshaped.append(result)
        return result

    def _has_history(self, value: object) -> bool:
        return self._is_own(value) and bool(edge_of(value))

    def _is_own(self, value: object) -> bool:
        """Return whether ``value`` is a value of this tape."""
        return isinstance(value, Value) and value._level is self

    def _note_unrecorded_views(self, result: object) -> None:
        """Note the last steps of the chains of views in ``result``."""
        for leaf in pytree.tree_leaves(result):
            inner = getattr(leaf, "_inner", None)
            if isinstance(inner, FunctionalValue) and inner._chain:
                step = inner._chain[-1]
                self.unrecorded[id(step)] = step

    def _compute_directly(self, func: object, args: Arguments) -> object:
        """Return the result of a call that only computes, of values without a history and literals.

        None for any other call. The call goes to the trace at once, and does what the calls of the
        levels between would do, in half of their time.
        """
        if not self._goes_straight(func):
            return None
        functional = self.functional
        inner: list[object] = []
        for value in args:
            kind = type(value)
            # without an edge or a view, the tape has nothing to record
            is_own = kind is GradValue and value._level is self
            if is_own and value._edge is None and value._view is None:
                value = value._inner
                kind = type(value)
            if kind is FunctionalValue:
                # after a write through another view, the value would first have to be read again
                if value._level is not functional or not value._store.memory.is_at(value._seen):
                    return None
                inner.append(value._inner)
            elif kind in LITERAL_KINDS:
                inner.append(value)
            else:
                return None
        traced = self.trace.computed(func, inner)
        if traced is None:
            return None
        result = functional.valued(traced)
        return self.wrap(result) if result.dtype in self.wrapped_dtypes else result

    def _goes_straight(self, func: object) -> bool:
        """Return whether a call of ``func`` only computes, and no mode of the caller's sees it."""
        # a capture has these two modes on the stack; a third one is the caller's or a transform's
        innermost = (
            number_of_dispatch_modes() == 2
            and dispatch_mode_at(0) is self.trace.mode
            and dispatch_mode_at(1) is self.functional.mode
        )
        return innermost and self.outer_mode and not self.refuses_recording and is_pure(func)

    def _memories_with_histories(self, arguments: Iterable[object]) -> list[Memory]:
        """Return the memories of the arguments of a call that have a history, or are views of a
        tensor that has one."""
        memories: list[Memory] = []
        for leaf in leaves_of(arguments):
            if not self._is_own(leaf):
                continue
            if leaf._edge is None and base_edge(leaf) is None:
                continue
            if isinstance(leaf._inner, FunctionalValue):
                memories.append(leaf._inner._store.memory)
        return memories

    def _read_writes(self, arguments: Iterable[object]) -> None:
        """Let arguments of a call have what was written to their memory.

        These reads are a part of the histories of the arguments, and the call may be in none. So
        they come before it.
        """
        for leaf in leaves_of(arguments):
            value = leaf._inner if self._is_own(leaf) else leaf
            # most are current, and to leave the modes takes as long as to run the call
            if isinstance(value, FunctionalValue) and not value.is_current:
                with without_modes():
                    value._level.read(value)

    @contextmanager
    def shown_to_forward(
        self, node: FunctionNode, args: Sequence[object], given: Sequence[object]
    ) -> Iterator[None]:
        """Run the forward of a custom Function, and note its calls.

        ``args``: of the call. ``given``: what the forward gets in their place.
        """
        recorded = [
            value
            for argument, value in zip(args, given, strict=True)
            if isinstance(value, Value) and argument is not value and edge_of(argument) is not None
        ]
        # control flow is a Function of this package, whose derivative is known
        noted = bool(node.edges) and not issubclass(node._forward_cls, ControlFlow)
        if noted:
            inputs = self._inputs_of(node, given)
            cls = node._forward_cls.__name__
            self.applications[node] = Application(cls, user_line(), inputs)
        last = self._last_node()
        with requiring_grad(recorded):
            yield
        if noted:
            self.made = set(self._calls_after(last))
            # an intermediate value has no history
            for made in self.made:
                self.derivatives.setdefault(made, NONE)

    def _inputs_of(self, node: FunctionNode, arguments: Sequence[object]) -> list[fx.Node | None]:
        """Return for each edge of a call of a custom Function the node of the tensor in
        ``arguments``; None for a tensor without a gradient."""
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        inputs: list[fx.Node | None] = []
        for edge, tensor in zip(node.edges, tensors, strict=True):
            inputs.append(None if edge is None else self._node_of(tensor))
        return inputs

    def noted_backward(
        self, node: FunctionNode, shown: list[torch.Tensor | None], create_graph: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """Run the backward of a custom Function, and note both ends of its part of the graph."""
        application = self.applications.get(node)
        if application is None or not application.why:
            return node.run_backward(shown, create_graph)
        # the part of the graph begins at the cotangents, so each has a node of its own
        received = list(map(self._as_cotangent, shown))
        cotangents = self._nodes_among(received, application.outputs)
        last, applied = self._last_node(), self.functional.applied
        with NoGradWatch() as watch:
            gradients = node.run_backward(received, create_graph)
        application.calls = frozenset(self._calls_after(last))
        application.cotangents = cotangents
        application.gradients = list(map(self._node_of, gradients))
        # With create_graph the tape records the backward, which has a derivative then. A gradient
        # that is a constant of the graph has none in either case.
        if _gives_constant(gradients, application.gradients, node.edges):
            application.why = CONSTANT
        elif create_graph:
            application.why = ""
        else:
            application.why = self._why_hides_derivative(applied, watch)
        # the calls are there, but what they compute may be a constant for the derivative
        if not application.why:
            self._forget_mode_of_pass(application.calls)
        if application.why in (NO_GRAD, APPLIES):
            why = application.refusal(application.why)
            self.unseen.update(dict.fromkeys(application.calls, why))
        return gradients

    def _forget_mode_of_pass(self, calls: Iterable[fx.Node]) -> None:
        """Let ``calls`` of a backward be differentiated as those of a pass with ``create_graph``.
        They ran under no_grad as the pass does, and not since the program asked for it."""
        for node in calls:
            if self.derivatives.get(node) == NONE:
                del self.derivatives[node]

    def _nodes_among(self, values: Sequence[object], numbers: Container[int]) -> dict[int, fx.Node]:
        """Return by number the nodes of the ``values`` with these numbers. A constant of the
        program has none."""
        nodes: dict[int, fx.Node] = {}
        for index, value in enumerate(values):
            if index not in numbers:
                continue
            node = self._node_of(value)
            if node is not None:
                nodes[index] = node
        return nodes

    def _why_hides_derivative(self, applied: int, watch: NoGradWatch) -> str:
        """Return why the calls of a backward without ``create_graph`` do not show its derivative.

        Empty if they do. ``applied``: how many Functions had been applied before it.
        """
        if self.functional.applied != applied:
            return APPLIES
        if watch.seen:
            return NO_GRAD
        return ""

    def _as_cotangent(self, g: object) -> object:
        """Return ``g`` as a value that the program has only as this cotangent. None is None."""
        node = self._node_of(g)
        if node is None:
            return g
        # the outermost pass, inside of which others may run
        task = RUNNING.task
        while task.outer is not None:
            task = task.outer
        # a node of the forward pass, or one that is a cotangent already, may mean something else
        of_pass = is_marked(node) or node.meta.get(PASS, -1) >= task.id
        if of_pass and node not in self.cotangents:
            self.cotangents.add(node)
            return g
        return torch.ops.aten.alias.default(g)

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Run hooks that pack or unpack a saved tensor: no history has their calls."""
        last = self._last_node()
        yield
        self.unseen.update(dict.fromkeys(self._calls_after(last), PACKED))


def _generations(memories: Sequence[Memory]) -> list[int]:
    """Count the writes to each of ``memories``."""
    return [memory.generation for memory in memories]


def _gives_constant(
    gradients: Sequence[object], nodes: Sequence[fx.Node | None], edges: Sequence[object]
) -> bool:
    """Return whether a gradient that goes somewhere is no value of the graph. ``nodes``: those of
    the gradients."""
    return any(
        grad is not None and node is None and edge is not None
        for grad, node, edge in zip(gradients, nodes, edges, strict=True)
    )
