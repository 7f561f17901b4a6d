"""Rewrite a graph before Inductor compiles it.

Layers of an LSTM get ops that know the sizes of their results. Numbers that the graph reads of
tensors become tensors. Arguments that the program writes to are written to at the end.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...seam.graph_walks import results_of
from ...torch_private.dispatcher import OpOverload
from ...trace.number_reads import number_of, on_side, real_power
from .placing import Destination
from .replacing import shown

# --- layers of an LSTM ----------------------------------------------------------------------------
#
# Inductor must know how much memory each result takes, and may lay out arguments in other ways.
#
# The kernel of ``aten.mkldnn_rnn_layer`` chooses the size of its workspace, which the backward pass
# reads. Torch's abstract kernel says that it has no elements. Both kernels read their arguments as
# if these were contiguous. The ops of this section say the size that the trace has seen, and make
# arguments contiguous.

aten = torch.ops.aten
_LAYER: Any = aten.mkldnn_rnn_layer.default
_BACKWARD: Any = aten.mkldnn_rnn_layer_backward.default
_LIBRARY = torch.library.Library("torch_transform_matrix", "FRAGMENT")


def _schema(func: OpOverload, *more: str) -> str:
    """Write the schema of an op with ``more`` parameters, as a library reads it."""
    types = [
        (
            str(argument.type).replace("List[int]", "int[]").replace("Optional[Tensor]", "Tensor?"),
            argument.name,
        )
        for argument in func._schema.arguments
    ]
    parameters = ", ".join([*(f"{kind} {name}" for kind, name in types), *more])
    return f"({parameters}) -> ({', '.join(['Tensor'] * len(func._schema.returns))})"


def _contiguous(args: tuple[object, ...]) -> list[Any]:
    """Return ``args`` with contiguous tensors."""
    return [
        argument.contiguous() if isinstance(argument, torch.Tensor) else argument
        for argument in args
    ]


def _layer(*args: object) -> object:
    """Run a layer, and return a workspace of the size that is the last argument."""
    *arguments, size = args
    out, *states, workspace = _LAYER(*_contiguous(tuple(arguments)))
    # There is none without grad mode. In grad mode there is one even where no backward pass reads
    # it, and Inductor compares results that nobody reads too.
    if workspace is None or not size:
        workspace = out.new_empty(0, dtype=torch.uint8)
    return out, *states, workspace


def _abstract_layer(*args: object) -> object:
    """Return results of a layer without elements, the workspace of the size that is asked for."""
    *results, workspace = _LAYER(*_contiguous(args[:-1]))
    return *results, workspace.new_empty(args[-1])


def _define(
    name: str, schema: str, kernel: Callable[..., object], abstract: Callable[..., object]
) -> None:
    """Define an op of this project, with its kernel and its abstract kernel."""
    _LIBRARY.define(name + schema)
    _LIBRARY.impl(name, kernel, "CPU")
    _LIBRARY.impl(name, abstract, "Meta")


def _layer_backward(*args: object) -> object:
    """Run the derivative of a layer, on contiguous arguments."""
    return _BACKWARD(*_contiguous(args))


_define("lstm_layer", _schema(_LAYER, "int workspace"), _layer, _abstract_layer)
_define("lstm_layer_backward", _schema(_BACKWARD), _layer_backward, _layer_backward)


def for_inductor(
    node: fx.Node, target: object, args: tuple[object, ...]
) -> tuple[object, tuple[Any, ...]]:
    """Return the target and arguments of call ``target(*args)`` of ``node``.

    They are an op of this module if the call is a layer. ``RuntimeError`` for a layer whose sizes
    are symbols: a trace on abstract values does not see the workspace.
    """
    if target is _BACKWARD:
        return torch.ops.torch_transform_matrix.lstm_layer_backward.default, args
    if target is not _LAYER:
        return target, args
    values = [value for value in node.meta["val"] if value is not None]
    sizes: list[object] = []
    for value in values:
        sizes += value.shape
    if any(type(size) is not int for size in sizes):
        raise RuntimeError(
            f"{target}, a layer of an LSTM, has a workspace of unknown size unless sizes are "
            "fixed: say dynamic=False"
        )
    # the workspace is the fourth result; there is none without grad mode
    n_elements = 0
    if len(values) > 3:
        n_elements = values[3].numel()
    return torch.ops.torch_transform_matrix.lstm_layer.default, (*args, n_elements)


# --- numbers that a graph reads of tensors --------------------------------------------------------
#
# Inductor knows no arithmetic of Python.
#
#     n = item(step); x - 0.1 * n        # becomes x - 0.1 * step.double()
#
# The new tensors have no dimensions and double precision, as Python's numbers. So results agree
# with those of :mod:`.replay` as far as rounding goes.

_FUNCTIONS: dict[Callable[..., object], Callable[..., torch.Tensor]] = {
    min: torch.minimum,
    max: torch.maximum,
    math.sqrt: torch.sqrt,
    math.exp: torch.exp,
    math.log: torch.log,
    real_power: operator.pow,  # of tensors, so that what would be complex is NaN
}


def _addcmul(x: Any, a: object, b: object, *, value: Any) -> Any:
    return x + value.to(x.dtype) * a * b


def _addcdiv(x: Any, a: object, b: object, *, value: Any) -> Any:
    return x + value.to(x.dtype) * a / b


_OF_TENSORS: dict[object, Callable[..., torch.Tensor]] = {
    aten.add.Tensor: lambda x, y, alpha=1: x + alpha * y,
    aten.sub.Tensor: lambda x, y, alpha=1: x - alpha * y,
    aten.mul.Tensor: lambda x, y: x * y,
    aten.div.Tensor: lambda x, y: x / y,
    aten.mul.Scalar: lambda x, y: x * y,
    aten.div.Scalar: lambda x, y: x / y,
    aten.pow.Tensor_Scalar: lambda x, y: aten.pow.Tensor_Tensor(x, y.to(x.dtype)),
    aten.lerp.Scalar: lambda x, y, weight: aten.lerp.Tensor(x, y, weight.to(x.dtype)),
    aten.addcmul.default: _addcmul,
    aten.addcdiv.default: _addcdiv,
    aten.fill.Scalar: lambda x, value: aten.fill.Tensor(x, value.to(x.dtype)),
}
"""What an op computes, where one of its numbers is a tensor."""


def _is_number(node: object) -> bool:
    """Return whether ``node`` is a number that the graph reads of tensors, or computes of such."""
    return isinstance(node, fx.Node) and number_of(node.meta.get("val")) is not None


def numbers_of(module: fx.GraphModule) -> list[int]:
    """List the results of ``module`` that are numbers which it has read from tensors."""
    results = results_of(module.graph)
    return [index for index, result in enumerate(results) if _is_number(result)]


def branches_of(module: fx.GraphModule) -> list[fx.Node]:
    """List the calls by which ``module`` asks for the side of a branch. Compiled code returns the
    numbers on which they branch, as :class:`NumberTensors` does, behind all other results."""
    return [node for node in module.graph.nodes if node.target is on_side]


def _equal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape != y.shape:
        return torch.zeros((), dtype=torch.bool)
    return (x == y).all()


_READS: dict[object, Callable[..., torch.Tensor]] = {
    aten._local_scalar_dense.default: lambda x: x.double(),
    aten.equal.default: _equal,
    aten.allclose.default: lambda *args, **kwargs: torch.isclose(*args, **kwargs).all(),
}
"""What a call that reads a number of tensors computes, as a tensor."""


def _refuse_integer(node: fx.Node) -> None:
    """Raise if ``node`` is an integer that the graph reads of tensors: no tensor of double
    precision stands for that."""
    number = number_of(node.meta.get("val"))
    if number is not None and number.kind is int:
        raise RuntimeError(
            f"{node.target} gives an integer that the program has read of a tensor by item(), "
            "which only the replay knows"
        )


class NumberTensors(fx.Interpreter):
    """Run a graph with a tensor in place of each number that it reads.

    ``asked``: the numbers of the last run on which the graph branches.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        # torch would print the graph at an error, and the numbers in it have no text
        self.extra_traceback = False
        self.asked: list[torch.Tensor] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
        """Call ``target``, by a function of tensors if a number among its arguments is one."""
        node = self._node
        if target is on_side:
            self.asked.append(args[0])
            return None
        _refuse_integer(node)
        if _is_number(node) and target in _READS:
            return _READS[target](*args, **kwargs)
        if not any(map(_is_number, node.all_input_nodes)):
            target, args = for_inductor(node, target, args)
            return super().call_function(target, args, kwargs)
        # Python's arithmetic of a number becomes that of a tensor without dimensions
        if not isinstance(target, OpOverload):
            tensors = [
                argument
                if isinstance(argument, torch.Tensor)
                else torch.scalar_tensor(argument, dtype=torch.float64)
                for argument in args
            ]
            return _FUNCTIONS.get(target, target)(*tensors)
        if target not in _OF_TENSORS:
            raise RuntimeError(
                f"{target} takes a number that the program has read of a tensor by item(), "
                "which only the replay knows"
            )
        return _OF_TENSORS[target](*args, **kwargs)

    def run_node(self, node: fx.Node) -> object:
        """Note the node for `call_function`, and run it."""
        self._node = node
        return super().run_node(node)


