"""Export graphs without a program around them: ``aot_export_module`` and
``aot_export_joint_simple``.

Whoever takes such a graph calls it himself. So what a compiled program does around its graph
becomes further results, or is refused. A :class:`GraphSignature` says what each input and output
is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import fx

from ..aot.calls.simplified import fake_mode_of, of_state, plain, refuse_fake_state, state_of
from ..aot.capture.aliasing import sharing
from ..aot.capture.boundary import Boundary, Input, Made, Output, ViewStep
from ..aot.capture.global_state import without_collection
from ..aot.capture.joint import Joint, joint_graph
from ..aot.capture.make_fx import make_fx
from ..aot.capture.outputs import leaf_of
from ..functionalize.functional_level import FunctionalLevel
from ..functionalize.functional_value import FunctionalValue
from ..seam.escapes import living
from ..seam.generator_states import own_draws
from ..seam.graph_walks import results_of
from ..seam.user_code import watched
from ..torch_private.dispatcher import OpOverload
from ..torch_private.graph_parts import PyTreeCodeGen, PyTreeInfo
from ..torch_private.pytrees import pytree
from ..trace.error_lines import naming_line
from ..trace.provenance import happened_at
from ..trace.symbols import Abstraction, Given
from .frozen_state import FrozenState

# --- traces before dispatch -----------------------------------------------------------------------
#
# Graphs to differentiate later are free of writes. They have switches of the grad mode as calls,
# and some composite ops whole.

# Composite ops that never write to an argument or return one. FunctionalLevel sees to a dropout
# that drops nothing. The others are decomposed.
_NAMES = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul "
    "layer_norm group_norm scaled_dot_product_attention dropout"
)
_PACKETS = [getattr(torch.ops.aten, name) for name in _NAMES.split()]
WHOLE = frozenset(
    chain.from_iterable(map(partial(getattr, packet), packet.overloads()) for packet in _PACKETS)
)


def traced_before_dispatch(
    function: Callable[..., object],
    leaves: Sequence[torch.Tensor | int],
    decompositions: Mapping[object, Callable[..., object]] | None,
    dynamic: bool,
) -> Joint:
    """Return the graph of ``function`` on ``leaves``, without gradients, in the grad mode of the
    caller."""
    boundary: Boundary | None = None
    out_spec: Any = None

    def run(*traced: Any) -> list[object]:
        """Run the program at a functionalize level, and return new values and results."""
        nonlocal boundary, out_spec
        level = FunctionalLevel(whole=WHOLE)
        values = [
            level.wrap(value) if isinstance(value, torch.Tensor) else value for value in traced
        ]
        try:
            with level.mode:
                outs, out_spec = pytree.tree_flatten(living(level.run_inside(function, values, {})))
            _refuse_writes_outside(level)
            # new values of written inputs come first, as in a joint graph
            inputs = tuple(map(_input_record, values))
            written = [
                level.read(value)
                for value, record in zip(values, inputs, strict=True)
                if record.written
            ]
            results = tuple(Output(Made.RESULT, index) for index in range(len(outs)))
            boundary = Boundary(inputs, results, (None,) * len(outs))
            return [*written, *map(level.lowered, outs)]
        finally:
            level.close()

    mode = "symbolic" if dynamic else "real"
    with own_draws():  # the draws of the trace are not those of a call
        module = make_fx(run, decompositions, tracing_mode=mode, pre_dispatch=True)(*leaves)
    assert boundary is not None
    results = results_of(module.graph)
    module.graph.output_node().args = (tuple(results),)
    module.recompile()
    return Joint(module, boundary, out_spec, None)


def _refuse_writes_outside(level: FunctionalLevel) -> None:
    """Raise if the program wrote to a tensor that it closes over."""
    for value in level.closed_over.values():
        if value._store.memory.generation:
            raise RuntimeError(
                "the program writes to a tensor that it closes over. Pass it as an "
                f"argument, or make it a buffer.{happened_at(value._store.memory.written_at)}"
            )


def _input_record(value: object) -> Input:
    """Return what the program did to an input."""
    if not isinstance(value, FunctionalValue):
        return Input(False)
    store = value._store
    return Input(
        differentiated=False,
        written=bool(store.memory.generation),
        tangent=None,
        counted=store.counter[0],
        reshaped=tuple(ViewStep(*step) for step in value._chain),
        written_at=store.memory.written_at,
    )


# --- signatures -----------------------------------------------------------------------------------
#
# ``aot_export_module`` returns these records with the graph. They say what its inputs and outputs
# are.


@dataclass(frozen=True)
class BackwardSignature:
    """The gradients that a joint graph returns after the results of the module.

    ``gradients_to_parameters``: name of the parameter by name of the output.
    ``gradients_to_user_inputs``: name of the input by name of the output. ``loss_output``: the
    output whose gradients these are.
    """

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass(frozen=True)
class GraphSignature:
    """An exported graph takes parameters, buffers, then the leaves of the arguments. It returns new
    values of what the module writes to, the leaves of its results, then gradients.

    ``parameters`` and ``buffers``: their names in the module. ``user_inputs`` and ``user_outputs``:
    names of nodes; None for a result that is a constant. ``inputs_to_parameters`` and
    ``inputs_to_buffers``: name in the module by name of the placeholder. ``buffers_to_mutate``,
    ``parameters_to_mutate`` and ``user_inputs_to_mutate``: for each output that is a new value,
    whose it is. ``in_spec``: the tree of (everything that the graph takes by position, keyword
    arguments). ``out_spec``: the tree of the module's results."""

    parameters: list[str]
    buffers: list[str]
    user_inputs: list[str]
    user_outputs: list[str | None]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    parameters_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    backward_signature: BackwardSignature | None = None


