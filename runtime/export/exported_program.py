"""Export a program as a ``torch.export.ExportedProgram``, which torch saves, loads and runs
without this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)

from ..aot.calls.simplified import plain
from ..aot.capture.joint import Joint
from ..aot.capture.outputs import leaf_of
from ..func.functional_call import functional_call
from ..seam.graph_walks import results_of
from ..torch_private.dispatcher import OpOverload
from ..torch_private.native_tensors import make_subclass
from ..torch_private.pytrees import pytree
from ..trace.error_lines import naming_line
from ..trace.provenance import happened_at, made_at, origin_of
from ..trace.symbols import SYMBOLIC
from .dims import ExportedSizes
from .dynamic_shapes import parameters_of, specs_of
from .joint_graphs import Loss, capture_joint, needs_gradients, refuse_missing_gradients

aten = torch.ops.aten


class Exported(ExportedProgram):
    """An exported program. Its ``module()`` also refuses ``1.0`` and ``True`` for the constant 1. A
    loaded program does not."""

    def module(self, check_guards: bool = True) -> fx.GraphModule:
        """Return the program as a module with its parameters and buffers."""
        module = super().module(check_guards)
        assert self.example_inputs is not None
        examples = pytree.tree_leaves(self.example_inputs)
        structure = self.call_spec.in_spec

        def check(_: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            """Raise for a constant of another type. Torch compares by ``==``."""
            leaves, spec = pytree.tree_flatten((args, kwargs))
            if spec != structure:
                return  # torch refuses it
            for index, (value, example) in enumerate(zip(leaves, examples, strict=True)):
                if not isinstance(example, torch.Tensor) and type(value) is not type(example):
                    raise RuntimeError(
                        f"argument {index} was {example!r} at export and is a constant "
                        f"of the program; got {value!r}"
                    )

        module.register_forward_pre_hook(check, with_kwargs=True)
        return module


@naming_line()
def export(
    f: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: object = None,
    dynamic: bool = False,
    decompositions: Mapping[OpOverload, Callable[..., object]] | None = None,
    output_loss_index: int | None = None,
) -> ExportedProgram:
    """Return ``f``, a module or a function, on ``args`` as a ``torch.export.ExportedProgram``.

    >>> program = export(torch.nn.Linear(2, 1), (torch.ones(3, 2),))
    >>> program.graph_signature.parameters
    ('weight', 'bias')
    >>> program.module()(torch.zeros(3, 2)).shape
    torch.Size([3, 1])

    Sizes are constants. ``dynamic_shapes`` makes them free, by ``torch.export.Dim`` as in
    ``torch.export.export``; ``dynamic`` stands for ``Dim.AUTO`` everywhere. Parameters and buffers
    of a module are those of the program, and ``f`` itself stays as it is. A write to a buffer or an
    argument is an output of the graph, which ``module()`` carries out. Tensors that a function
    closes over are constants. So is what the program finds in Python's state: attributes, lists,
    globals. What it changes there is put back, and a warning names it.

    ``output_loss_index``: the program is one of training. It gives the gradients of this result
    too: ``module()`` returns (results, gradients by name of a parameter or input). A parameter with
    two names has one gradient.

    ``ValueError`` if the program needs more of a size than its Dim says. ``RuntimeError`` for what
    a graph cannot do, such as a change of an argument's sizes in place.
    """
    kwargs = dict(kwargs or {})
    inputs = _Leaves(f, [*args], kwargs)
    if output_loss_index is not None and not isinstance(f, torch.nn.Module):
        raise TypeError(
            "a program of training is exported from a module, whose parameters have the gradients"
        )
    # which sizes are symbols; parameters and buffers have none
    if dynamic:
        dynamic_shapes = list(map(_all_automatic, (*args, *kwargs.values())))
    loss = None
    if output_loss_index is not None:
        loss = Loss(output_loss_index)
    sizes = None
    if dynamic_shapes is not None:
        specs = [*({} for _ in inputs.state), *specs_of(f, args, kwargs, dynamic_shapes)]
        sizes = ExportedSizes(specs, inputs.described)
    joint = capture_joint(
        inputs.call,
        inputs.leaves,
        inputs.described,
        wanted=needs_gradients(inputs.leaves, loss is not None),
        loss=loss,
        program=f,
        decompositions=decompositions,
        abstraction=sizes,
    )
    refuse_missing_gradients(joint, inputs.described)
    return _Container(joint, inputs, loss).program(sizes)


def _all_automatic(x: object) -> object:
    """Return ``Dim.AUTO`` for each dimension of the tensors in a tree of lists, tuples and
    dicts."""
    if isinstance(x, torch.Tensor):
        return dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO)
    if isinstance(x, Mapping):
        return {key: _all_automatic(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return list(map(_all_automatic, x))
    return None


class _Leaves:
    """A program and its arguments as one list of leaves: parameters, buffers, then the leaves
    of the arguments.

    ``state``: name and tensor of each parameter and buffer, a shared one under its first name.
    ``described``: the leaves in words, for errors.
    """

    def __init__(
        self, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        self.function = function
        self.params: dict[str, torch.Tensor] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        if isinstance(function, torch.nn.Module):
            self.params = dict(function.named_parameters())
            self.buffers = dict(function.named_buffers())
        self.state = {**self.params, **self.buffers}
        paths, self.in_spec = pytree.tree_flatten_with_path((tuple(args), kwargs))
        self.user = [x for _, x in paths]
        self.leaves = [*self.state.values(), *self.user]
        self.names = _names(function, [path for path, _ in paths])
        # a path begins with 0 for args or 1 for kwargs, which the user has not written
        self.described = [
            *(f"parameter or buffer {name!r}" for name in self.state),
            *(f"argument {pytree.keystr(path[1:])}" for path, _ in paths),
        ]
        self.args = pytree.tree_map(plain, (tuple(args), kwargs))

    def call(self, *values: Any) -> Any:
        """Call the program with ``values`` in place of the leaves."""
        count = len(self.state)
        args, kwargs = pytree.tree_unflatten(list(values[count:]), self.in_spec)
        if not isinstance(self.function, torch.nn.Module):
            return self.function(*args, **kwargs)
        state = dict(zip(self.state, values[:count], strict=True))
        return functional_call(self.function, state, args, kwargs)

    def other_names(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers under each name but the first."""
        if not isinstance(self.function, torch.nn.Module):
            return {}
        named = (
            *self.function.named_parameters(remove_duplicate=False),
            *self.function.named_buffers(remove_duplicate=False),
        )
        return {name: tensor for name, tensor in named if name not in self.state}

    def persistent(self, buffer: str) -> bool:
        """Return whether the state dict has the buffer of that name."""
        assert isinstance(self.function, torch.nn.Module)
        path, _, name = buffer.rpartition(".")
        return name not in self.function.get_submodule(path)._non_persistent_buffers_set

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the program's state: parameters and persistent buffers, plain ones, a shared one
        under each of its names."""
        if not isinstance(self.function, torch.nn.Module):
            return {}
        # by identity, as a shared tensor has to be one tensor after loading, too
        plain_tensors: dict[int, Any] = {}
        return {
            name: plain_tensors.setdefault(id(tensor), _plain_parameter(tensor))
            for name, tensor in self.function.state_dict(keep_vars=True).items()
        }


def _plain_parameter(tensor: object) -> object:
    """Return ``tensor`` as a tensor of torch, and a parameter as a parameter."""
    if isinstance(tensor, torch.nn.Parameter) and plain(tensor) is not tensor:
        # torch's own constructor may make one of the session
        return make_subclass(torch.nn.Parameter, plain(tensor).detach(), tensor.requires_grad)
    return plain(tensor)


def _names(function: Callable[..., object], paths: Sequence[pytree.KeyPath]) -> list[str]:
    """Return names for the placeholders of the arguments: ``x``, and ``x_0`` for an item of
    ``x``."""
    try:
        parameters = [
            parameter.name
            for parameter in parameters_of(function).values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):  # a callable without a signature
        parameters = []
    names = []
    for path in paths:
        parts: list[Any] = [getattr(key, "idx", getattr(key, "key", key)) for key in path]
        _, first, *rest = parts  # the first part is 0 for args, 1 for kwargs
        names.append("_".join([_name_of_argument(first, parameters), *map(str, rest)]))
    return names


def _name_of_argument(key: str | int, parameters: Sequence[str]) -> str:
    """Return the name of a keyword or a positional argument. ``parameters``: the names of the
    parameters. Further positional arguments are items of ``*args``."""
    if isinstance(key, str):
        return key
    if key < len(parameters):
        return parameters[key]
    return f"args_{key}"


def _refuse_writes_in_place(graph: fx.Graph) -> None:
    """Raise for a call that writes to its argument. A capture leaves those to memory that shows an
    element twice, such as ``x.unfold(0, 2, 1)``."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            raise RuntimeError(
                f"{node.target} writes to its argument, and an exported graph cannot: the argument "
                "shows an element twice, or the op has no functional form. "
                "Compute the new elements with an op that returns them."
                f"{happened_at(origin_of(node))}"
            )


