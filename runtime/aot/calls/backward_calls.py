"""Run the backward graph of a compiled program as a node of the tape.

With ``create_graph`` it runs the gradients of the joint graph as a compiled function of arguments
and cotangents instead. So the result has a history of its own, to any order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx

from ...seam import factories
from ...seam.graph_walks import results_of
from ...seam.locks import lock_of
from ...seam.shells import VALUES
from ...session.leaf import follow_hooks
from ...session.tensor import SESSION, Tensor
from ...tape.nodes import Edge, Node, nodes_at
from ...tape.running import RUNNING
from ...tape.saved import FREED, HOOKS, Pack, Packed, Unpack, modified, pack, restore
from ...tape.values import accumulator_of, edge_of
from ...torch_private.global_settings import is_autocast_enabled, without_autocast
from ...torch_private.mode_stacks import number_of_dispatch_modes, unseen_by_handlers
from ...trace.error_lines import name_origin
from ...trace.provenance import happened_at
from ..capture.aliasing import saved_of, within_reach
from ..capture.global_state import mode_of_caller
from ..capture.joint import Joint
from ..capture.pullback import Pullback, pullback_of
from ..capture.subclass_parts import Layout, count
from ..compilers.boxed import Boxed, Compiler, as_boxed, examples, node_by_node, nop
from ..compilers.staged import Settling
from ..control_flow.torch_operators import transformable
from ..partition.absent import without
from ..python_state.backward_reads import BackwardReads
from ..python_state.code_names import beginning_of
from .arguments import Target
from .subclass_calls import Part, Watch, backward_of_whole_tensors, zeros_of

Meta = tuple[torch.Size, torch.dtype]  # of a cotangent
Compile = Callable[[fx.GraphModule], Callable[..., Any]]


class Backward:
    """Compile and run the backward of one program. It is compiled when it first runs.

    A call stores these values: ``n_saved`` that the backward graph takes, then random numbers that
    only a second derivative needs, up to ``n_kept``, then the primals ``reread``, which only a
    second derivative needs too.

    ``exposed``: which of the stored values the caller can write to. ``at_risk``: which of them the
    program itself may write over. ``reads``: what the backward pass asks of Python's state; None
    if it runs no code of the user's. ``watch``: finds tensors with parts that are stored.
    ``devices`` and ``metas``: of the cotangents.
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
        self.at_risk = self._list_at_risk(forward)
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
        self._lock = lock_of(self, "_lock")
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
        written = [index for index, x in enumerate(inputs) if x.written or x.overwritten]
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
        saved: list[object] = [self.saved_nodes[i] for i in self.pullback.saved]
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