# --- graphs ---------------------------------------------------------------------------------------

Table = Mapping[Any, Callable[..., Any]]

# Without grad mode ATen calls forms of ops that have no derivative. Whoever runs the graph may
# have grad mode on.
_DIFFERENTIABLE: Table = {
    torch.ops.aten._embedding_bag_forward_only.default: torch.ops.aten._embedding_bag.default
}


@dataclass(frozen=True)
class Loss:
    """The number of the result that is differentiated. The others have no history, or it is an
    error."""

    number: int

    def check(self, out: object) -> None:
        """Refuse results that a joint graph cannot have."""
        outs = out
        if isinstance(out, torch.Tensor):
            outs = (out,)
        if not isinstance(outs, (tuple, list)):
            raise RuntimeError(
                "a joint graph is made of a program that returns a tensor, a tuple or a list, "
                f"not {type(out).__name__}"
            )
        if not -len(outs) <= self.number < len(outs):
            raise RuntimeError(
                f"output_loss_index is {self.number}, and the program returns {len(outs)} results"
            )
        self._refuse_other_histories(outs)
        loss = outs[self.number]
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise RuntimeError(
                f"result {self.number} was marked as the loss, and it does not require grad"
            )
        if loss.numel() != 1:
            raise RuntimeError(
                f"result {self.number} was marked as the loss, so it must have one element. "
                f"Its shape is {list(loss.shape)}"
            )

    def _refuse_other_histories(self, outs: Sequence[object]) -> None:
        """Raise if a result other than the loss requires grad."""
        for index, output in enumerate(outs):
            # a negative number counts from the last result
            if index == self.number % len(outs):
                continue
            if any(needs_gradients(pytree.tree_leaves(output))):
                raise RuntimeError(
                    "Found an output of the forward that requires gradients, that was not "
                    f"the loss. The graph has the gradients of result {self.number} alone. "
                    f"Return {index} as .detach()."
                )


def needs_gradients(leaves: Sequence[object], trace_joint: bool = True) -> list[bool]:
    """Return for each leaf whether a graph has its gradient: for tensors that require grad, if
    there is a backward pass at all."""
    return [
        trace_joint and isinstance(value, torch.Tensor) and value.requires_grad for value in leaves
    ]


