"""Compile the backward graph of a program, whole or in parts, and run it.

Example: of ``f(x) = x.sin(), x.cos()`` one graph serves a pass with both cotangents. A pass from
``x.sin()`` alone gets the part of the graph that its cotangent leads to, compiled when it is first
needed. With ``create_graph`` the pullback runs in place of the graph: the gradients of the joint
graph as a function of arguments and cotangents, whose result has a history of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from ...seam.graph_walks import results_of
from ...seam.locks import lock_of
from ...seam.shells import VALUES
from ...torch_private.global_settings import without_autocast
from ...torch_private.mode_stacks import number_of_dispatch_modes
from ...trace.error_lines import name_origin
from ...trace.provenance import happened_at
from ..capture.aliasing import saved_of, within_reach
from ..capture.joint import Joint
from ..capture.pullback import Pullback, pullback_of
from ..capture.subclass_parts import Layout, count
from ..compilers.boxed import Boxed, Compiler, as_boxed, examples, node_by_node, nop
from ..compilers.staged import Settling
from ..control_flow.torch_operators import transformable
from ..partition.absent import without
from ..python_state.backward_reads import BackwardReads
from ..python_state.code_names import beginning_of
from .subclass_calls import Watch, backward_of_whole_tensors

Meta = tuple[torch.Size, torch.dtype]  # of a cotangent
Compile = Callable[[fx.GraphModule], Callable[..., Any]]


class Backward:
    """Compile and run the backward of one program. It is compiled when it first runs.

    A call stores these values: ``n_saved`` that the backward graph takes, then random numbers that
    only a second derivative needs, up to ``n_kept``, then the primals ``reread``, which only a
    second derivative needs too.
    """

    def __init__(
        self,
        joint: Joint,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        compiler: Compiler,
        again: Compile,
        keep_primals: bool,
    ) -> None:
        """``again``: compiles a pullback as a program of its own."""
        self.joint = joint
        # stays as it was captured: a compiler that may change its module gets a copy
        self.module = backward
        self.compiler = compiler
        self.again = again
        # the cotangents that the graph takes; without symbols each has one shape in all calls
        placeholders = joint.module.graph.find_nodes(op="placeholder")
        cotangents = [node.meta["val"] for node in placeholders[joint.n_primals :]]
        # the devices and, without symbols, the shapes and dtypes of the cotangents
        self.devices = [tensor.device for tensor in cotangents]
        self.metas: tuple[Meta, ...] | None = None
        if joint.abstraction is None and joint.layouts is None:
            self.metas = tuple([(cotangent.shape, cotangent.dtype) for cotangent in cotangents])
        # what the forward graph saves, and what a second derivative needs in addition
        saved = _find_in_joint(joint.module, forward, joint.n_forward)
        self.saved_primals = _saved_primals_of(joint, placeholders, saved)
        self.n_saved = len(saved)
        self.pullback = pullback_of(
            joint.module, joint.boundary, saved, keep_primals, joint.applications
        )
        self.saved_nodes = [*saved, *self.pullback.drawn]
        self.n_kept = len(self.saved_nodes)
        if not keep_primals and not self.pullback.refused and self._list_reread():
            self.pullback = Pullback(refused="it was compiled with keep_primals=False")
        self.reread = self._list_reread()
        _return_too(forward, self.pullback.drawn)
        # which stored values a first, and which a second derivative must find unchanged
        self.first_exposed = within_reach(forward.graph, joint.n_forward)
        self.exposed = (*self.first_exposed, *self._exposed_primals(placeholders))
        # the stored values that the program itself may write over
        self.at_risk = self._list_at_risk(forward)
        # finds tensors with parts that are stored
        self.watch: Watch | None = None
        tangents: Sequence[Layout | None] = [None] * len(cotangents)
        if joint.layouts is not None:
            self.watch = Watch(joint, forward.graph)
            tangents = joint.layouts.tangents
        self.roots = _roots_of(tangents)
        self.function: Boxed | None = None
        self._partial: dict[int, Boxed] = {}
        # functions that run the graph as it was captured, by the bits of the cotangents
        self._as_captured: dict[int | None, Boxed] = {}
        # compiled functions, by the bits of the cotangents that are there
        self._differentiable: dict[int | None, Callable[..., Any]] = {}
        # a backward pass may run on any thread, and two may need one part first
        self._lock = lock_of(self, "_lock")
        # what the backward pass asks of Python's state; empty if it runs no code of the user's
        self.reads: Sequence[BackwardReads] = ()

    def _list_reread(self) -> tuple[int, ...]:
        """List the primals that the pullback needs and that the forward graph does not save."""
        return tuple(index for index in self.pullback.primals if index not in self.saved_primals)

    def _exposed_primals(self, placeholders: Sequence[fx.Node]) -> Iterator[int]:
        """Yield the places where the tensors among the primals in ``reread`` are stored."""
        for index, primal in enumerate(self.reread, self.n_kept):
            # a tensor with parts has a placeholder for each, and all are tensors if the first is
            first = self.joint.in_graph([primal])[0]
            if isinstance(placeholders[first].meta["val"], torch.Tensor):
                yield index

    def _list_at_risk(self, forward: fx.GraphModule) -> tuple[int, ...]:
        """List the stored values that show an argument which the program writes to."""
        joint = self.joint
        inputs = joint.boundary.inputs
        written: list[int] = []
        for index, boundary_input in enumerate(inputs):
            if boundary_input.written or boundary_input.overwritten:
                written.append(index)
        risky = saved_of(forward.graph, joint.n_forward, joint.in_graph(written))
        primals = [
            index for index, primal in enumerate(self.reread, self.n_kept) if primal in written
        ]
        return (*risky, *primals)

    def run(self, values: list[Any], present: int | None) -> Sequence[Any]:
        """Return the gradients.

        ``present``: bit ``i`` says whether there is a cotangent ``i``. If not, ``values`` has zeros
        for it. None: all are there.
        """
        # Generated code writes in place: to saved values, in which a batch of cotangents has no
        # room. Nor does a compiler's kernel know values of a transform.
        if not VALUES.isdisjoint(map(type, values)) or number_of_dispatch_modes():
            run = self._as_captured.get(present) or self.as_captured(present)
        # one graph for all cotangents, and one for each set of absent ones
        elif present is None:
            run = self.function or self.compiled()
        else:
            run = self._partial.get(present) or self.partial(present)
        try:
            results: Sequence[Any] = run(values)
        except Exception as error:
            # generated code has no line of the user's: the error gets that of the op
            name_origin(error)
            raise
        return results

    def compiled(self) -> Boxed:
        """Return the function of the backward graph, compiled now if it is not yet."""
        with self._lock:
            if self.function is None:
                module = self.module
                if inspect.unwrap(self.compiler) is not nop:
                    module = without(module, self.roots, -1, False)
                self.function = self._compile(module, self.compiler)
                if isinstance(self.function, Settling):
                    self.function.settled = self._replace_run
            return self.function

    def _replace_run(self, generated: Boxed) -> None:
        """Run ``generated`` from the next call on."""
        self.function = generated

    def partial(self, present: int) -> Boxed:
        """Compile the part of the backward graph that the cotangents in ``present`` lead to."""
        with self._lock:
            if present not in self._partial:
                # a compiler may ask about sizes, and now it is too late for a guard of them
                compiler = self.compiler
                if self.joint.abstraction is not None:
                    compiler = nop
                self._partial[present] = self._compile(self._part(present), compiler)
            return self._partial[present]

    def as_captured(self, present: int | None) -> Boxed:
        """Return the function that runs the graph call by call, without a write in place of our
        own. ``present`` as for :meth:`run`."""
        with self._lock:
            if present not in self._as_captured:
                module = self.module if present is None else self._part(present)
                self._as_captured[present] = self._compile(module, node_by_node)
            return self._as_captured[present]

    def _part(self, present: int) -> fx.GraphModule:
        """Return the part of the backward graph that the cotangents in ``present`` lead to."""
        self._refuse_partial(present)
        return without(self.module, self.roots, present, self.joint.layouts is not None)

    def _refuse_partial(self, present: int) -> None:
        """Refuse a partial backward if the program could see which cotangents are there.

        The backward graph has the effects of a backward pass with all of them.
        """
        boundary = self.joint.boundary
        why = ""
        if boundary.backward_written:
            why = "writes to an argument in its backward"
        for name, asked in boundary.asking.items():
            if any(_is_partial(numbers, present) for numbers in asked):
                why = (
                    f"has a hook or a Function behind {name}, "
                    "which is given some of its cotangents and None for others"
                )
        if why:
            raise RuntimeError(
                f"the backward pass starts from some results of a compiled program, which {why}. "
                "It was captured with cotangents for all results. Start from all of them, "
                "or compile a function that returns what is differentiated."
            )

    def _compile(self, module: fx.GraphModule, compiler: Compiler) -> Boxed:
        """Compile ``module`` to a function of what is saved and of cotangents."""
        with without_autocast():
            run = as_boxed(compiler(module, examples(module)))
        layouts = self.joint.layouts
        if layouts is None:
            return run
        return backward_of_whole_tensors(run, layouts, self.n_saved)

    def differentiable(self, present: int | None) -> Callable[..., Any]:
        """Return the pullback as a compiled function. ``present`` as for :meth:`run`."""
        if self.pullback.refused:
            raise RuntimeError(
                f"a compiled program has no second derivative here: {self.pullback.refused}. "
                "Differentiate inside the compiled function instead, e.g. "
                "aot_function(runtime.func.grad(f), …), "
                f"or leave that part out of what is compiled.{self.line_of_user()}"
            )
        # another thread may want the same one, and compiling takes long
        with self._lock:
            if present not in self._differentiable:
                module = self._pullback_module()
                if present is not None:
                    self._refuse_partial(present)
                    module = without(module, self.roots, present, False)
                self._differentiable[present] = self.again(transformable(module))
            return self._differentiable[present]

    def line_of_user(self) -> str:
        """Return the line of the first function of the user's that the backward pass runs, as the
        end of an error message. Empty if it runs none."""
        codes = [code for reads in self.reads for code, _ in reads.codes]
        return happened_at(beginning_of(codes[0]) if codes else None)

    def _pullback_module(self) -> fx.GraphModule:
        """Build the pullback as a graph of primals, saved values and cotangents."""
        graph = self.joint.module.graph
        placeholders = graph.find_nodes(op="placeholder")
        n_primals, n_forward = len(self.joint.boundary.inputs), self.joint.n_forward
        # in the order in which the pullback takes them
        primals = [placeholders[index] for index in self.pullback.primals]
        saved: list[object] = [self.saved_nodes[index] for index in self.pullback.saved]
        inputs = [*primals, *saved, *placeholders[n_primals:]]
        results = results_of(graph)
        gradients = results[n_forward : n_forward + len(self.joint.boundary.differentiated)]
        return self.pullback.module(self.joint.module, inputs, gradients)


def _is_partial(numbers: Collection[int], present: int) -> bool:
    """Return whether some of several cotangents of a node arrive and others do not.

    ``numbers``: for each, as bits, the results of the program that it depends on. ``present``: the
    results with cotangents.
    """
    arriving = sum(1 for bits in numbers if bits & present)
    return 0 < arriving < len(numbers)


def _saved_primals_of(
    joint: Joint, placeholders: Sequence[fx.Node], saved: Sequence[fx.Node | None]
) -> dict[int, int]:
    """Return for each primal among the ``saved`` nodes its place there."""
    primal_of = {placeholders[place]: number for number, place in joint.whole_primals()}
    return {primal_of[node]: index for index, node in enumerate(saved) if node in primal_of}


def _roots_of(tangents: Sequence[Layout | None]) -> list[int]:
    """Return for each cotangent of the graph the number of the program's cotangent of which it is a
    part. ``tangents``: the layouts of these."""
    roots: list[int] = []
    for index, layout in enumerate(tangents):
        roots += [index] * count([layout])
    return roots


def _find_in_joint(
    joint: fx.GraphModule, forward: fx.GraphModule, n_forward: int
) -> list[fx.Node | None]:
    """Return the nodes of the joint graph that ``forward`` returns after its results.

    A partition leaves the names of nodes as they are. None for a node that has another name.
    """
    by_name = {node.name: node for node in joint.graph.nodes}
    results = results_of(forward.graph)
    nodes: list[fx.Node | None] = []
    for result in results[n_forward:]:
        same = by_name.get(result.name)
        # a user's partition may give a new node a name of the joint graph
        if same is not None and not _is_same_call(same, result):
            same = None
        nodes.append(same)
    return nodes


def _is_same_call(node: fx.Node, other: fx.Node) -> bool:
    """Return whether two nodes of one name in two graphs may be one value."""
    if node.op != other.op:
        return False
    return node.op == "placeholder" or node.target is other.target


def _return_too(forward: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
    """Let ``forward`` return the values of ``nodes`` of the joint graph as its last results."""
    if not nodes:
        return
    by_name = {node.name: node for node in forward.graph.nodes}
    output = forward.graph.output_node()
    results = results_of(forward.graph)
    output.args = ((*results, *(by_name[node.name] for node in nodes)),)
    forward.recompile()