class _Container:
    """Put a captured graph into the form of an ``ExportedProgram``."""

    def __init__(self, joint: Joint, given: _Leaves, loss: Loss | None) -> None:
        self.joint, self.given, self.loss = joint, given, loss
        self.module = joint.module
        self.graph = joint.module.graph
        self.constants: dict[str, Any] = {}

    def program(self, sizes: ExportedSizes | None) -> Exported:
        """Return the exported program. ``sizes``: the dynamic sizes, None if all are constants."""
        ranges: dict[Any, Any] = {}
        if sizes is not None:
            ranges = sizes.ranges()
            sizes.write_conditions(self.graph)
            ranges |= sizes.ranges_of_values(self.graph)
        _describe_sizes(self.graph)
        _refuse_writes_in_place(self.graph)
        inputs, placeholders = self._inputs()
        self._check_layouts(placeholders)
        outputs = self._outputs(placeholders)
        call = ModuleCallSignature([], [], self.given.in_spec, self._out_spec())
        program = Exported(
            root=self.module,
            graph=self.graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict=self.given.state_dict(),
            range_constraints=ranges,
            module_call_graph=[ModuleCallEntry("", call)],
            example_inputs=self.given.args,
            constants=self.constants,
        )
        program._guards_code = []  # the graph has these conditions
        return program

    def _inputs(self) -> tuple[list[InputSpec], list[fx.Node]]:
        """Return the records of the inputs, and the placeholders of parameters, buffers and
        arguments. Constants become inputs before these."""
        given = self.given
        placeholders = self.graph.find_nodes(op="placeholder")
        n_state = len(given.state)
        of_state = dict(zip(given.state, placeholders, strict=False))
        specs = []
        for name, node in of_state.items():
            is_parameter = name in given.params
            self._rename(node, _placeholder_name(name, is_parameter))
            specs.append(self._state_spec(node, name, given.state[name], is_parameter))
        # torch wants parameters and buffers first, then constants, then what the user passes
        first = next(node for node in self.graph.nodes if node not in placeholders[:n_state])
        specs += self._other_names(of_state, first)
        specs += self._lift_constants(first)
        for node, name, x in zip(placeholders[n_state:], given.names, given.user, strict=True):
            self._rename(node, name)
            if not isinstance(x, torch.Tensor):
                node.meta["val"] = x
            specs.append(InputSpec(InputKind.USER_INPUT, _argument(node), None))
        return specs, placeholders

    def _state_spec(
        self, node: fx.Node, name: str, tensor: object, is_parameter: bool
    ) -> InputSpec:
        """Return the record of an input that is a parameter or a buffer."""
        argument = TensorArgument(node.name)
        if is_parameter:
            return InputSpec(InputKind.PARAMETER, argument, name, None)
        persistent = self.given.persistent(name)
        if not persistent:  # no state dict has it
            self.constants[name] = plain(tensor)
        return InputSpec(InputKind.BUFFER, argument, name, persistent)

    def _other_names(self, nodes: Mapping[str, fx.Node], before: fx.Node) -> list[InputSpec]:
        """Add inputs that the graph does not use: other names of shared parameters and buffers. A
        program has a state dict by its inputs. ``nodes``: the placeholders by first name."""
        specs = []
        for name, tensor in self.given.other_names().items():
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            # the first name of the same tensor, whose input the graph uses
            owner = next(first for first, shared in self.given.state.items() if shared is tensor)
            with self.graph.inserting_before(before):
                node = self.graph.placeholder(_placeholder_name(name, is_parameter))
            node.meta = dict(nodes[owner].meta)
            specs.append(self._state_spec(node, name, tensor, is_parameter))
        return specs

    def _rename(self, node: fx.Node, name: str) -> None:
        """Rename a placeholder. Its target is the name of the parameter in generated code."""
        node._rename(name)
        node.target = node.name

    def _lift_constants(self, before: fx.Node) -> list[InputSpec]:
        """Turn the constants of the graph into inputs, before the node ``before``. Raise for one
        that is no tensor."""
        specs, lifted_from = [], []
        for node in self.graph.find_nodes(op="get_attr"):
            name = str(node.target)
            value = getattr(self.module, name)
            if isinstance(value, fx.GraphModule):
                continue
            if not isinstance(value, torch.Tensor):
                where = next(filter(None, map(made_at, node.users)), "")
                raise RuntimeError(
                    f"the program has a constant of type {type(value).__name__}, "
                    f"which a saved program cannot hold: {value!r}. Leave it out, or compute it "
                    f"from tensors.{where}"
                )
            with self.graph.inserting_before(before):
                lifted = self.graph.placeholder(f"c{name}")
            lifted.meta = node.meta
            node.replace_all_uses_with(lifted)
            lifted_from.append(node)
            self.constants[name] = plain(value).detach()
            specs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(lifted.name), name))
        for node in lifted_from:  # now, as one of them may be what the inputs are inserted before
            self.graph.erase_node(node)
        return specs

    def _check_layouts(self, placeholders: Sequence[fx.Node]) -> None:
        """Check dtype and device of each argument in the graph, and strides where the graph
        depends on them."""
        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        for node, x in zip(placeholders[len(self.given.state) :], self.given.user, strict=True):
            if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
                continue
            # most graphs are right for any strides, as the calls take tensors of any
            strides = None
            if _takes_memory_as_it_lies(node):
                strides = list(x.stride())
            with self.graph.inserting_before(first):
                self.graph.call_function(
                    aten._assert_tensor_metadata.default,
                    (node, None, strides, x.dtype),
                    {"device": x.device, "layout": x.layout},
                )

    def _outputs(self, placeholders: Sequence[fx.Node]) -> list[OutputSpec]:
        """Return the records of the outputs: new values, results, gradients."""
        joint, given = self.joint, self.given
        output = self.graph.output_node()
        results = results_of(self.graph)
        output.args = (tuple(results),)
        owners = [
            *given.state,
            *(placeholder.name for placeholder in placeholders[len(given.state) :]),
        ]
        # new values of what the program writes to
        specs = []
        for result, index in zip(results, joint.boundary.written, strict=False):
            specs.append(OutputSpec(self._kind_of_write(index), _argument(result), owners[index]))
        # results, one of which may be the loss
        loss = None
        if self.loss is not None:
            loss = leaf_of(joint.out_spec, self.loss.number)
        for number, result in enumerate(results[len(specs) : joint.n_forward]):
            kind = OutputKind.USER_OUTPUT
            if number == loss:
                kind = OutputKind.LOSS_OUTPUT
            specs.append(OutputSpec(kind, _argument(result), None))
        # gradients
        for result, index in zip(
            results[joint.n_forward :], joint.boundary.differentiated, strict=True
        ):
            specs.append(
                OutputSpec(self._kind_of_gradient(index), _argument(result), owners[index])
            )
        return specs

    def _kind_of_write(self, index: int) -> OutputKind:
        """Return what a new value of input ``index`` is. Parameters come first, then buffers."""
        if index < len(self.given.params):
            return OutputKind.PARAMETER_MUTATION
        if index < len(self.given.state):
            return OutputKind.BUFFER_MUTATION
        return OutputKind.USER_INPUT_MUTATION

    def _kind_of_gradient(self, index: int) -> OutputKind:
        """Return what a gradient of input ``index`` is."""
        if index < len(self.given.params):
            return OutputKind.GRADIENT_TO_PARAMETER
        return OutputKind.GRADIENT_TO_USER_INPUT

    def _out_spec(self) -> pytree.TreeSpec:
        """Return the tree of the results; of (results, gradients by name) if there is a loss."""
        if self.loss is None:
            return self.joint.out_spec
        names = [*self.given.state, *self.given.names]
        gradients = dict.fromkeys((names[index] for index in self.joint.boundary.differentiated), 0)
        results = pytree.tree_unflatten([0] * self.joint.out_spec.num_leaves, self.joint.out_spec)
        return pytree.tree_structure((results, gradients))


