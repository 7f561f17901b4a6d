"""Symbolic sizes in a graph: abstract inputs, size expressions as nodes, and the guards under which a graph may be replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Sizes(PythonReferenceAnalysis):
    """Arithmetic of sizes on the proxies of a graph; of what is here, torch's makes a sympy expression of the proxies or fails."""

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Any:
        return a / b

    @staticmethod
    def trunc_to_int(x: Any, dtype: torch.dtype) -> Any:
        return _called(math.trunc, x)

    @staticmethod
    def floor_to_int(x: Any, dtype: torch.dtype) -> Any:
        return _called(math.floor, x)

    @staticmethod
    def ceil_to_int(x: Any, dtype: torch.dtype) -> Any:
        return _called(math.ceil, x)


def _called(f: Callable[[Any], Any], x: Any) -> Any:
    return x.tracer.create_proxy("call_function", f, (x,), {}) if isinstance(x, fx.Proxy) else f(x)


class Abstraction:
    """The fake mode and shape environment of one dynamic trace.

    Sizes are independent symbols (no duck shaping: two dimensions that happen to be equal stay two), so whatever the program
    itself requires to be equal becomes a guard and nothing else does. Sizes 0 and 1 stay constants: broadcasting depends on them.
    """

    def __init__(self) -> None:
        self.shape_env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=True)
        self.inputs: list[Any] = []
        self.symbols: dict[Any, fx.Proxy] = {}
        self._guards: str | None = None

    def abstract(self, t: torch.Tensor) -> FakeTensor:
        """A fake tensor for input ``t``, every size of it a symbol."""
        context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * t.dim())
        fake = self.mode.from_tensor(t, symbolic_context=context, source=ConstantSource(f"input_{len(self.inputs)}"))
        self.inputs.append(fake)
        return fake

    def constant(self, t: torch.Tensor) -> FakeTensor:
        return self.mode.from_tensor(t, static_shapes=True)

    def bind(self, fake: FakeTensor, node: fx.Node) -> None:
        """Make nodes that read the sizes of a placeholder, for the symbols that it is the first to have."""
        tracer = fx.proxy.GraphAppendingTracer(node.graph)
        sizes: Any = fake.shape
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt):
                symbol = size.node.expr
                if symbol.is_symbol and symbol not in self.symbols:
                    call = node.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                    call.meta["val"] = size
                    self.symbols[symbol] = fx.Proxy(call, tracer)

    def lower(self, size: Any) -> Any:
        """A symbolic number as the node that computes it, or as a plain number if it is constant."""
        expression = size.node.expr
        if expression.is_number or expression in (True, False):
            return size.node.pytype(expression)
        unknown = expression.free_symbols - self.symbols.keys()
        if unknown:
            raise RuntimeError(f"size {expression} depends on {unknown}, which no input determines (the result of a data-dependent op)")
        proxy = sympy_interp(_Sizes, self.symbols, expression)
        if isinstance(proxy, fx.Proxy):
            proxy.node.meta["val"] = size
            return proxy.node
        return proxy

    def guards(self) -> str:
        """Python source of what must hold of the sizes of the inputs; empty if any sizes of the right rank will do."""
        if self._guards is None:
            # Sizes that the program fixed count as static and are conditions like any other. How inputs lie in memory is none:
            # a graph of ATen calls that needs a layout says so when it is replayed.
            found = self.shape_env.produce_guards_expression(self.inputs, ignore_static=False) or ""
            parts = (part for part in found.split(" and ") if ".stride()" not in part and ".storage_offset()" not in part)
            self._guards = " and ".join(parts)
        return self._guards

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        code = self.guards()
        return not code or bool(self.shape_env.evaluate_guards_expression(code, list(tensors)))


class Given(Abstraction):
    """The fake mode of a caller who brings fake tensors. Conditions on sizes become guards of his shape environment, which he checks."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.inputs: list[Any] = []
        self.symbols: dict[Any, fx.Proxy] = {}

    def abstract(self, t: torch.Tensor) -> FakeTensor:
        # an alias of its own, whose geometry the program may change
        fake: Any = t if isinstance(t, FakeTensor) else self.mode.from_tensor(t, static_shapes=True)
        self.inputs.append(fake)
        with self.mode, torch.no_grad():
            return fake.detach()  # type: ignore[no-any-return]

    def number(self, size: Any, node: fx.Node) -> None:
        """Know the placeholder of a size that is an argument of its own."""
        node.meta["val"] = size
        expression = size.node.expr
        if expression.is_symbol and expression not in self.symbols:
            self.symbols[expression] = fx.Proxy(node, fx.proxy.GraphAppendingTracer(node.graph))

    def guards(self) -> str:
        return ""