@without_collection()  # whose callbacks would be code of the program for the graph of objects
def captured(
    f: Callable[..., object],
    leaves: Sequence[object],
    names: Sequence[str],
    *,
    wanted: Sequence[bool],
    loss: Loss | None = None,
    decompositions: Table | None = None,
    dynamic: bool = False,
    abstraction: Abstraction | None = None,
    program: Callable[..., object],
) -> Joint:
    """Return the joint graph of ``f`` on ``leaves``, free of writes. Refuse what the graph cannot
    say; ``names`` are those of the leaves. ``program``: the module or function that ``f`` calls,
    whose state becomes constants of the graph."""
    state = FrozenState([program])

    def call_and_check(*values: object) -> object:
        """Call ``f``, and refuse results among which the loss is none."""
        out = f(*values)
        if loss is not None:
            loss.check(out)
        return out

    number = None if loss is None else loss.number
    # without a gradient the graph is that of the program under no_grad
    recording = contextlib.nullcontext() if any(wanted) else torch.no_grad()
    examples = list(map(plain, leaves))
    with recording:
        capture = partial(
            joint_graph,
            partial(watched, call_and_check),
            examples,
            wanted,
            dynamic=dynamic,
            decompositions={**_DIFFERENTIABLE, **(decompositions or {})},
            lift=False,
            whole=True,
            abstraction=abstraction,
            loss=number,
            generators=state.generators,
        )
        joint = state.keep(capture)
    _refuse_writes(joint, examples, names)
    return joint


def _refuse_writes(joint: Joint, examples: Sequence[object], names: Sequence[str]) -> None:
    """Refuse writes that no result of the graph can stand for."""
    boundary = joint.boundary
    for name, record, x in zip(names, boundary.inputs, examples, strict=True):
        _refuse_changes_of_input(name, record, x)
    if boundary.seedings:
        raise RuntimeError(
            "the program sets the state of a random generator, and an exported graph cannot. "
            f"Do that before the call.{boundary.seedings[0].where}"
        )
    if boundary.backward_written:
        raise RuntimeError(
            f"the backward pass writes to {names[boundary.backward_written[0]]}. "
            "An exported graph cannot."
        )
    _refuse_writes_to_shared_memory(boundary, examples, names)


def _refuse_changes_of_input(name: str, record: Input, value: Any) -> None:
    """Refuse what a program does to the input ``value`` and a graph cannot."""
    if not record.keeps_geometry(value):
        raise RuntimeError(
            f"Found an input that received a metadata mutation: {name} has other sizes "
            f"or strides after the call ({record.reshaped[0].func._schema.name}_). "
            "An exported graph cannot change them. Use the op that returns a view."
            f"{happened_at(record.written_at)}"
        )
    if record.written and record.differentiated:
        raise RuntimeError(
            f"Found a graph input that requires gradients, and received a mutation: {name}. "
            "Write to a copy of it, or export without gradients."
            f"{happened_at(record.written_at)}"
        )
    if record.begins:
        raise RuntimeError(
            f"the program calls requires_grad_() on {name}. An exported graph cannot. "
            "Do that before the export."
        )
    if record.hooks:
        raise RuntimeError(
            f"the program registers a hook on {name}. An exported graph cannot. "
            "Register it on the caller's tensor."
        )


def _refuse_writes_to_shared_memory(
    boundary: Boundary, examples: Sequence[object], names: Sequence[str]
) -> None:
    """Refuse writes to inputs that share memory. The other input would not see the new values."""
    for group in sharing(examples):
        lines = [
            boundary.inputs[index].written_at
            for index in group.members
            if boundary.inputs[index].written
        ]
        if not lines:
            continue
        how = "duplicated" if group.identical else "aliased"
        shared = " and ".join(names[index] for index in group.members)
        raise RuntimeError(
            f"Encountered {how} inputs that are mutated in the graph: {shared} share "
            "memory, and the program writes to it. Pass one of them, or a copy."
            f"{happened_at(lines[0])}"
        )


def named(joint: Joint, n_inputs: int, prefix: str = "arg{}_1") -> list[fx.Node]:
    """Return the placeholders of the inputs, with the names that torch gives them."""
    placeholders = joint.module.graph.find_nodes(op="placeholder")[:n_inputs]
    for index, node in enumerate(placeholders):
        node._rename(prefix.format(index))
        node.target = node.name
    joint.module.recompile()
    return placeholders


def output_names(joint: Joint) -> list[str | None]:
    """Return the name of each result of the graph; None for a constant."""
    results = results_of(joint.module.graph)
    return [result.name if isinstance(result, fx.Node) else None for result in results]


