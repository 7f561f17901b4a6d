"""Run a graph of ATen calls as straight Python: one line for each call, each tensor freed after its
last use.

Most of what a small call costs is the way to the kernel. An ``OpOverload`` converts its arguments
by a general schema. Torch's own Python binding of the same op has a parser for just its arguments,
and takes little more than half the time. A binding stands for an overload only where a
:class:`.witness.Witness` has seen exactly that call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...seam.containers import items_of, written_arguments
from ...seam.graph_walks import last_users
from ...torch_private.dispatcher import OpOverload, below_autograd
from ...torch_private.native_functions import functions_of_nn, functions_of_torch
from ...torch_private.native_tensors import TensorBase
from ...trace.generated_code import function
from ...trace.graph_module import with_values
from ...trace.provenance import Line, origin_of
from .peephole import rewritten
from .placing import DESTINATIONS
from .witness import Witness, example

_NAMESPACES = (functions_of_torch, functions_of_nn, TensorBase)
# what `item` calls once it has asked that there is one element
_READ = torch.ops.aten._local_scalar_dense.default


def replayable(module: fx.GraphModule) -> bool:
    """Return whether :func:`as_python` can run ``module``: its graph has calls of functions and
    attributes alone."""
    graph = module.graph
    return type(graph._codegen) is fx.graph.CodeGen and not any(
        node.op in ("call_module", "call_method") for node in graph.nodes
    )


def as_python(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return the boxed function that runs the graph of ``module``, below torch's autograd.

    It has two attributes. ``placed``: the numbers of the arguments that it writes new values to,
    and by how much their versions are behind then. See :mod:`.placing`. ``writes``: for each of
    these arguments the number of the line that writes first.
    """
    graph, placed = rewritten(with_values(module).graph, module.meta.get(DESTINATIONS, ()))
    body = _Body(module, graph)
    numbers = {node: index for index, node in enumerate(body.inputs)}
    writes: dict[int, int] = {}
    for node in graph.nodes:
        if placed:
            for position in _inputs_written_by(node, numbers):
                writes.setdefault(position, len(body.lines) + 2)  # for Python the first line is 1
        body.add(node)
    lines = ["def run(args):", *(f"    {line}" for line in body.lines)]
    run: Callable[[list[Any]], Any] = function(
        lines, "run", f"<replay of {type(module).__name__}>", body.source.names, body.origins
    )
    run._boxed_call, run.placed, run.writes = True, placed, writes  # type: ignore[attr-defined]
    return run


class _Body:
    """Write the body of the generated function, line by line.

        [v_x, v_w] = args
        args.clear()
        with below_autograd():
            v_mul = mul_(v_x, v_w)
            del v_x, v_w
            return [v_mul]

    ``origins``: the user's lines, by number of the line of the function, of which the signature
    is the first.
    """

    def __init__(self, module: fx.GraphModule, graph: fx.Graph) -> None:
        self.source = _Source(module)
        self.inputs = graph.find_nodes(op="placeholder")
        self.origins: dict[int, Line] = {}
        self.last_use = last_users(graph)
        # items that the line of their call has unpacked
        self.unpacked: set[fx.Node] = set()
        self.lines = [
            f"[{', '.join(map(self.source.name, self.inputs))}] = args",
            "args.clear()",
            "with below_autograd():",
        ]
        self._free_unused(self.inputs)

    def add(self, node: fx.Node) -> None:
        """Add the lines of ``node``. A placeholder has none of its own."""
        if node.op == "output":
            self.lines.append(f"    return {self.source.text(node.args[0])}")
        elif node.op == "get_attr":
            get = self.source.constant(operator.attrgetter(str(node.target)))
            self.lines.append(f"    {self.source.name(node)} = {get}(module)")
        elif node.op == "call_function" and node not in self.unpacked:
            self._add_call(node)

    def _add_call(self, node: fx.Node) -> None:
        """Add the line of a call, and one that frees what is used last there."""
        items = _items(node)
        self.unpacked.update(items.values())
        # an error at this line of the generated code names the user's line
        origin = origin_of(node)
        if origin is not None:
            self.origins[len(self.lines) + 1] = origin
        func, args = shortest(node)
        arguments = list(map(self.source.text, args))
        arguments += [f"{name}={self.source.text(value)}" for name, value in node.kwargs.items()]
        call = f"{self.source.constant(func, _name_stem(node))}({', '.join(arguments)})"
        if items:
            self._unpack(call, items, len(node.meta["val"]))
        else:
            self.lines.append(f"    {self.source.name(node)} = {call}")
            self._free_unused([node])
        self._free(used for used in node.all_input_nodes if self.last_use[used] is node)

    def _unpack(self, call: str, items: Mapping[int, fx.Node], n_results: int) -> None:
        """Add the line of a ``call`` with several results. Unused ones are freed at once."""
        names = ["_"] * n_results
        for number, item in items.items():
            names[number] = self.source.name(item)
        self.lines.append(f"    [{', '.join(names)}] = {call}")
        # else the name would hold the last of them until the function returns
        if "_" in names:
            self.lines.append("    del _")
        self._free_unused(items.values())

    def _free_unused(self, nodes: Iterable[fx.Node]) -> None:
        """Free those of ``nodes`` that nothing uses, as soon as they are there."""
        self._free(node for node in nodes if node not in self.last_use)

    def _free(self, nodes: Iterable[fx.Node]) -> None:
        """Add a line that deletes the names of ``nodes``; none without nodes."""
        names = ", ".join(map(self.source.name, nodes))
        if names:
            self.lines.append(f"    del {names}")


