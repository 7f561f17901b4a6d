"""Run a program under trace, functionalize and grad, which writes its joint graph.

:class:`Reach` says which gradients each result of the program reaches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...autograd.function_node import FunctionNode
from ...functionalize.functional_value import FunctionalValue
from ...seam import factories
from ...seam.escapes import living
from ...seam.graph_walks import walk, walk_postorder
from ...seam.user_code import surrounding
from ...tape.engine import execute
from ...tape.nodes import Edge, Node, nodes_after, nodes_at
from ...tape.nodes import Input as Leaf
from ...torch_private.global_settings import without_autocast
from ...torch_private.pytrees import pytree
from ...trace.provenance import happened_at
from ...trace.random_states import RandomStates, Seeding, UndoneDraws
from ...trace.trace_level import Trace
from ...trace.trace_value import TracedValue
from ..control_flow.branches import ControlFlow
from ..python_state.backward_reads import RefusedNumbers, at_places
from ..python_state.closed_over import ClosedOver
from ..python_state.nodes import Change
from ..python_state.program_state import RUN
from ..python_state.reads import same
from ..python_state.summary import line_naming
from . import opened
from .aliasing import Group, refuse_written_pieces
from .boundary import Boundary
from .global_state import own_casts
from .origins import Origins
from .outputs import Computed, leaf_of, released, repeated
from .primals import Primals
from .pullback import DERIVATIVE, UNSEEN, WRITTEN
from .subclass_parts import Layout, Layouts, composed, count, flattened, layout_of, rebuilt
from .tangents import mark

# --- what a backward pass reaches -----------------------------------------------------------------
#
# A cotangent reaches some of a program's gradients, and some nodes of its tape.
#
#     def f(x, y):
#         return x * 2, y * 3
#
#     # None, as no path leads from the first result to y
#     grad(f(x, y)[0].sum(), y, allow_unused=True)


@dataclass(frozen=True)
class Reach:
    """Say from which roots a path leads to each node, and to each of its outputs.

    Bit ``i`` of a number stands for root ``i``.
    """

    nodes: Mapping[Node, int]
    outputs: Mapping[Edge, int]

    @classmethod
    def of(cls, roots: Sequence[Edge]) -> Reach:
        """Follow all paths from ``roots``."""
        nodes: dict[Node, int] = {}
        outputs: dict[Edge, int] = {}
        # each root has its bit, and then each node hands its bits on along its edges
        for index, (node, number) in enumerate(roots):
            nodes[node] = nodes.get(node, 0) | 1 << index
            outputs[node, number] = outputs.get((node, number), 0) | 1 << index
        # a node has all of its bits before those that its edges lead to
        for node in reversed(list(walk_postorder((node for node, _ in roots), nodes_after))):
            for edge in node.edges:
                if edge is not None:
                    nodes[edge[0]] = nodes.get(edge[0], 0) | nodes[node]
                    outputs[edge] = outputs.get(edge, 0) | nodes[node]
        return cls(nodes, outputs)

    def asking(self) -> dict[str, set[frozenset[int]]]:
        """Return, by name, the nodes that see which of their cotangents are there.

        These have several outputs. They have hooks, or are custom Functions that take None. For
        each: the bits of its outputs.
        """
        asking: dict[str, set[frozenset[int]]] = {}
        # a node whose outputs are all for the same roots gets all cotangents or none
        arrived: dict[Node, set[int]] = {}
        for (node, _), bits in self.outputs.items():
            arrived.setdefault(node, set()).add(bits)
        for node, numbers in arrived.items():
            if len(numbers) > 1 and _sees_absence(node):
                asking.setdefault(node.name(), set()).add(frozenset(numbers))
        return asking


def _sees_absence(node: Node) -> bool:
    """Return whether code of the user sees which cotangents of ``node`` are None."""
    if node.pre_hooks or node.tensor_hooks or node.post_hooks:
        return True
    if not isinstance(node, FunctionNode) or node.materialize_grads:
        return False
    return not issubclass(node._forward_cls, ControlFlow)


class Program:
    """Run a program once.

    ``boundary``, ``out_spec`` and ``layouts`` are known after the run. ``layouts`` is None if all
    tensors are plain. The arguments are those of :func:`.joint.joint_graph`, and the ``layouts`` of
    the inputs, which become ``given``.
    """

    boundary: Boundary
    out_spec: pytree.TreeSpec
    layouts: Layouts | None

    def __init__(
        self,
        trace: Trace,
        function: Callable[..., object],
        differentiate: Sequence[bool],
        layouts: Sequence[Layout | None],
        groups: Sequence[Group],
        bases: Sequence[torch.Tensor],
        lift: bool,
        whole: bool,
        loss: int | None,
        tracked: bool,
        generators: Sequence[object],
    ) -> None:
        self.generators = generators
        self.trace = trace
        trace.leaves_classes = lift
        self.f = function
        self.differentiate = differentiate
        self.given = layouts
        self.tangents: list[Layout | None] = []
        self._parts_of_tangents = 0
        self.reach: tuple[int, ...] = ()
        self.asking: dict[str, set[frozenset[int]]] = {}
        self.seedings: tuple[Seeding, ...] = ()
        # the tensors from outside whose elements the program has read in Python
        self.elements: Sequence[tuple[torch.Tensor, bytes]] = ()
        self.bases = bases
        self.lift = lift
        self.whole = whole
        self.loss = loss
        self.grad_mode = torch.is_grad_enabled() or (any(differentiate) and not tracked)
        self.primals = Primals(trace, groups, self.grad_mode or tracked)
        self.functional = self.primals.functional
        self.functional.replaces = lift
        self.tape = self.primals.tape

    def results(self, traced: Sequence[object]) -> list[object]:
        """Run the program and its backward pass. Return the results of the graph, as traced
        values."""
        primals, functional = self.primals, self.functional
        tensors = rebuilt(self.given, traced)
        for tensor, flag, layout in zip(tensors, self.differentiate, self.given, strict=True):
            primals.enter(tensor, flag, layout)
        try:
            with functional.mode:
                primals.join(self.bases)
                with torch.set_grad_enabled(self.grad_mode):
                    outputs, self.out_spec = self._run(primals.values[: len(self.given)])
            # the forward is complete: its results, and the roots of the backward pass
            functional.settle(value._store for value in primals.entered.values())
            results, roots = self._results_of(outputs)
            returned = [
                value for value in map(primals.functional_value, outputs) if value is not None
            ]
            refuse_written_pieces(returned, primals.entered.values())
            before = self._count_writes(returned)
            watch = _refusing_changes() if roots else nullcontext()
            with functional.mode, watch, UndoneDraws() as self.trace.undone_draws:
                grads = self._gradients(roots)
            self.trace.undone_draws = None
            # the backward is complete: what it has written, and its gradients
            self._refuse_writes_outside()
            primals.refuse_writes_to_parts()
            changed = self._written_by_backward(before, returned)
            gradients = self._read_gradients(grads)
            gradients += [primals.read(primals.entered[index]) for index in changed]
            self.layouts = Layouts.of(
                primals.layouts,
                results,
                self.tangents,
                gradients,
                self.trace.abstraction is not None,
            )
            self._note_derivatives()
            once = self._why_once(outputs)
            if not once and self.layouts is not None:
                once = "a tensor subclass is among its arguments or results"
            whole = dataclasses.replace(self.boundary, backward_written=changed, once=once)
            self.boundary = dataclasses.replace(
                whole, reach=self.reach, asking=self.asking, seedings=self.seedings
            )
            parts: list[object] = []
            for value in (*results, *gradients):
                parts += flattened(value)
            return parts
        finally:
            primals.close()

    def _run(self, arguments: Sequence[object]) -> tuple[list[object], pytree.TreeSpec]:
        """Run the program. Return its results and their tree."""
        states = self.trace.random_states = RandomStates(self.generators)

        def enter(tensor: torch.Tensor) -> object:
            """Return the primal for a tensor that the program closes over."""
            states.refuse_state(tensor)
            return self.primals.from_outside(tensor)

        with ClosedOver(enter) if self.lift else nullcontext() as closed_over, states, own_casts():
            result = living(self.tape.run_inside(self.f, arguments, {}))
            opened.fix_keys(result)
            outputs, of_result = opened.flatten(result)
            spec = opened.with_sizes(of_result)
            if RUN.state is not None:
                RUN.state.refuse_traced_states()
        for output in outputs:
            states.refuse_state(output)
        self.seedings = states.seedings
        # not during the backward pass, where a checkpoint sets states
        self.trace.random_states = None
        if closed_over is None:
            return outputs, spec
        closed_over.refuse_shared_writes()
        self.elements = closed_over.elements
        for tensor, _ in self.elements:
            states.refuse_state(tensor)
        with self.functional.mode:
            return list(map(closed_over.value, outputs)), spec

    # results

    def _results_of(self, outs: list[object]) -> tuple[list[object], list[tuple[Edge, object]]]:
        """Return the results of the forward pass, and (edge, cotangent) for each with a history."""
        primals = self.primals
        results: list[object] = []
        roots: list[tuple[Edge, object]] = []

        def add(value: object, edge: Edge | None) -> int | None:
            """Add a result of the graph. Return the number of its cotangent, if it has one."""
            traced = primals.read(value)
            results.append(traced)
            if edge is None or self.loss is not None:
                return None
            roots.append((edge, self._tangent(traced)))
            return len(roots) - 1

        for output in outs:
            primals.tape.refuse_view_of_leaf(output)
        # the results of the graph are new values of inputs, and then results of the program
        inputs = tuple(primals.record(index, add) for index in range(len(primals.values)))
        computed = Computed(primals, self.whole, outs)
        inputs = tuple(
            dataclasses.replace(x, replaced=computed.memory_of(index))
            for index, x in enumerate(inputs)
        )
        outputs = tuple(map(computed.output, outs))
        tangents = tuple(add(value, primals.edge(value)) for value in computed.values)
        again = released(list(map(primals.functional_value, outs)))
        # the boundary says how a call turns the results of the graph into those of the program
        self.boundary = Boundary(
            inputs, outputs, tangents, repeated(outs), again, begun=tuple(sorted(computed.begun))
        )
        self.boundary = dataclasses.replace(self.boundary, placed=tuple(computed.placed.values()))
        first = len(results) - len(tangents)
        other_mode = tuple(first + index for index in self._of_other_mode(computed.values))
        self.boundary = dataclasses.replace(self.boundary, other_mode=other_mode)
        # a loss takes no cotangent: the backward pass starts from one
        if self.loss is not None:
            value = outs[leaf_of(self.out_spec, self.loss)]
            roots.append((primals.edge(value), self._ones_like(value)))
        return results, roots

    def _of_other_mode(self, values: Iterable[object]) -> Iterator[int]:
        """Yield the numbers of those ``values`` that are inference tensors where the graph computes
        outside of inference mode, or the reverse."""
        mode = torch.is_inference_mode_enabled()
        for index, value in enumerate(map(self.primals.functional_value, values)):
            if value is not None and value._store.memory.inference != mode:
                yield index

    def _tangent(self, like: torch.Tensor) -> torch.Tensor:
        """Return a value for the cotangent of ``like``: a placeholder, or a composed tensor of
        several ones."""
        # a call of the graph makes its cotangents contiguous
        if composed(like) and not like.is_contiguous():
            like = like.contiguous()
        layout = layout_of(like, self.trace.abstraction is not None)
        first = self._parts_of_tangents + 1
        placeholders = [
            self.trace.late_input(part, f"tangents_{index}")
            for index, part in enumerate(flattened(like), first)
        ]
        # a partition has to tell cotangents from primals
        for placeholder in placeholders:
            mark(placeholder._node)
        self.tangents.append(layout)
        self._parts_of_tangents += count((layout,))
        [whole] = rebuilt([layout], placeholders)
        return self.functional.wrap(whole)

    def _ones_like(self, v: object) -> object:
        """Return the cotangent of a loss."""
        value = self.primals.functional_value(v)
        assert value is not None, "a result with a history is a value"
        with self.functional.mode, torch.no_grad():
            return factories.ones_like(value)

    def _gradients(self, roots: list[tuple[Edge, object]]) -> Sequence[object]:
        """Run the backward pass. Return a gradient, or None, for each primal that wants one."""
        primals = self.primals
        captures = [edge for edge, flag in zip(primals.edges, primals.flags, strict=True) if flag]
        if not roots:
            return [None] * len(captures)
        reach = Reach.of([edge for edge, _ in roots])
        self.reach = tuple(reach.outputs.get(edge, 0) for edge in captures)
        self.asking = reach.asking()
        assert isinstance(self.trace.provenance, Origins)
        self.trace.provenance.follow(self.tape, reach.nodes)
        # autocast is off, as in a backward pass after the autocast block
        with torch.no_grad(), without_autocast():
            return execute(
                self.tape, roots, captures, create_graph=False, keep_graph=False, accumulate=False
            )

    def _read_gradients(self, gradients: Sequence[object]) -> list[object]:
        """Return the traced values of gradients. None is None."""
        traced: list[object] = []
        for gradient in gradients:
            if gradient is None:
                traced.append(None)
            else:
                traced.append(self.primals.read(gradient))
        return traced

    # what must not be, or only once

    def _refuse_writes_outside(self) -> None:
        """Refuse writes to tensors that are constants of the graph."""
        for value in self.functional.closed_over.values():
            if value._store.memory.generation:
                raise RuntimeError(
                    "the program writes to a tensor that it closes over. Pass it as an argument. "
                    "A checkpointed function, such as a layer of batch norm, writes once more in "
                    "the backward pass: let the program run backward() itself."
                    f"{happened_at(value._store.memory.written_at)}"
                )

    def _count_writes(self, returned: Sequence[FunctionalValue]) -> list[tuple[int, int]]:
        """Count the writes to each primal, then to each tensor in ``returned``.

        The first number is of writes to its memory, the second of changes of its geometry in place.
        """
        return [
            (value._store.memory.generation, len(value._chain))
            for value in (*self.primals.entered.values(), *returned)
        ]

    def _written_by_backward(
        self, before: Sequence[tuple[int, int]], returned: Sequence[FunctionalValue]
    ) -> tuple[int, ...]:
        """Return the primals that the backward pass writes to."""
        entered = self.primals.entered
        # counts of the primals come first, those of the results after them
        after = self._count_writes(returned)
        count = len(entered)
        if any(old[1] != new[1] for old, new in zip(before, after, strict=True)):
            raise AssertionError(
                "Found an input that had its metadata mutated in the backward, or a result: "
                "the backward pass changes sizes or strides in place. "
                "Let it use the op that returns a view."
            )
        changed = tuple(
            index
            for index, old, new in zip(entered, before, after, strict=False)
            if old[0] != new[0]
        )
        # a result in the memory of a written primal has the write by that
        memories = {id(entered[index]._store.memory) for index in changed}
        if any(
            old[0] != new[0] and id(value._store.memory) not in memories
            for value, old, new in zip(returned, before[count:], after[count:], strict=True)
        ):
            raise RuntimeError(
                "the backward pass writes to a result of the program; let it write to a copy"
            )
        return changed

    def _why_once(self, outs: Sequence[object]) -> str:
        """Return why the program can be differentiated only once, or nothing."""
        why = ""
        if any(group.histories for group in self.primals.groups):
            why = (
                "it writes to memory that an argument which requires grad shares with one that "
                "has no part in its history"
            )
        # the backward of such a write is one, and counts its cotangents several times
        if self.functional.overlapped:
            why = "it writes through a view that shows an element several times, as unfold does"
        nodes = self._histories((*outs, *self.primals.values))
        self._refuse_leaves(outs, nodes)
        if any(node.tensor_hooks or node.pre_hooks or node.post_hooks for node in nodes):
            why = "it registers a hook on a tensor"
        return why

    def _note_derivatives(self) -> None:
        """Note in each call of the graph how it is differentiated."""
        for node, derivative in self.tape.derivatives.items():
            node.meta[DERIVATIVE] = derivative
        for node, why in self.tape.unseen.items():
            node.meta[UNSEEN] = why
        # last, because this reason takes precedence over that of the tape
        for value in self.functional.overtaken:
            if isinstance(value, TracedValue):
                value._node.meta[UNSEEN] = WRITTEN

    def _histories(self, values: Iterable[object]) -> set[Node]:
        """Return the nodes of the histories of ``values``. A leaf has none."""
        return set(walk(nodes_at(map(self.primals.edge, values)), nodes_after))

    def _is_in_memory_of_primal(self, v: object) -> bool:
        """Return whether ``v`` lies in the memory of an argument or of a closed-over tensor."""
        value = self.primals.functional_value(v)
        return value is not None and id(value._store.memory) in self.primals.memories

    def _refuse_leaves(self, outs: Sequence[Any], nodes: set[Node]) -> None:
        """Refuse a leaf of ``requires_grad_()`` that the caller gets together with a result that
        depends on it.

        A leaf that stays inside the program only cuts histories.
        """
        primals = self.primals
        # leaves among the primals are the caller's own tensors
        entered = set(nodes_at(primals.edges))
        begun = {node for node in nodes if type(node) is Leaf} - entered
        if not begun:
            return
        aliases = filter(self._is_in_memory_of_primal, outs)
        reached = self._histories(aliases) | {
            output._edge[0] for output in outs if primals.is_leaf(output)
        }
        if begun & reached:
            raise RuntimeError(
                "the program calls requires_grad_() on a tensor, "
                "and returns it or a view of it beside a result that depends on it. "
                "Do that before the call, or return one of them."
            )


@contextmanager
def _refusing_changes() -> Iterator[None]:
    """Run a backward pass that is traced. ``RuntimeError`` if it changes Python's state: in eager
    mode it does so when the caller runs it, and a call runs the graph of it alone."""
    state = RUN.state
    if state is None:
        yield
        return
    # around the user's code alone: as a mode of the whole pass it would be asked for each op
    with at_places(state.left), surrounding(RefusedNumbers):
        before = state.changes()
        state.graph.backward = state.backward
        try:
            yield
        finally:
            state.graph.backward = None
        change = _first_new(before, state.changes())
    if change is not None:
        code = state.graph.code
        line = line_naming(str(change.label), code.entered.values()) or code.first_line
        raise RuntimeError(
            f"the program changes {change.what} in the backward pass of a result: in a custom "
            "Function, a hook or a checkpointed function, which runs once more. In eager mode that "
            "happens when the caller runs the pass, and a graph has tensors alone. Let the program "
            "run backward() itself, name the object in ignore=, or leave the Function out of what "
            "is compiled."
            f"{happened_at(line)}"
        )


def _first_new(before: Sequence[Change], after: Sequence[Change]) -> Change | None:
    """Return the first change that is not among those ``before``."""
    known = {(id(change.node), change.label): change for change in before}
    for change in after:
        old = known.pop((id(change.node), change.label), None)
        if old is None or not same(old.now, change.now):
            return change
    return next(iter(known.values()), None)
