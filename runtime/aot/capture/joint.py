"""Capture the joint graph: forward and backward of a program in one, by the tape under a trace.

The levels are, from the outer to the inner one: trace, functionalize, grad. So the rules of the
grad level call the functionalize level, and its calls are traced.

    def f(x):
        return x.sin()
    # primals_1, tangents_1 -> primals_1.sin(), tangents_1 * primals_1.cos()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...seam.generator_states import own_draws
from ...tape.saved import HOOKS
from ...torch_private.pytrees import pytree
from ...trace.graph_capture import module_of, trace_flat
from ...trace.graph_module import GraphModule, LateGraphModule, with_values
from ...trace.symbols import Abstraction
from ...trace.trace_level import Trace
from ..python_state.closed_over import generators_of
from .aliasing import Group
from .boundary import Boundary
from .origins import Origins
from .own_derivatives import Application, ends_of_used
from .program import Program
from .subclass_parts import Layout, Layouts, count, flattened, layout_of, numbers, refuse_opaque


@dataclass(frozen=True)
class Joint:
    """Hold a joint graph.

    Placeholders: primals (arguments, bases of arguments that share memory, closed-over tensors),
    then tangents. :class:`Boundary` says what the results are.
    """

    # Its nodes may have no abstract values yet. Those of `module` have.
    traced: fx.GraphModule
    boundary: Boundary
    out_spec: pytree.TreeSpec
    abstraction: Abstraction | None
    # The tensors from outside, which are the last primals.
    closed_over: tuple[torch.Tensor, ...] = ()
    # The arguments that share memory. If they are not one tensor, they have a common base.
    groups: tuple[Group, ...] = ()
    # The parts of the values of the program. None if all are plain tensors. A value that consists
    # of others is one primal, result or gradient for `boundary`, but has a place in the graph for
    # each part.
    layouts: Layouts | None = None
    # Tensors from outside whose elements the program has read in Python, each with the bytes at
    # that time.
    elements: tuple[tuple[torch.Tensor, bytes], ...] = ()
    # The calls of custom Functions.
    applications: tuple[Application, ...] = ()

    @property
    def module(self) -> fx.GraphModule:
        """Return the module, with an abstract value at each node."""
        return with_values(self.traced)

    @property
    def n_forward(self) -> int:
        """Count the results of the graph that are not gradients."""
        if self.layouts is None:
            return self.boundary.n_forward
        return count(self.layouts.results)

    @property
    def n_primals(self) -> int:
        """Count the placeholders of the graph that are not tangents."""
        if self.layouts is None:
            return len(self.boundary.inputs)
        return count(self.layouts.primals)

    def in_graph(self, primals: Sequence[int]) -> Sequence[int]:
        """Return the numbers of the placeholders of these primals."""
        if self.layouts is None:
            return primals
        return numbers(self.layouts.primals, primals)

    def whole_primals(self) -> Sequence[tuple[int, int]]:
        """List the primals that are one placeholder: the number of each, and of its placeholder."""
        if self.layouts is None:
            return [(index, index) for index in range(self.n_primals)]
        plain = []
        # parts of the tensors before it move the placeholder of a plain one
        for index, layout in enumerate(self.layouts.primals):
            if layout is None:
                plain.append((index, numbers(self.layouts.primals, [index])[0]))
        return plain


def _refuse_composed(layouts: Sequence[Layout | None]) -> None:
    """Refuse inputs that consist of other tensors where the graph computes all results."""
    kinds = dict.fromkeys(layout.kind.__name__ for layout in layouts if layout is not None)
    if kinds:
        raise RuntimeError(
            f"a {', '.join(kinds)} is among the inputs, and an exported graph takes plain tensors. "
            "Export a function of what it consists of."
        )


def _erase_profiler_marks(graph: fx.Graph) -> None:
    """Erase the marks for a profile of the capture, which run nothing."""
    # backwards, because the end of a mark takes its begin, and fx erases no value that is used
    for node in reversed(graph.nodes):
        if getattr(node.target, "namespace", "") == "profiler":
            graph.erase_node(node)


def _generators_among(inputs: Iterable[object]) -> list[torch.Generator]:
    """List the random generators among ``inputs``."""
    return [value for value in inputs if isinstance(value, torch.Generator)]


def joint_graph(
    function: Callable[..., object],
    inputs: Sequence[object],
    differentiate: Sequence[bool],
    *,
    dynamic: bool = False,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    groups: Sequence[Group] = (),
    bases: Sequence[torch.Tensor] = (),
    lift: bool = True,
    whole: bool = False,
    abstraction: Abstraction | None = None,
    loss: int | None = None,
    unknown: Sequence[int] = (),
    tracked: bool = False,
    kind: type[fx.GraphModule] = GraphModule,
    reads: str = "refuse",
    generators: Sequence[object] = (),
) -> Joint:
    """Capture the joint graph of ``function``, which takes ``inputs`` and returns a pytree.

    Inputs that are no tensors become constants.

    ``differentiate``: for each input whether its gradient is wanted. ``groups``: inputs that
    share memory, if ``function`` writes to any input. ``bases``: the common base of each group that
    is not one tensor.
    ``lift``: tensors that ``function`` closes over become arguments, else they are constants
    of the graph. ``whole``: the graph computes all that ``function`` returns, arguments and their
    views as well. ``abstraction``: creates the abstract values of the trace. ``loss``: the
    number of the result whose gradients the graph returns. It takes no cotangents then.
    ``unknown``: the inputs that are numbers whose values are symbols. ``tracked``: ``function``
    runs in the present grad mode, and sees under ``no_grad``, too, what requires grad. ``kind``:
    the class of the module. ``reads``: what becomes of ``item()``, see
    :class:`...trace.trace_level.Trace`.
    ``generators``: random generators that ``function`` may find outside of it and of ``inputs``.
    """
    for tensor in inputs:
        refuse_opaque(tensor)
    # sizes are symbols, perhaps those of another trace
    abstract = dynamic or abstraction is not None
    layouts = [layout_of(tensor, abstract) for tensor in inputs]
    if whole:
        _refuse_composed(layouts)
    outside = [*generators, *generators_of(function), *_generators_among(inputs)]
    # the trace creates the program when it runs, and its records are read after that
    programs: list[Program] = []

    def run(trace: Trace, *traced: object) -> list[object]:
        """Run the program and its backward pass on values of ``trace``."""
        program = Program(
            trace,
            function,
            differentiate,
            layouts,
            groups,
            bases,
            lift,
            whole,
            loss,
            tracked,
            outside,
        )
        programs.append(program)
        # hooks around a call see what the call saves, not what the trace does
        with HOOKS.suspended():
            return program.results(traced)

    # the graph takes the plain tensors of a subclass, not the subclass
    parts: list[object] = []
    for value in inputs:
        parts += flattened(value)
    names = [f"primals_{index + 1}" for index in range(len(parts))]
    with own_draws():  # the draws of the trace are not those of a call
        graph, attributes, level = trace_flat(
            run,
            parts,
            dynamic=dynamic,
            decompositions=decompositions,
            names=names,
            fixed_sizes=not abstract,
            abstraction=abstraction,
            unknown=numbers(layouts, unknown),
            provenance=Origins(),
            reads=reads,
            late=issubclass(kind, LateGraphModule),
        )
    _erase_profiler_marks(graph)
    (program,) = programs
    applications: tuple[Application, ...] = ()
    if not whole:
        applications = tuple(program.tape.applications.values())
    # dead calls go, except those at which the part of a custom Function begins or stops
    ends = ends_of_used(applications, graph)
    module = module_of(graph, attributes, "Joint", kind, ends)
    # such a module computes the values of its nodes when somebody reads them
    if isinstance(module, LateGraphModule):
        module.values = level.abstract.complete
    closed_over = tuple(program.primals.outside)
    return Joint(
        module,
        program.boundary,
        program.out_spec,
        level.abstraction,
        closed_over,
        tuple(groups),
        program.layouts,
        tuple(program.elements),
        applications,
    )