def _inputs_written_by(node: fx.Node, numbers: Mapping[fx.Node, int]) -> Iterator[int]:
    """Yield the numbers of the inputs that the call ``node`` writes to.

    ``numbers``: those of all inputs.
    """
    if not isinstance(node.target, OpOverload):
        return
    for index, name in written_arguments(node.target._schema):
        value: Any = node.kwargs.get(name)
        if index < len(node.args):
            value = node.args[index]
        # some ops write to each tensor of a list
        yield from (numbers[item] for item in items_of((value,)) if item in numbers)


def _name_stem(node: fx.Node) -> str:
    """Return the prefix of the function's name that runs the call ``node``: ``mul_``."""
    func = node.target
    return f"{func._schema.name.split('::')[1]}_" if isinstance(func, OpOverload) else "call_"


def _items(node: fx.Node) -> dict[int, fx.Node]:
    """Return the nodes that are the items of ``node``, by number, if nothing else uses ``node``."""
    items: dict[int, fx.Node] = {}
    for user in node.users:
        if user.target is not operator.getitem:
            return {}
        position: Any = user.args[1]
        # an unpacked result has one name, and so one item
        if type(position) is not int or position < 0 or position in items:
            return {}
        items[position] = user
    value = node.meta.get("val")
    if not isinstance(value, (list, tuple)) or any(index >= len(value) for index in items):
        return {}
    return items


class _Source:
    """Write names and literals of the generated function. An object without literal is a global."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.names: dict[str, object] = {"module": module, "below_autograd": below_autograd}
        self.known: dict[int, str] = {}  # by identity: a constant lives as long as `names`

    @staticmethod
    def name(node: fx.Node) -> str:
        """Return the name of a node in the function."""
        return f"v_{node.name}"

    def constant(self, value: object, stem: str = "c") -> str:
        """Return the name of a global with ``value``, the same each time."""
        name = self.known.get(id(value))
        if name is None:
            name = self.known[id(value)] = f"{stem}{len(self.known)}"
            self.names[name] = value
        return name

    def text(self, argument: object) -> str:
        """Return ``argument`` as an expression."""
        if isinstance(argument, fx.Node):
            return self.name(argument)
        if isinstance(argument, list):
            return f"[{', '.join(map(self.text, argument))}]"
        # with a comma after each item, which makes a tuple of one item a tuple
        if isinstance(argument, tuple):
            return f"({''.join(self.text(item) + ', ' for item in argument)})"
        if isinstance(argument, slice):
            parts = (argument.start, argument.stop, argument.step)
            return f"slice({', '.join(map(self.text, parts))})"
        if isinstance(argument, dict):
            items = (f"{key!r}: {self.text(value)}" for key, value in argument.items())
            return f"{{{', '.join(items)}}}"
        # any other constant gets a name: an op, a dtype, a float, which may be nan
        if type(argument) in (bool, int, str, type(None)):
            return repr(argument)
        return self.constant(argument)


def shortest(node: fx.Node) -> tuple[Callable[..., object], Sequence[object]]:
    """Return the callable that runs the call ``node`` with the least overhead, and its arguments.

    It is torch's Python binding, which reads a number sooner than a list of one, or the kernel of
    the overload, or the target as it is.
    """
    func = node.target
    if type(func) is not OpOverload:
        return func, node.args  # type: ignore[return-value]
    if func is _READ:
        return TensorBase.item, node.args
    if func.namespace != "aten":
        return func._op, node.args
    value = None
    if func._schema.returns:
        value = node.meta.get("val")
        # a number is no answer that a witness could give
        if not isinstance(value, (torch.Tensor, list, tuple)):
            return func._op, node.args
    # the search runs the binding on examples, and takes long: once for each pattern of arguments
    kwargs = example(node.kwargs)
    pattern = func, _pattern(example(node.args)), _pattern(kwargs)
    if pattern not in _SHORTEST:
        _SHORTEST[pattern] = _binding(func, node.args, kwargs, value)
    binding, short = _SHORTEST[pattern]
    return binding, _unpack_lists_of_one(node.args) if short else node.args


# by op and form of the arguments: the shortest way to the kernel
_SHORTEST: dict[Hashable, tuple[Callable[..., object], bool]] = {}


def _binding(
    func: OpOverload, args: Sequence[object], kwargs: dict[str, object], value: object
) -> tuple[Callable[..., object], bool]:
    """Return the callable with the least overhead, and whether it takes a number for a list of
    one."""
    name = func._schema.name.split("::")[1]
    for namespace in _NAMESPACES:
        binding: Any = getattr(namespace, name, None)
        if not callable(binding):
            continue
        # the binding must make this call of ATen and no other one
        if Witness(value).sees_only(binding, func, example(_unpack_lists_of_one(args)), kwargs):
            return binding, True
        if Witness(value).sees_only(binding, func, example(args), kwargs):
            return binding, False
    return func._op, False


def _unpack_lists_of_one(args: Sequence[object]) -> tuple[object, ...]:
    """Return ``args`` with a number in place of each list of one integer."""
    return tuple(
        argument[0]
        if isinstance(argument, list) and len(argument) == 1 and type(argument[0]) is int
        else argument
        for argument in args
    )


def _pattern(argument: object) -> object:
    """Return the types by which a binding reads an argument.

    A binding may read a tensor without dimensions as a number, so its dtype counts.
    """
    if isinstance(argument, torch.Tensor):
        if argument.dim():
            return torch.Tensor
        return torch.Tensor, argument.dtype, argument.requires_grad
    if isinstance(argument, (list, tuple)):
        return (type(argument), *map(_pattern, argument))
    if isinstance(argument, dict):
        return tuple((key, _pattern(value)) for key, value in argument.items())
    if argument is None:
        return None
    return type(argument)