class CompiledBackward(Node):
    """Record one call of a compiled program on the tape.

    Leaves get their ``AccumulateGrad`` nodes when somebody asks for ``edges``. A backward pass that
    starts here and has no hooks does not ask.
    """

    __slots__ = (
        "backward",
        "found",
        "known_edges",
        "parts",
        "reads",
        "saved",
        "targets",
        "versions",
        "watched",
        "written",
    )
    known_edges: tuple[Edge | None, ...] | None
    several = True

    def __init__(
        self,
        targets: Sequence[Target | None],
        metas: Sequence[Meta],
        backward: Backward,
        saved: list[torch.Tensor | float],
        versions: list[int],
        written: Sequence[Any],
    ) -> None:
        # per gradient where it goes, an edge or a leaf, or None if it is not wanted
        self.targets = targets
        Node.__init__(self, SESSION, None, metas)  # type: ignore[arg-type]
        self.backward = backward
        self.saved: list[Any] | None = saved
        # of the values that the caller can write to; None if hooks have packed what is saved
        self.versions: list[int] | None = versions
        # the arguments that the backward writes to
        self.written = written
        # by number of the result, its parts, if one is no plain tensor
        self.parts: dict[int, list[Part]] = {}
        # tensors that consist of saved values, with their versions
        self.watched: list[tuple[torch.Tensor, int]] = []
        # what the backward reads of Python's state, and what was there at the call
        self.reads = backward.reads
        self.look()
        if hooks := HOOKS.innermost():
            self._pack(hooks)

    def look(self) -> None:
        """Note what the backward reads of Python's state, now that the call has assigned to it."""
        self.found = [reads.look() for reads in self.reads]

    @property
    def edges(self) -> tuple[Edge | None, ...]:
        """Return the edges to the next nodes. Leaves get their nodes now."""
        if self.known_edges is None:
            # the node of a leaf takes over the hooks that the leaf has when the node is made
            for target in self.targets:
                if isinstance(target, Tensor):
                    follow_hooks(target)
            edges: list[Edge | None] = []
            for target in self.targets:
                if target is None or type(target) is tuple:
                    edges.append(target)
                else:
                    edges.append((accumulator_of(target), 0))
            self.known_edges = tuple(edges)
        return self.known_edges

    @edges.setter
    def edges(self, edges: tuple[Edge | None, ...] | None) -> None:
        """Set the edges; None lets them be computed."""
        self.known_edges = edges

    def leaves(self) -> Sequence[Tensor] | None:
        """Return the leaves that all gradients go to; None if a backward pass needs ``edges``.

        It needs them for hooks, for retained gradients, and for a target that is no plain leaf.
        """
        if (
            self.known_edges is not None
            or self.pre_hooks
            or self.tensor_hooks
            or self.post_hooks
            or self.retained
        ):
            return None
        leaves: list[Tensor] = []
        for target in self.targets:
            # an edge, or no gradient at all
            if not isinstance(target, Tensor):
                return None
            follow_hooks(target)
            if (
                target._edge is not None
                or not target._req
                or target._hooks
                or target._post_accumulate
            ):
                # no leaf, or not as in the forward, or a hook sees its gradient arrive
                return None
            # an earlier graph may have made a node for the leaf, and somebody may watch that
            node = target._accumulator() if target._accumulator is not None else None
            if node is not None and not node.unwatched():
                return None
            leaves.append(target)
        return leaves

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients for the cotangents ``grads``, some of which may be None."""
        mode = mode_of_caller()
        if mode is not None:
            self._require_unseen(mode)
        saved, backward = self._check_saved(create_graph), self.backward
        # which cotangents are there, as bits; None if all are
        present = None
        for grad in grads:
            if grad is None:  # `None in grads` would compare tensors
                present = sum(
                    1 << index for index, gradient in enumerate(grads) if gradient is not None
                )
                break
        if create_graph:
            return self._mask_unreached(self._apply_pullback(saved, grads, present), present)
        n_saved = backward.n_saved
        values = [*saved[:n_saved], *grads]
        task = RUNNING.task
        if task is not None and not task.keep_graph:
            del saved
            # so that the graph can free each tensor after its last use
            self.saved = None
            self.watched = []
        for index, grad in enumerate(grads, n_saved):
            if grad is None:
                values[index] = self._zeros(index - n_saved)
            else:
                values[index] = _as_traced(grad)
        # the graph has the casts of autocast already
        if mode is None and not is_autocast_enabled():
            results = backward.run(values, present)
        else:
            with without_autocast(), _unseen():
                results = backward.run(values, present)
        # what the backward pass writes to arguments comes after the gradients
        if self.written:
            self._write(results[-len(self.written) :])
            results = results[: -len(self.written)]
        return self._mask_unreached(results, present)

    def _require_unseen(self, mode: object) -> None:
        """Refuse a pass in which ``mode`` would see code of the user's, which the graph has
        without the mode."""
        if self.reads:
            raise RuntimeError(
                f"a mode over torch's functions, {type(mode).__name__}, is on while the backward "
                "pass of a captured program runs. It would see a custom Function or a hook there, "
                "of which the graph has the calls without the mode. Leave the mode before the "
                "pass, or enter it before the call of the program: then that runs in eager mode."
                f"{self.backward.line_of_user()}"
            )

    def _mask_unreached(
        self, gradients: Sequence[torch.Tensor | None], present: int | None
    ) -> Sequence[torch.Tensor | None]:
        """Return ``gradients``, with None for those that no present cotangent reaches."""
        if present is None:
            return gradients
        return [
            grad if bits & present else None
            for grad, bits in zip(gradients, self.backward.joint.boundary.reach, strict=True)
        ]

    def _check_saved(self, create_graph: bool) -> list[object]:
        """Return what was saved. Raise if it was freed, or if a needed value was written to since.

        A backward that needs no saved value can run again, as a node that saves nothing.
        """
        saved = self.saved
        for reads, found in zip(self.reads, self.found, strict=True):
            reads.require(found)
        if saved is None:
            if self.backward.n_saved or create_graph:
                raise RuntimeError(FREED)
            return []
        if self.versions is None:  # hooks have packed it
            return list(map(_unpack, saved))
        # the caller can write only to what it can reach; a second derivative needs the primals, too
        backward = self.backward
        exposed = backward.exposed if create_graph else backward.first_exposed
        # `first_exposed` is the beginning of `exposed`, of which these are the versions
        for index, version in zip(exposed, self.versions, strict=False):
            if saved[index]._version != version:
                raise modified(saved[index], version)
        for tensor, version in self.watched:
            if tensor._version != version:
                raise modified(tensor, version)
        return saved

    def _zeros(self, index: int) -> torch.Tensor:
        """Return zeros for cotangent ``index``, which is missing."""
        layouts = self.backward.joint.layouts
        if layouts is not None:
            layout = layouts.tangents[index]
            if layout is not None:
                return zeros_of(layout, self.parts[index])
        shape, dtype = self.metas[index]
        return factories.zeros(shape, dtype=dtype, device=self.backward.devices[index])

    def _write(self, values: Sequence[torch.Tensor]) -> None:
        """Write ``values`` to the arguments that the backward writes to."""
        # in no_grad mode, as there is no second derivative
        for tensor, value in zip(self.written, values, strict=True):
            tensor.copy_(value)

    def _apply_pullback(
        self, saved: list[Any], grads: list[torch.Tensor | None], present: int | None
    ) -> Sequence[torch.Tensor | None]:
        """Return gradients that have a history, by the pullback of the program."""
        backward = self.backward
        if self.written:
            raise RuntimeError(
                "a compiled program whose backward writes to an argument has no second derivative"
            )
        again = backward.differentiable(present)
        # primals by number: as the call stores them, with the history that they had at the call
        values_of_primals = dict(zip(backward.reread, saved[backward.n_kept :], strict=True))
        values_of_primals.update(
            {primal: saved[place] for primal, place in backward.saved_primals.items()}
        )
        targets = dict(zip(backward.joint.boundary.differentiated, self.targets, strict=True))
        primals = [
            _with_history(values_of_primals[index], targets.get(index))
            for index in backward.pullback.primals
        ]
        saved_by_pullback = [saved[i] for i in backward.pullback.saved]
        with torch.enable_grad(), without_autocast(), _unseen():
            cotangents: list[torch.Tensor] = []
            for index, grad in enumerate(grads):
                cotangents.append(self._zeros(index) if grad is None else _as_traced(grad))
            results: Sequence[Any] = again(*primals, *saved_by_pullback, *cotangents)
        # a further pass goes through the code of the program's pass once more
        for node in nodes_at(map(_edge, results)):
            if isinstance(node, CompiledBackward):
                node.reads, node.found = self.reads, self.found
        return results

    def _pack(self, hooks: tuple[Pack, Unpack]) -> None:
        """Replace what is saved by what the pack hooks of this thread return for it."""
        assert self.saved is not None
        backward = self.backward
        targets = dict(zip(backward.joint.boundary.differentiated, self.targets, strict=True))
        # a hook gets a tensor with its history, so primals need their targets
        of_saved: dict[int, Target | None] = {}
        for primal, place in backward.saved_primals.items():
            of_saved[place] = targets.get(primal)
        for place, primal in enumerate(backward.reread, backward.n_kept):
            of_saved[place] = targets.get(primal)
        packed = list(self.saved)
        for place, tensor in enumerate(self.saved):
            if isinstance(tensor, torch.Tensor):
                packed[place] = pack(SESSION, tensor, _edge(of_saved.get(place)), *hooks)
        self.saved = packed
        self.versions = None  # what the hooks give back is not compared

    def release(self) -> None:
        """Free what is saved."""
        self.saved = None
        self.watched = []


def _unseen() -> AbstractContextManager[object]:
    """Return a context in which no mode of the caller over torch's functions sees a call.

    In eager mode formulas are in C++, where none does. One that sets the default device stays: it
    is right for an op of the user's in the graph.
    """
    return nullcontext() if mode_of_caller() is None else unseen_by_handlers()


def _as_traced(g: torch.Tensor) -> torch.Tensor:
    """Return cotangent ``g`` as the trace took it.

    The trace took contiguous cotangents, as strides decide which results are views. None of them
    was conjugated or negated lazily.
    """
    if not g.is_contiguous():
        g = g.contiguous()
    if g.is_conj():
        g = g.resolve_conj()
    if g.is_neg():
        g = g.resolve_neg()
    return g


def _unpack(saved: Packed | float) -> object:
    """Return a saved value, by the unpack hook if hooks have packed it."""
    if type(saved) is Packed:
        return restore(SESSION, saved, None)
    return saved


def _edge(target: Target | None) -> Edge | None:
    """Return the edge that a gradient goes along to ``target``, if that is no leaf."""
    if isinstance(target, Tensor):
        return edge_of(target)
    return target


def _with_history(tensor: torch.Tensor, target: Target | None) -> torch.Tensor:
    """Return plain argument ``tensor`` as the tensor of the session that it was at the call."""
    if target is None:
        return tensor
    if isinstance(target, Tensor) and target._inner is tensor:
        return target
    value: torch.Tensor = SESSION.wrap(tensor, _edge(target))
    return value
