"""Compiled programs as functions: replay the forward, hold what the backward needs as a node of the tape, restore mutated inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import NestedTensor
from ..seam.levels import VALUES
from ..session.leaf import as_leaf
from ..session.tensor import SESSION
from ..tape.nodes import Edge, Node
from ..tape.saved import FREED, modified, refuse_inference
from ..tape.values import accumulator_of, edge_of
from .aliasing import within_reach
from .compilers import Compiler, as_boxed
from .joint import Joint, joint_graph
from .partition import Partition, default_partition
from .simplify import without_round_trips
from .surroundings import autocast_enabled, surroundings, without_autocast

_grad_enabled, _Tensor, _STRIDED = torch.is_grad_enabled, torch.Tensor, torch.strided  # by one look-up each
_COMPLEX = frozenset((torch.complex32, torch.complex64, torch.complex128))


class CompiledBackward(Node):
    """The tape's record of one call of a compiled program.

    ``ends``: per gradient where it goes, an edge or a leaf. The ends of paths to leaves are made when somebody asks for ``edges``: a
    backward pass that starts here and is watched by nobody does not.
    """

    __slots__ = ("ends", "known_edges", "program", "saved", "versions")
    known_edges: tuple[Edge | None, ...] | None

    def __init__(self, ends: Sequence[Any], metas: Any, program: _Compiled, saved: list[Any], versions: list[int]) -> None:
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

    def leaves(self) -> Sequence[Any] | None:
        if self.known_edges is not None or self.pre_hooks or self.tensor_hooks or self.post_hooks or self.retained:
            return None
        for end in self.ends:
            if type(end) is tuple or end._edge is not None or not end._req or end._hooks or end._post_accumulate:
                return None  # no leaf, or not as in the forward, or a hook sees its gradient arrive
            node = end._accumulator() if end._accumulator is not None else None
            if node is not None and not node.unwatched():
                return None
        return self.ends

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> Sequence[Any]:
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
        results: Sequence[Any]
        if not autocast_enabled():
            results = self.program.backward(values)
        else:
            with without_autocast():
                results = self.program.backward(values)
        return results

    def release(self) -> None:
        self.saved = None


class _Compiled:
    """One program for one kind of inputs."""

    __slots__ = ("backward", "devices", "exposed", "forward", "joint", "metas", "n_forward", "n_mutated", "one_leaf", "tangents")

    def __init__(self, joint: Joint, forward: Callable[..., Any], backward: Callable[..., Any] | None, exposed: Sequence[int] = ()) -> None:
        self.joint = joint
        self.forward = forward
        self.backward: Any = backward
        cotangents = [n.meta["val"] for n in joint.module.graph.nodes if n.op == "placeholder" and n.target.startswith("tangents")]
        self.devices = [t.device for t in cotangents]
        self.metas = tuple([(t.shape, t.dtype) for t in cotangents]) if joint.abstraction is None else None
        self.n_mutated, self.n_forward = len(joint.mutated), joint.n_forward
        self.tangents = [(i, t) for i, t in enumerate(joint.outputs) if t is not None]
        self.one_leaf = joint.out_spec.is_leaf()
        self.exposed = exposed

    def accepts(self, plain: Sequence[Any]) -> bool:
        abstraction = self.joint.abstraction
        return abstraction is None or abstraction.holds([p for p in plain if isinstance(p, torch.Tensor)])

    def keep(self, saved: list[Any], flat: Sequence[Any]) -> None:
        """Copy what is saved of the arguments that are about to be mutated: the backward wants the values from before."""
        mutated = [flat[i]._inner if type(flat[i]) in VALUES else flat[i] for i in self.joint.mutated]
        for i in self.exposed:
            if any(torch._C._is_alias_of(saved[i], t) for t in mutated):  # type: ignore[attr-defined]
                saved[i] = saved[i].clone()

    def __call__(self, flat: Sequence[Any], plain: list[Any], ends: Sequence[Any]) -> Any:
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
                ends = [edge_of(flat[i]) for i in self.joint.wanted]
            node = CompiledBackward(ends, metas, self, saved, versions)
            for i, t in self.tangents:
                outs[i] = SESSION.wrap(outs[i], (node, t))
        return outs[0] if self.one_leaf else pytree.tree_unflatten(outs, self.joint.out_spec)


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partition = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
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
    programs: dict[Any, list[_Compiled]] = {}
    backward_compiler = bw_compiler or fw_compiler

    @wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        given, spec = _flatten(args, kwargs)
        recording, autocast = _grad_enabled(), autocast_enabled()
        flat = list(given)
        plain = list(given)
        ends: list[Any] = []
        kinds: list[Any] = []
        for i, x in enumerate(given):
            end = None
            if type(x) in VALUES:
                if x._level is not SESSION:
                    raise RuntimeError(f"a compiled function is called inside {x._level.what}; compile the whole transform instead")
                if recording:
                    end = edge_of(x) if x._edge is not None or x._view is not None else x if x._req else None
                    if end is not None:
                        ends.append(end)
                x = plain[i] = x._inner
            elif recording and isinstance(x, _Tensor) and x.requires_grad:
                leaf: Any = as_leaf(x)
                end = flat[i] = leaf
                ends.append(end)
                x = plain[i] = end._inner
            if dynamic or not isinstance(x, _Tensor):
                kinds.append(_kind(x, end is not None))
            else:  # the common case, spared a call, and the objects of devices
                layout, dtype = x.layout, x.dtype
                try:
                    strides = x.stride() if layout is _STRIDED else None
                except RuntimeError as error:
                    raise NestedTensor from error
                conj = dtype in _COMPLEX and x.is_conj()
                kinds.append((end is not None, dtype, x.is_cpu or x.device, x.shape, strides, layout, conj, x.is_neg()))
        key = (spec, surroundings(recording, autocast), *kinds)
        known = programs.get(key)
        if known is None:
            known = programs.setdefault(key, [])
        for program in known:
            if program.accepts(plain):
                break
        else:
            program = _compile(fn if spec is None else lambda *values: _call(fn, values, spec), plain, [kind[0] for kind in kinds])
            known.append(program)
        if not autocast:
            return program(flat, plain, ends)
        with without_autocast():
            return program(flat, plain, ends)

    def _compile(f: Callable[..., Any], plain: list[Any], wanted: Sequence[bool]) -> _Compiled:
        joint = joint_graph(f, plain, wanted, dynamic=dynamic, decompositions=decompositions)
        with without_autocast():
            return _program(joint, plain)

    def _program(joint: Joint, plain: list[Any]) -> _Compiled:
        if not any(t is not None for t in joint.outputs):
            compiler = inference_compiler or fw_compiler
            keep = next(n for n in joint.module.graph.nodes if n.op == "output")
            keep.args = (list(keep.args[0])[: joint.n_forward],)
            joint.module.graph.eliminate_dead_code()
            joint.module.recompile()
            return _Compiled(joint, as_boxed(compiler(joint.module, plain)), None)
        without_round_trips(joint.module.graph)
        joint.module.recompile()
        options: dict[str, Any] = {"num_fwd_outputs": joint.n_forward}
        if num_params_buffers and partition_fn is not default_partition:
            options["static_lifetime_input_indices"] = range(num_params_buffers)
        forward, backward = partition_fn(joint.module, None, **options)
        examples = [[n.meta.get("val") for n in m.graph.nodes if n.op == "placeholder"] for m in (forward, backward)]
        exposed = within_reach(forward.graph, joint.n_forward)  # before a compiler changes the graph
        fw, bw = fw_compiler(forward, examples[0]), backward_compiler(backward, examples[1])
        return _Compiled(joint, as_boxed(fw), as_boxed(bw), exposed)

    return compiled


_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, bool, int, float, str, type(None)))


def _flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """The leaves of the arguments and their tree; None for the tree of plain positional arguments, which is at hand at no cost."""
    if not kwargs and (VALUES.issuperset(map(type, args)) or all(type(a) in VALUES or type(a) in _LEAVES for a in args)):
        return args, None
    return pytree.tree_flatten((args, kwargs))


def _call(fn: Callable[..., Any], values: Sequence[Any], spec: Any) -> Any:
    args, kwargs = pytree.tree_unflatten(list(values), spec)
    return fn(*args, **kwargs)


def _kind(x: Any, wanted: bool) -> tuple[Any, ...]:
    """What a graph depends on, of an argument that may have any size or is no tensor; first of all whether its gradient is ``wanted``."""
    if not isinstance(x, _Tensor):
        # 1, 1.0 and True are equal, and 0.0 and -0.0, but programs tell them apart; a NaN does not even equal itself
        exact = x.__hash__ is not None and not isinstance(x, (float, complex))
        return wanted, type(x), x if exact else repr(x)
    return wanted, x.dtype, x.device, x.dim(), x.layout, x.is_conj(), x.is_neg()