# --- writes at the end of a graph -----------------------------------------------------------------
#
# A graph computes the new value of an argument in the argument itself.
#
#     x1 = x + 1; return [x1]        # becomes x1 = x + 1; x.copy_(x1); return [None]
#
# Inductor leaves out the copy where nothing reads the former value any more. See :mod:`.placing`
# for what the replay does instead.


def write_at_the_end(graph: fx.Graph, wanted: Sequence[Destination]) -> dict[int, int]:
    """Let ``graph`` write new values to its arguments, where no result shows their memory.

    Return for each such argument how many writes of the program the one write stands for.
    """
    inputs = graph.find_nodes(op="placeholder")
    output = graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    placed: dict[int, int] = {}
    for destination in wanted:
        value, target = results[destination.result], inputs[destination.argument]
        views = shown(target)
        if not isinstance(value, fx.Node) or results.count(value) != 1:
            continue
        if any(result in views for result in results) or _is_lazy(target):
            continue
        with graph.inserting_before(output):
            graph.call_function(torch.ops.aten.copy_.default, (target, value)).meta["val"] = (
                target.meta["val"]
            )
        results[destination.result] = None
        placed[destination.argument] = destination.counted
    output.args = (results,)
    return placed


def _is_lazy(node: fx.Node) -> bool:
    """Return whether ``node`` shows its memory conjugated or negated."""
    return bool(node.meta["val"].is_conj() or node.meta["val"].is_neg())
