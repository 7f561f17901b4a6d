"""The joint graph: forward and backward of a program in one, by running our own tape under a trace.

From the outside in: trace, functionalize, grad. The rules of the grad level so call the functionalize level, whose calls are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..func.functionalize import FunctionalLevel, FunctionalValue, run_functional
from ..func.symbols import Abstraction
from ..func.trace import Trace, module_of, trace_flat
from ..seam.levels import Value
from ..tape.engine import execute
from ..tape.grad_level import GradLevel
from ..tape.nodes import Edge
from ..tape.values import edge_of
from .surroundings import without_autocast


@dataclass(frozen=True)
class Joint:
    """A joint graph. Placeholders: primals, then tangents. Results: new values of mutated inputs, outputs, gradients.

    ``mutated``: numbers of the inputs that the program changes; ``outputs``: per output None, or the number of its tangent;
    ``wanted``: numbers of the inputs that have a gradient, in the order of the gradients, which are None where nothing arrives.
    """

    module: fx.GraphModule
    mutated: tuple[int, ...]
    outputs: tuple[int | None, ...]
    wanted: tuple[int, ...]
    out_spec: pytree.TreeSpec
    abstraction: Abstraction | None

    @property
    def n_forward(self) -> int:
        return len(self.mutated) + len(self.outputs)


def joint_graph(
    f: Callable[..., Any],
    inputs: Sequence[Any],
    differentiate: Sequence[bool],
    *,
    dynamic: bool = False,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., Any]] | None = None,
) -> Joint:
    """``f`` takes ``inputs`` (tensors, and other values that become constants) and returns a pytree; see :class:`Joint`."""
    wanted = tuple(i for i, flag in enumerate(differentiate) if flag)
    boundary = _Boundary()

    def run(level: Trace, *traced: Any) -> list[Any]:
        def program(*values: Any) -> list[Any]:
            outs, grads, boundary.outputs, boundary.out_spec = _with_gradients(f, level, values, wanted)
            return [*outs, *grads]

        results, changed, outside = run_functional(program, traced)
        for t, new in outside:
            new.into(t)
        boundary.mutated = tuple(i for i, _ in changed)
        return [*(new.value for _, new in changed), *results]

    run.takes_level = True  # type: ignore[attr-defined]
    names = [f"primals_{i + 1}" for i in range(len(inputs))]
    graph, attributes, level = trace_flat(run, inputs, dynamic=dynamic, decompositions=decompositions, names=names)
    module = module_of(graph, attributes, "Joint")
    assert boundary.out_spec is not None, "the trace has run the program"
    return Joint(module, boundary.mutated, boundary.outputs, wanted, boundary.out_spec, level.abstraction)


@dataclass
class _Boundary:
    """What a run of the program under a trace has shown beside its graph; see :class:`Joint`."""

    mutated: tuple[int, ...] = ()
    outputs: tuple[int | None, ...] = ()
    out_spec: pytree.TreeSpec | None = None


def _with_gradients(
    f: Callable[..., Any], trace: Trace, values: Sequence[Any], wanted: Sequence[int]
) -> tuple[list[Any], list[torch.Tensor | None], tuple[int | None, ...], pytree.TreeSpec]:
    """Outputs and gradients at the next outer level, the number of each output's tangent, and the tree of the outputs."""
    tape = GradLevel()
    try:
        given = list(values)
        for i in wanted:
            given[i] = tape.input(given[i])
        with torch.set_grad_enabled(bool(wanted) or torch.is_grad_enabled()):
            outs, spec = pytree.tree_flatten(tape.run_inside(f, given, {}))
        edges = [edge_of(o) if isinstance(o, Value) and o._level is tape else None for o in outs]
        lowered = [tape.lowered(o) for o in outs]
        tangents: list[int | None] = []
        roots: list[tuple[Edge, FunctionalValue]] = []
        for out, edge in zip(lowered, edges, strict=True):
            tangents.append(None if edge is None else len(roots))
            if edge is not None:
                roots.append((edge, _tangent(trace, out, f"tangents_{len(roots) + 1}")))
        grads: list[torch.Tensor | None] = [None] * len(wanted)
        if roots:
            captures = [edge_of(given[i]) for i in wanted]
            with torch.no_grad(), without_autocast():  # as a backward pass after the autocast block
                grads = execute(tape, roots, captures, create_graph=False, keep_graph=False, accumulate=False)
    finally:
        tape.close()
    return lowered, grads, tuple(tangents), spec


def _tangent(trace: Trace, out: FunctionalValue, name: str) -> FunctionalValue:
    """A placeholder for the cotangent of ``out``, as a value of the functionalize level that ``out`` belongs to."""
    functional: FunctionalLevel = out._level
    value: FunctionalValue = functional.wrap(trace.late_input(functional.read(out), name))  # type: ignore[arg-type]
    return value


def aot_export_joint_simple(
    func: Callable[..., Any],
    args: Sequence[Any],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., Any]] | None = None,
) -> fx.GraphModule:
    """The graph of ``func`` on ``args``, with its backward if ``trace_joint``, which must be free of mutation of its inputs.

    With ``trace_joint``, the module maps ``(primals, tangents)`` to ``(outputs, gradients)``; an input that does not require grad, or that
    no gradient reaches, has None. Without, it maps ``primals`` to ``outputs``. ``num_params_buffers`` says how many leading inputs are
    parameters; it changes nothing in the graph.
    """
    flat, _ = pytree.tree_flatten(tuple(args))
    if len(flat) != len(args):
        raise RuntimeError("aot_export_joint_simple requires a flat tuple of inputs; take pytrees apart in func")
    flags = [trace_joint and isinstance(t, torch.Tensor) and t.requires_grad for t in flat]
    if trace_joint and not any(flags):
        raise RuntimeError("aot_export_joint_simple(trace_joint=True): no input requires grad")
    joint = joint_graph(func, flat, flags, decompositions=decompositions)
    if joint.mutated:
        raise RuntimeError(f"aot_export_joint_simple does not support input mutations; func mutates input(s) {list(joint.mutated)}")
    if not trace_joint:
        return joint.module
    return _restructured(joint, len(flat))


def _restructured(joint: Joint, n_inputs: int) -> fx.GraphModule:
    """The joint module with nested arguments and results and a slot for every input's gradient."""
    from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo

    graph = joint.module.graph
    output = next(n for n in graph.nodes if n.op == "output")
    results: Any = list(output.args[0])
    outs, grads = results[: joint.n_forward], results[joint.n_forward :]
    full: list[Any] = [None] * n_inputs
    for i, g in zip(joint.wanted, grads, strict=True):
        full[i] = g
    output.args = ([*outs, *full],)
    n_tangents = sum(t is not None for t in joint.outputs)
    in_spec = pytree.tree_structure((([0] * n_inputs, [0] * n_tangents), {}))
    out_spec = pytree.tree_structure(([0] * len(outs), [0] * n_inputs))
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(["primals", "tangents"], in_spec, out_spec)))
    joint.module.recompile()
    return joint.module
