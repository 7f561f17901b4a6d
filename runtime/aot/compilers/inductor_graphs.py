"""Numbers that a graph reads of tensors, as tensors: for compilers that know no
arithmetic of Python.

    n = item(step); x - 0.1 * n        # becomes x - 0.1 * step.double(), in tensors
                                       # without dimensions

They are of double precision, as Python's numbers. So results agree with those of :mod:`.replay` as
far as rounding goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ...trace.number_reads import number_of
from .recurrent_layers import for_inductor

aten = torch.ops.aten
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    min: torch.minimum,
    max: torch.maximum,
    math.sqrt: torch.sqrt,
    math.exp: torch.exp,
    math.log: torch.log,
}


def _addcmul(x: Any, a: Any, b: Any, *, value: Any) -> Any:
    return x + value.to(x.dtype) * a * b


def _addcdiv(x: Any, a: Any, b: Any, *, value: Any) -> Any:
    return x + value.to(x.dtype) * a / b


_OF_TENSORS: dict[Any, Callable[..., Any]] = {
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


def _is_number(n: Any) -> bool:
    return isinstance(n, fx.Node) and number_of(n.meta.get("val")) is not None


def numbers_of(module: fx.GraphModule) -> list[int]:
    """Which results of ``module`` are numbers that it has read of tensors."""
    results: Any = module.graph.output_node().args[0]
    return [i for i, r in enumerate(results) if _is_number(r)]


class NumberTensors(fx.Interpreter):
    """Runs a graph with a tensor for each number that it reads."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        node = self._node
        if _is_number(node) and target is aten._local_scalar_dense.default:
            return args[0].double()
        if not any(map(_is_number, node.all_input_nodes)):
            target, args = for_inductor(node, target, args)
            return super().call_function(target, args, kwargs)
        if not isinstance(target, torch._ops.OpOverload):
            tensors = [
                a if isinstance(a, torch.Tensor) else torch.scalar_tensor(a, dtype=torch.float64)
                for a in args
            ]
            return _FUNCTIONS.get(target, target)(*tensors)
        if target not in _OF_TENSORS:
            raise RuntimeError(
                f"{target} takes a number that the program has read of a tensor by item(), "
                "which only the replay knows"
            )
        return _OF_TENSORS[target](*args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        self._node = n
        return super().run_node(n)