def _placeholder_name(name: str, is_parameter: bool) -> str:
    """Return how torch calls the placeholder of a parameter or buffer, such as ``p_0_weight``."""
    prefix = "p_" if is_parameter else "b_"
    return prefix + name.replace(".", "_")


def _argument(value: float | fx.Node | None) -> ArgumentSpec:
    """Return the record of an input or output of the graph, by the value that it has in the
    trace."""
    if not isinstance(value, fx.Node):
        return ConstantArgument("", value)
    traced = value.meta.get("val")
    if isinstance(traced, torch.Tensor):
        return TensorArgument(value.name)
    if isinstance(traced, SYMBOLIC):
        return SymIntArgument(value.name)
    return ConstantArgument(value.name, traced)


def _describe_sizes(graph: fx.Graph) -> None:
    """Note the value of each step of a computation of sizes, as torch's verifier demands."""
    for node in graph.nodes:
        # the trace has noted the values of ATen calls
        if node.op != "call_function" or "val" in node.meta:
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda node: node.meta["val"])
        # an op without a value is a check of a size, which returns nothing
        if isinstance(node.target, OpOverload):
            node.meta["val"] = None
        else:
            node.meta["val"] = node.target(*args, **kwargs)


def _takes_memory_as_it_lies(node: fx.Node) -> bool:
    """Return whether the graph reads the memory of an argument by strides that are constants of the
    program."""
    for user in node.users:
        func = user.target
        if func in (aten.as_strided.default, aten.as_strided_scatter.default):
            return True
        if _returns_view(func) and _takes_memory_as_it_lies(user):
            return True
    return False


def _returns_view(func: object) -> bool:
    """Return whether an op shares memory with an argument."""
    if not isinstance(func, OpOverload):
        return False
    return any(argument.alias_info is not None for argument in func._schema.arguments)
