"""Running a graph of ATen calls as straight Python: one line for each call, each tensor freed
after its last use.

Most of what a small call costs is the way to the kernel. An ``OpOverload`` converts its arguments
by a general schema; torch's own Python binding of the same op has a parser made for it and takes
little more than half the time. A binding stands for an overload only where it was seen to make
exactly that call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

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
    """Whether :func:`as_python` can run ``module``: its graph has calls of functions and
    attributes alone."""
    graph = module.graph
    return type(graph._codegen) is fx.graph.CodeGen and not any(
        n.op in ("call_module", "call_method") for n in graph.nodes
    )


def as_python(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The boxed function that runs ``module``'s graph, below torch's autograd.

    ``placed``, an attribute of the function: the numbers of the arguments that it writes new values
    to, and by how much their versions are behind then. See :mod:`.placing`. ``writes``: for each of
    them the number of the line that writes first.
    """
    graph, placed = rewritten(with_values(module).graph, module.meta.get(DESTINATIONS, ()))
    source = _Source(module)
    last_use: dict[fx.Node, fx.Node] = {}
    for n in reversed(graph.nodes):
        for used in n.all_input_nodes:
            last_use.setdefault(used, n)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    numbers = {n: i for i, n in enumerate(inputs)}
    lines = [
        f"[{', '.join(source.name(n) for n in inputs)}] = args",
        "args.clear()",
        "with below_autograd():",
    ]
    lines += _freed(n for n in inputs if n not in last_use)
    unpacked: set[fx.Node] = set()
    writes: dict[int, int] = {}
    origins: dict[int, Line] = {}  # by number of the line, of which the signature is the first
    for n in graph.nodes:
        for i in _written(n, numbers) if placed else ():
            writes.setdefault(i, len(lines) + 2)  # for Python the first line is 1
        if n.op == "output":
            lines.append(f"    return {source.text(n.args[0])}")
        elif n.op == "get_attr":
            lines.append(
                f"    {source.name(n)} = "
                f"{source.constant(operator.attrgetter(str(n.target)))}(module)"
            )
        elif n.op == "call_function" and n not in unpacked:
            items = _items(n)
            unpacked.update(items.values())
            if (origin := origin_of(n)) is not None:
                origins[len(lines) + 1] = origin
            func, args = shortest(n)
            given = [source.text(a) for a in args] + [
                f"{k}={source.text(a)}" for k, a in n.kwargs.items()
            ]
            names = (
                [source.name(items[i]) if i in items else "_" for i in range(len(n.meta["val"]))]
                if items
                else []
            )
            result = f"[{', '.join(names)}]" if items else source.name(n)
            lines.append(f"    {result} = {source.constant(func, _named(n))}({', '.join(given)})")
            lines += ["    del _"] if "_" in names else []
            lines += _freed(v for v in (items.values() or [n]) if v not in last_use)
            lines += _freed(u for u in n.all_input_nodes if last_use[u] is n)
    lines = ["def run(args):", *(f"    {line}" for line in lines)]
    run: Callable[[list[Any]], Any] = function(
        lines, "run", f"<replay of {type(module).__name__}>", source.names, origins
    )
    run._boxed_call, run.placed, run.writes = True, placed, writes  # type: ignore[attr-defined]
    return run