def _abstraction_of(
    mod: torch.nn.Module, leaves: Sequence[object], dynamic: bool | None
) -> tuple[bool, Abstraction | None]:
    """Return whether sizes are symbols, and what makes abstract values."""
    mode = fake_mode_of(leaves)
    # the values of a traced module are of the mode in which it was traced
    if mode is None and isinstance(mod, fx.GraphModule):
        mode = fake_mode_of([node.meta.get("val") for node in mod.graph.nodes])
    if mode is None:
        return bool(dynamic), None
    return False, Given(mode)


def _loss_of(trace_joint: bool, output_loss_index: int | None) -> Loss | None:
    """Return the loss of a joint graph. Another graph has none, whatever the index."""
    if not trace_joint:
        return None
    if output_loss_index is None:
        raise RuntimeError(
            "trace_joint=True needs output_loss_index, the number of the result that is the loss"
        )
    return Loss(output_loss_index)


@naming_line()
def aot_export_module(
    mod: torch.nn.Module,
    args: Sequence[object],
    *,
    decompositions: Table | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    kwargs: Mapping[str, object] | None = None,
) -> tuple[fx.GraphModule, GraphSignature]:
    """Return the graph of ``mod`` on ``args`` and what its inputs and outputs are, as
    ``torch._functorch.aot_autograd.aot_export_module``.

    >>> model = torch.nn.BatchNorm1d(2)
    >>> graph, signature = aot_export_module(model, (torch.ones(3, 2),), trace_joint=False)
    >>> list(signature.buffers_to_mutate.values())
    ['running_mean', 'running_var', 'num_batches_tracked']

    The graph takes parameters, buffers and the leaves of the arguments. It writes to nothing: the
    new values of what ``mod`` writes to are its first results. With ``trace_joint`` the gradients
    of result ``output_loss_index`` come last: of every parameter and argument that requires grad. A
    shared parameter is an input under each of its names, and each has the gradient of its own uses.
    ``pre_dispatch``: a graph to differentiate later, with switches of the grad mode as calls, and
    with convolutions, ``linear``, ``matmul``, normalizations and attention whole.
    ``dynamic_shapes``: whether sizes are symbols. ``mod`` itself stays as it is.

    ``RuntimeError`` for changes of sizes or strides of an input, for a write to an input that
    requires grad or that shares memory with another, for results other than the loss that require
    grad, and for a parameter that the loss does not depend on."""
    if pre_dispatch and trace_joint:
        raise RuntimeError("pre_dispatch is not supported when trace_joint is True.")
    # the leaves: parameters, buffers, and those of the arguments
    loss = _loss_of(trace_joint, output_loss_index)
    params, buffers = state_of(mod)
    state = {**params, **buffers}
    refuse_fake_state(state, args)
    user, in_spec = pytree.tree_flatten((tuple(args), kwargs or {}))
    leaves = [*state.values(), *user]
    lifted, n = of_state(mod, list(state)), len(state)

    def call(*values: object) -> object:
        """Call the module with these leaves as its state and arguments."""
        positional, keywords = pytree.tree_unflatten(list(values[n:]), in_spec)
        return lifted(*values[:n], *positional, **keywords)

    whole_spec = pytree.tree_structure(((*[0] * n, *args), kwargs or {}))
    names = [
        *(f"parameter or buffer {name!r}" for name in state),
        *(f"argument {index}" for index in range(len(user))),
    ]
    dynamic, abstraction = _abstraction_of(mod, leaves, dynamic_shapes)
    if pre_dispatch:
        return _export_before_dispatch(
            call, leaves, names, (list(params), list(buffers)), whole_spec, decompositions, dynamic
        )
    joint = captured(
        call,
        leaves,
        names,
        wanted=needs_gradients(leaves, trace_joint),
        loss=loss,
        decompositions=decompositions,
        dynamic=dynamic,
        abstraction=abstraction,
        program=mod,
    )
    refuse_missing_gradients(joint, names)
    placeholders = named(joint, len(leaves))
    _return_tuple(joint)
    return joint.module, _signature(
        joint, placeholders, list(params), list(buffers), whole_spec, loss
    )


def _export_before_dispatch(
    call: Callable[..., object],
    leaves: Sequence[object],
    names: Sequence[str],
    state: tuple[list[str], list[str]],
    in_spec: pytree.TreeSpec,
    decompositions: Table | None,
    dynamic: bool,
) -> tuple[fx.GraphModule, GraphSignature]:
    """Return the graph of a trace before dispatch, and its signature."""
    joint = traced_before_dispatch(call, list(map(plain, leaves)), decompositions, dynamic)
    _refuse_writes(joint, list(map(plain, leaves)), names)
    placeholders = named(joint, len(leaves))
    return joint.module, _signature(joint, placeholders, *state, in_spec, None)


