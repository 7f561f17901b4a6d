"""Compiled programs as functions: replay the forward, hold what the backward needs as a node of the tape, restore mutated inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..seam.shells import VALUES
from ..session.tensor import SESSION, Tensor
from ..tape.nodes import Edge, Node
from ..tape.saved import FREED, modified, refuse_inference
from ..tape.values import accumulator_of, edge_of
from .aliasing import within_reach
from .arguments import End, Kind, enter, flatten, of_leaves
from .compilers import Boxed, Compiler, as_boxed
from .joint import Joint, joint_graph
from .partition import Partition, default_partition
from .simplify import without_round_trips
from .surroundings import autocast_enabled, surroundings, without_autocast

_grad_enabled = torch.is_grad_enabled  # by one look-up
Meta = tuple[torch.Size, torch.dtype]  # of a cotangent


class CompiledBackward(Node):
    """The tape's record of one call of a compiled program.

    ``ends``: per gradient where it goes, an edge or a leaf. The ends of paths to leaves are made when somebody asks for ``edges``: a
    backward pass that starts here and is watched by nobody does not.
    """

    __slots__ = ("ends", "known_edges", "program", "saved", "versions")
    known_edges: tuple[Edge | None, ...] | None

    def __init__(self, ends: Sequence[End], metas: Sequence[Meta], program: _Compiled, saved: list[Any], versions: list[int]) -> None:
        self.ends = ends
        Node.__init__(self, SESSION, None, metas)  # type: ignore[arg-type]
        self.program = program
        self.saved: list[Any] | None = saved
        self.versions = versions  # of those that the caller can write to

    @property
    def edges(self) -> tuple[Edge | None, ...]:
        if self.known_edges is None:
            self.known_edges = tuple([e if type(e) is tuple else (accumulator_of(e), 0) for e in self.ends])
        return self.known_edges

    @edges.setter
    def edges(self, edges: tuple[Edge | None, ...] | None) -> None:
        self.known_edges = edges

    def leaves(self) -> Sequence[Tensor] | None:
        if self.known_edges is not None or self.pre_hooks or self.tensor_hooks or self.post_hooks or self.retained:
            return None
        found: list[Tensor] = []
        for end in self.ends:
            if isinstance(end, tuple) or end._edge is not None or not end._req or end._hooks or end._post_accumulate:
                return None  # no leaf, or not as in the forward, or a hook sees its gradient arrive
            node = end._accumulator() if end._accumulator is not None else None
            if node is not None and not node.unwatched():
                return None
            found.append(end)
        return found

    def apply(self, grads: list[Any], wanted: object, create_graph: bool) -> Sequence[Any]:
        if create_graph:
            raise RuntimeError(
                "aot_function does not support double backward: its backward is a graph without history. "
                "Differentiate inside the compiled function instead, e.g. aot_function(runtime.func.grad(f), …)."
            )
        if self.saved is None:
            raise RuntimeError(FREED)
        for i, version in zip(self.program.exposed, self.versions, strict=True):
            if self.saved[i]._version != version:
                raise modified(self.saved[i], version)
        values = [*self.saved, *grads]
        for i, g in enumerate(grads):
            if g is None:
                shape, dtype = self.metas[i]
                values[len(self.saved) + i] = torch.zeros(shape, dtype=dtype, device=self.program.devices[i])
        run = self.program.backward
        assert run is not None, "a program without a backward makes no nodes"
        results: Sequence[Any]
        if not autocast_enabled():
            results = run(values)
        else:
            with without_autocast():
                results = run(values)
        return results

    def release(self) -> None:
        self.saved = None


class _Compiled:
    """One program for one kind of inputs."""

    __slots__ = ("backward", "devices", "exposed", "forward", "joint", "metas", "n_forward", "n_mutated", "one_leaf", "tangents")

    def __init__(self, joint: Joint, forward: Boxed, backward: Boxed | None, exposed: Sequence[int] = ()) -> None:
        self.joint = joint
        self.forward = forward
        self.backward = backward
        cotangents = [n.meta["val"] for n in joint.module.graph.nodes if n.op == "placeholder" and n.target.startswith("tangents")]
        self.devices = [t.device for t in cotangents]
        self.metas = tuple([(t.shape, t.dtype) for t in cotangents]) if joint.abstraction is None else None
        self.n_mutated, self.n_forward = len(joint.mutated), joint.n_forward
        self.tangents = [(i, t) for i, t in enumerate(joint.outputs) if t is not None]
        self.one_leaf = joint.out_spec.is_leaf()
        self.exposed = exposed

    def accepts(self, plain: Sequence[object]) -> bool:
        abstraction = self.joint.abstraction
        return abstraction is None or abstraction.holds([p for p in plain if isinstance(p, torch.Tensor)])

    def keep(self, saved: list[Any], flat: Sequence[Any]) -> None:
        """Copy what is saved of the arguments that are about to be mutated: the backward wants the values from before."""
        mutated = [flat[i]._inner if type(flat[i]) in VALUES else flat[i] for i in self.joint.mutated]
        for i in self.exposed:
            if any(torch._C._is_alias_of(saved[i], t) for t in mutated):  # type: ignore[attr-defined]
                saved[i] = saved[i].clone()

    def __call__(self, flat: Sequence[Any], plain: list[object], ends: Sequence[End]) -> object:
        """``plain``: what ``flat`` holds, in a list for the program to empty; ``ends``: where the gradients go, leaves or edges."""
        results = self.forward(plain)
        n_mutated = self.n_mutated
        saved = results[self.n_forward :]
        if n_mutated:
            self.keep(saved, flat)
        try:
            versions = [saved[i]._version for i in self.exposed]
        except RuntimeError:
            for i in self.exposed:
                refuse_inference(saved[i])
            raise
        for i, new in zip(self.joint.mutated, results, strict=False):
            flat[i].copy_(new)
        outs = list(results[n_mutated : self.n_forward])
        if self.backward is not None:
            metas = self.metas or tuple([(outs[i].shape, outs[i].dtype) for i, _ in self.tangents])
            if n_mutated:
                ends = [cast(Edge, edge_of(flat[i])) for i in self.joint.wanted]
            node = CompiledBackward(ends, metas, self, saved, versions)
            for i, t in self.tangents:
                outs[i] = SESSION.wrap(outs[i], (node, t))
        return outs[0] if self.one_leaf else pytree.tree_unflatten(outs, self.joint.out_spec)


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partition = default_partition,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    enable_log: bool = True,
) -> Callable[..., Any]:
    """``fn`` compiled ahead of time: a forward and a backward graph, each given to its compiler, behind the signature of ``fn``.

    A program is traced once for each kind of arguments (shapes, strides, dtypes, devices, which require grad, and all that is not a
    tensor) and each state of torch's that it may ask for (grad and inference mode, autocast, default dtype and device, deterministic
    algorithms); with ``dynamic`` once for all sizes for which the same graph is right. Arguments that ``fn`` mutates are mutated. Results
    are ``runtime.Tensor`` where a gradient flows through them. ``num_params_buffers``: how many leading arguments stay alive in any
    case, so that min cut keeps them for nothing. ``keep_inference_input_mutations`` and ``enable_log`` are accepted for torch's callers.
    """
    compilers = fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler
    recipe = _Recipe(fn, *compilers, partition_fn, decompositions, num_params_buffers, dynamic)
    programs: dict[Kind, list[_Compiled]] = {}

    @wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        given, spec = flatten(args, kwargs)
        recording, autocast = _grad_enabled(), autocast_enabled()
        leaves, plain, ends, kinds = enter(given, recording, dynamic)
        key = (spec, surroundings(recording, autocast), *kinds)
        known = programs.get(key)
        if known is None:
            known = programs.setdefault(key, [])
        for program in known:
            if program.accepts(plain):
                break
        else:
            program = recipe.program(spec, plain, [bool(kind[0]) for kind in kinds])
            known.append(program)
        if not autocast:
            return program(leaves, plain, ends)
        with without_autocast():
            return program(leaves, plain, ends)

    return compiled


@dataclass(frozen=True)
class _Recipe:
    """How the programs of one compiled function are made; the fields are the arguments of :func:`aot_function`."""

    fn: Callable[..., object]
    forward_compiler: Compiler
    backward_compiler: Compiler
    inference_compiler: Compiler
    partition: Partition
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None
    num_params_buffers: int
    dynamic: bool

    def program(self, spec: pytree.TreeSpec | None, plain: Sequence[object], wanted: Sequence[bool]) -> _Compiled:
        """The program for arguments like these; ``wanted``: of which of them the gradient."""
        joint = joint_graph(of_leaves(self.fn, spec), plain, wanted, dynamic=self.dynamic, decompositions=self.decompositions)
        with without_autocast():
            return self._without_backward(joint, plain) if all(t is None for t in joint.outputs) else self._cut(joint)

    def _without_backward(self, joint: Joint, plain: Sequence[object]) -> _Compiled:
        graph = joint.module.graph
        output = graph.output_node()
        results: Any = output.args[0]
        output.args = (list(results)[: joint.n_forward],)
        graph.eliminate_dead_code()
        joint.module.recompile()
        return _Compiled(joint, as_boxed(self.inference_compiler(joint.module, list(plain))), None)

    def _cut(self, joint: Joint) -> _Compiled:
        without_round_trips(joint.module.graph)
        joint.module.recompile()
        options: dict[str, object] = {"num_fwd_outputs": joint.n_forward}
        if self.num_params_buffers and self.partition is not default_partition:
            options["static_lifetime_input_indices"] = range(self.num_params_buffers)
        forward, backward = self.partition(joint.module, None, **options)
        exposed = within_reach(forward.graph, joint.n_forward)  # before a compiler changes the graph
        run_forward = as_boxed(self.forward_compiler(forward, _examples(forward)))
        return _Compiled(joint, run_forward, as_boxed(self.backward_compiler(backward, _examples(backward))), exposed)


def _examples(module: fx.GraphModule) -> list[object]:
    """The values that the inputs of ``module`` had in the trace."""
    return [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