def _written(n: fx.Node, numbers: Mapping[fx.Node, int]) -> Iterator[int]:
    """The numbers of the inputs that the call ``n`` writes to. ``numbers``: those of each."""
    if not isinstance(n.target, OpOverload):
        return
    for i, a in enumerate(n.target._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            given: Any = n.args[i] if i < len(n.args) else n.kwargs.get(a.name)
            yield from (
                numbers[x]
                for x in (given if isinstance(given, (list, tuple)) else (given,))
                if x in numbers
            )


def _named(n: fx.Node) -> str:
    """How the name of the function begins that makes the call ``n``."""
    func: Any = n.target
    return f"{func._schema.name.split('::')[1]}_" if isinstance(func, OpOverload) else "call_"


def _freed(nodes: Iterable[fx.Node]) -> list[str]:
    names = ", ".join(_Source.name(n) for n in nodes)
    return [f"    del {names}"] if names else []


def _items(n: fx.Node) -> dict[int, fx.Node]:
    """The nodes that are the items of ``n``, by number, if nothing else uses ``n``."""
    items: dict[int, fx.Node] = {}
    for user in n.users:
        i: Any = user.args[1] if user.target is operator.getitem else None
        if type(i) is not int or i < 0 or i in items:
            return {}
        items[i] = user
    value = n.meta.get("val")
    return items if isinstance(value, (list, tuple)) and all(i < len(value) for i in items) else {}


class _Source:
    """Names and literals of the generated function. What has no literal is a global of it."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.names: dict[str, Any] = {"module": module, "below_autograd": below_autograd}
        self.known: dict[int, str] = {}  # by identity: a constant lives as long as `names`

    @staticmethod
    def name(n: fx.Node) -> str:
        return f"v_{n.name}"

    def constant(self, value: Any, stem: str = "c") -> str:
        name = self.known.get(id(value))
        if name is None:
            name = self.known[id(value)] = f"{stem}{len(self.known)}"
            self.names[name] = value
        return name

    def text(self, a: Any) -> str:
        if isinstance(a, fx.Node):
            return self.name(a)
        if isinstance(a, list):
            return f"[{', '.join(map(self.text, a))}]"
        if isinstance(a, tuple):
            return f"({''.join(self.text(b) + ', ' for b in a)})"
        if isinstance(a, slice):
            return f"slice({self.text(a.start)}, {self.text(a.stop)}, {self.text(a.step)})"
        if isinstance(a, dict):
            return f"{{{', '.join(f'{k!r}: {self.text(b)}' for k, b in a.items())}}}"
        return repr(a) if type(a) in (bool, int, str, type(None)) else self.constant(a)


def shortest(n: fx.Node) -> tuple[Callable[..., Any], Sequence[Any]]:
    """What runs the call ``n`` with the least on the way, and with which arguments: torch's
    Python binding, which reads a number sooner than a list of one, the overload's kernel, or the
    target as it is."""
    func = n.target
    if type(func) is not OpOverload:
        return func, n.args  # type: ignore[return-value]
    if func is _READ:
        return TensorBase.item, n.args
    value = n.meta.get("val") if func._schema.returns else None
    if func.namespace != "aten" or not (
        isinstance(value, (torch.Tensor, list, tuple)) or not func._schema.returns
    ):
        return func._op, n.args
    kwargs = example(n.kwargs)
    pattern = func, _pattern(example(n.args)), _pattern(kwargs)
    if pattern not in _SHORTEST:
        _SHORTEST[pattern] = _binding(func, n.args, kwargs, value)
    binding, short = _SHORTEST[pattern]
    return binding, _shortened(n.args) if short else n.args


# by op and form of the arguments: the shortest way to the kernel
_SHORTEST: dict[Hashable, tuple[Callable[..., Any], bool]] = {}


def _binding(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], value: Any
) -> tuple[Callable[..., Any], bool]:
    """What makes the call with the least on the way, and whether it takes a number
    for a list of one."""
    name = func._schema.name.split("::")[1]
    for namespace in _NAMESPACES:
        found: Any = getattr(namespace, name, None)
        for short in (True, False) if callable(found) else ():
            if Witness(value).sees_only(
                found, func, example(_shortened(args) if short else args), kwargs
            ):
                return found, short
    return func._op, False


def _shortened(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        a[0] if isinstance(a, list) and len(a) == 1 and type(a[0]) is int else a for a in args
    )


def _pattern(a: Any) -> Any:
    """What a binding knows arguments by: their types. A tensor without dimensions may be
    taken for a number."""
    if isinstance(a, torch.Tensor):
        return (torch.Tensor, a.dtype, a.requires_grad) if a.dim() == 0 else torch.Tensor
    if isinstance(a, (list, tuple)):
        return (type(a), *map(_pattern, a))
    if isinstance(a, dict):
        return tuple((k, _pattern(b)) for k, b in a.items())
    return a if a is None else type(a)