def _return_tuple(joint: Joint) -> None:
    """Let the graph return a tuple, as graphs of torch do, in place of a list."""
    output = joint.module.graph.output_node()
    results = results_of(joint.module.graph)
    output.args = (tuple(results),)
    joint.module.recompile()


def refuse_missing_gradients(joint: Joint, names: Sequence[str]) -> None:
    """Raise if the loss does not depend on an input that requires grad."""
    results = results_of(joint.module.graph)
    gradients = results[joint.n_forward :]
    for i, gradient in zip(joint.boundary.differentiated, gradients, strict=True):
        if gradient is None:
            raise RuntimeError(
                f"the loss does not depend on {names[i]}, which requires grad. "
                "Use it, or call requires_grad_(False) on it."
            )


def _signature(
    joint: Joint,
    placeholders: Sequence[fx.Node],
    params: list[str],
    buffers: list[str],
    in_spec: pytree.TreeSpec,
    loss: Loss | None,
) -> GraphSignature:
    """Return the signature of a joint graph."""
    inputs = [placeholder.name for placeholder in placeholders]
    outputs = output_names(joint)
    n_params, n_state = len(params), len(params) + len(buffers)
    owners = [*params, *buffers, *inputs[n_state:]]
    written = joint.boundary.written
    changed = {str(output): i for output, i in zip(outputs, written, strict=False)}
    user = outputs[len(written) : joint.n_forward]
    # gradients come after the results, in the order of the inputs
    backward = None
    if loss is not None:
        differentiated = joint.boundary.differentiated
        pairs = zip(outputs[joint.n_forward :], differentiated, strict=True)
        gradients = {str(output): i for output, i in pairs}
        backward = BackwardSignature(
            gradients_to_parameters=_owners_within(range(n_params), gradients, owners),
            gradients_to_user_inputs=_owners_within(
                range(n_params, len(owners)), gradients, owners
            ),
            loss_output=str(user[leaf_of(joint.out_spec, loss.number)]),
        )
    return GraphSignature(
        parameters=params,
        buffers=buffers,
        user_inputs=inputs[n_state:],
        user_outputs=user,
        inputs_to_parameters=dict(zip(inputs, params, strict=False)),
        inputs_to_buffers=dict(zip(inputs[n_params:], buffers, strict=False)),
        buffers_to_mutate=_owners_within(range(n_params, n_state), changed, owners),
        parameters_to_mutate=_owners_within(range(n_params), changed, owners),
        user_inputs_to_mutate=_owners_within(range(n_state, len(owners)), changed, owners),
        in_spec=in_spec,
        out_spec=joint.out_spec,
        backward_signature=backward,
    )


def _owners_within(
    inputs: range, input_of: Mapping[str, int], owners: Sequence[str]
) -> dict[str, str]:
    """Return whose value each output has, by its name, as far as that is one of ``inputs``.
    ``input_of``: the number of the input. ``owners``: the names of the inputs."""
    return {output: owners[i] for output, i in input_of.items() if i in inputs}


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
    joint = captured(
        func,
        args,
        names,
        wanted=wanted,
        decompositions=decompositions,
        abstraction=None if mode is None else Given(mode),
        program=func,
    )
    if joint.boundary.written:
        changed = ", ".join(names[i] for i in joint.boundary.written)
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
    named(joint, len(args))
    _return_tuple(joint)
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
    outs, grads = list(results[: joint.n_forward]), results[joint.n_forward :]
    # an input without a gradient has None in its slot
    full: list[Any] = [None] * n_inputs
    for i, grad in zip(joint.boundary.differentiated, grads, strict=True):
        full[i] = grad
    output.args = ([*outs, *full],)
    in_spec = pytree.tree_structure((([0] * n_inputs, [0] * joint.boundary.n_tangents), {}))
    out_spec = pytree.tree_structure(([0] * len(outs), [0] * n_inputs))
    graph.set_codegen(PyTreeCodeGen(PyTreeInfo(["primals", "tangents"], in_spec, out_spec)))
    joint.module.recompile()
    return joint.module
