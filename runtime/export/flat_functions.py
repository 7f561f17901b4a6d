"""Export a function as a graph with its calling convention: ``aot_export_joint_simple``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from ..aot.calls.simplified import fake_mode_of
from ..aot.capture.joint import Joint
from ..seam.graph_walks import results_of
from ..torch_private.dispatcher import OpOverload
from ..torch_private.graph_parts import PyTreeCodeGen, PyTreeInfo
from ..torch_private.pytrees import pytree
from ..trace.error_lines import naming_line
from ..trace.provenance import happened_at
from ..trace.symbols import Given
from .joint_graphs import (
    Table,
    capture_joint,
    name_inputs,
    needs_gradients,
    return_tuple,
)


def _is_flat(args: object) -> bool:
    """Return whether ``args`` is a tuple or list without containers in it."""
    if not isinstance(args, (tuple, list)):
        return False
    return all(pytree.tree_structure(argument).is_leaf() for argument in args)


def _is_flat_sequence(spec: Any) -> bool:
    """Return whether ``spec`` is that of a tuple or list without containers in it."""
    if spec.is_leaf() or spec.type not in (tuple, list):
        return False
    return all(child.is_leaf() for child in spec.children())


@naming_line()
def aot_export_joint_simple(
    func: Callable[..., object],
    args: Sequence[object],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: Table | None = None,
) -> fx.GraphModule:
    """Return the graph of ``func`` on ``args``, with its backward if ``trace_joint``, in the
    calling convention of ``func``.

    >>> graph = aot_export_joint_simple(lambda x: (x * 2,), (torch.ones(2),), trace_joint=False)
    >>> graph(torch.tensor([1.0, 2.0]))
    (tensor([2., 4.]),)

    With ``trace_joint`` and an argument that requires grad, the module maps ``(primals, tangents)``
    to ``(outputs, gradients)``. The gradient of an argument that does not require grad, or that no
    result depends on, is None. ``num_params_buffers`` says how many leading arguments are
    parameters; it changes nothing in the graph.

    ``args`` are tensors and constants, and ``func`` returns a tuple or a list of such.
    ``RuntimeError`` for anything else, for a write to an argument, and for a result that shares
    memory with an argument.
    """
    if not _is_flat(args):
        raise RuntimeError(
            "aot_export_joint_simple requires a flat tuple of inputs; take pytrees apart in func"
        )
    # sizes are symbols if the arguments are fake tensors with symbols
    names = [f"input {index}" for index in range(len(args))]
    wanted = needs_gradients(args, trace_joint)
    mode = fake_mode_of(args)
    joint = capture_joint(
        func,
        args,
        names,
        wanted=wanted,
        decompositions=decompositions,
        abstraction=None if mode is None else Given(mode),
        program=func,
    )
    if joint.boundary.written:
        changed = ", ".join(names[position] for position in joint.boundary.written)
        raise RuntimeError(
            "aot_export_joint_simple does not support input mutations. "
            f"func writes to {changed}; write to a copy."
            f"{happened_at(joint.boundary.inputs[joint.boundary.written[0]].written_at)}"
        )
    if not _is_flat_sequence(joint.out_spec):
        raise RuntimeError(
            "aot_export_joint_simple requires outputs to be a single list or tuple "
            f"of tensors. func returns {joint.out_spec}"
        )
    _refuse_results_that_alias(joint, names)
    if any(wanted):
        return _nest_arguments(joint, len(args))
    name_inputs(joint, len(args))
    return_tuple(joint)
    return joint.module


def _refuse_results_that_alias(joint: Joint, names: Sequence[str]) -> None:
    """Raise if a result is an input or a view of one."""
    graph = joint.module.graph
    placeholders = graph.find_nodes(op="placeholder")
    inputs = {node: index for index, node in enumerate(placeholders)}
    results = results_of(graph)
    for number, result in enumerate(results[: joint.n_forward]):
        base = _base_of(result)
        if base in inputs:
            raise RuntimeError(
                "aot_export_joint_simple does not support outputs that alias inputs. "
                f"Result {number} is {names[inputs[base]]} or a view of it; return a copy."
            )


def _base_of(result: object) -> object:
    """Return the node whose memory a result shows. A result may be a constant."""
    base = result
    while isinstance(base, fx.Node) and base.op == "call_function":
        if not base.all_input_nodes or not _is_view(base):
            break
        base = base.all_input_nodes[0]
    return base


def _is_view(node: fx.Node) -> bool:
    """Return whether the result shares memory with the first argument. An item of a list of views
    does."""
    func = node.target
    # an item of a list is no call of ATen
    if not isinstance(func, OpOverload):
        source = node.all_input_nodes[0]
        return isinstance(source.target, OpOverload) and _is_view(source)
    return func._schema.arguments[0].alias_info is not None  # of an op that writes to nothing


def _nest_arguments(joint: Joint, n_inputs: int) -> fx.GraphModule:
    """Return the joint module with nested arguments and results and a slot for every input's
    gradient."""
    graph = joint.module.graph
    output = graph.output_node()
    results = results_of(graph)
    outputs, grads = list(results[: joint.n_forward]), results[joint.n_forward :]
    # an input without a gradient has None in its slot
    full: list[Any] = [None] * n_inputs
    for number, grad in zip(joint.boundary.differentiated, grads, strict=True):
        full[number] = grad
    output.args = ([*outputs, *full],)
    # torch's generated code takes (primals, tangents) apart, and nests the results
    in_spec = pytree.tree_structure((([0] * n_inputs, [0] * joint.boundary.n_tangents), {}))
    out_spec = pytree.tree_structure(([0] * len(outputs), [0] * n_inputs))
    graph.set_codegen(PyTreeCodeGen(PyTreeInfo(["primals", "tangents"], in_spec, out_spec)))
    joint.module.recompile()
    return joint.module
