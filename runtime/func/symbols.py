"""Symbolic sizes in a graph: abstract inputs, size expressions as nodes, and the guards under which a graph may be replayed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    CallMethodKey,
    ConvertIntKey,
    DimDynamic,
    DivideByKey,
    ShapeEnv,
    StatelessSymbolicContext,
    compute_unbacked_bindings,
)
from torch.utils import _pytree as pytree
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from .provenance import here

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
    """The fake mode and shape environment of one trace on fake tensors.

    ``dynamic``: sizes are independent symbols (no duck shaping: two dimensions that happen to be equal stay two), so whatever the program
    itself requires to be equal becomes a guard and nothing else does. Sizes 0 and 1 stay constants: broadcasting depends on them. Without
    it sizes are numbers.
    """

    def __init__(self, *, dynamic: bool = True, mode: FakeTensorMode | None = None) -> None:
        self.dynamic = dynamic
        self.mode = mode or FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=True, static_shapes=not dynamic)
        self.shape_env: Any = self.mode.shape_env
        self.inputs: list[Any] = []
        self.symbols: dict[Any, fx.Proxy] = {}
        self._guards: str | None = None

    @classmethod
    def of(cls, inputs: Sequence[Any], *, dynamic: bool = False, fake: bool = False) -> Abstraction | None:
        """What a trace of ``inputs`` needs: the mode of fake tensors among them, one of its own if it is to be ``dynamic`` or ``fake``, or
        None. Fake tensors of two modes are an error."""
        modes = {id(t.fake_mode): t.fake_mode for t in inputs if isinstance(t, FakeTensor)}
        if len(modes) > 1:
            raise RuntimeError("the arguments are fake tensors of two modes. Make them in one FakeTensorMode.")
        if modes:
            return Given(next(iter(modes.values())))
        return cls(dynamic=dynamic) if dynamic or fake else None

    def abstract(self, t: torch.Tensor) -> FakeTensor:
        """A fake tensor for input ``t``. Every size of it is a symbol if the trace is dynamic."""
        source = ConstantSource(f"input_{len(self.inputs)}")
        if not self.dynamic:
            fake = self.mode.from_tensor(t, static_shapes=True, source=source)
        else:
            context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * t.dim())
            fake = self.mode.from_tensor(t, symbolic_context=context, source=source)
        self.inputs.append(fake)
        return fake

    def integer(self, n: int, node: fx.Node) -> Any:
        """A symbol for the integer input of ``node``."""
        source = ConstantSource(f"input_{len(self.inputs)}")
        symbol = self.shape_env.create_symbol(n, source, dynamic_dim=DimDynamic.DYNAMIC, positive=None, do_not_specialize_zero_one=True)
        size = self.shape_env.create_symintnode(symbol, hint=n, source=source)
        self.inputs.append(size)
        self.symbols[symbol] = fx.Proxy(node, fx.proxy.GraphAppendingTracer(node.graph))
        return size

    def constant(self, t: torch.Tensor) -> FakeTensor:
        """A closed-over tensor. Its sizes are numbers."""
        if isinstance(t, FakeTensor):
            if t.fake_mode is not self.mode:
                raise RuntimeError("the program closes over a fake tensor of another mode than that of the trace. Pass it as an argument.")
            return t
        return self.mode.from_tensor(t, static_shapes=True)

    def bind(self, fake: Any, node: fx.Node) -> None:
        """Make nodes that read the sizes and strides of a placeholder, for the symbols that it is the first to have."""
        for func, numbers in ((torch.ops.aten.sym_size.int, fake.shape), (torch.ops.aten.sym_stride.int, _strides(fake))):
            for dim, size in enumerate(numbers):
                if isinstance(size, torch.SymInt):
                    symbol = size.node.expr
                    if symbol.is_symbol and symbol not in self.symbols:
                        self._bind(symbol, node.graph.call_function(func, (node, dim)), size)

    def _bind(self, symbol: Any, node: fx.Node, value: Any) -> None:
        node.meta["val"] = value
        self.symbols[symbol] = fx.Proxy(node, fx.proxy.GraphAppendingTracer(node.graph))

    def bind_results(self, node: fx.Node, out: Any) -> None:
        """Make nodes that read the sizes of ``out``, the result of ``node``, that depend on values, and the number that it is."""
        if self.shape_env is None or not self.shape_env.pending_fresh_unbacked_symbols:
            return
        bindings = compute_unbacked_bindings(self.shape_env, out)
        if not bindings:
            return
        node.meta["unbacked_bindings"] = bindings
        for symbol, path in bindings.items():
            reached, value = node, out
            for key in path:
                reached, value = _step(reached, value, key, path)
            if reached is not node:
                reached.meta["val"] = value
            self.symbols.setdefault(symbol, fx.Proxy(reached, fx.proxy.GraphAppendingTracer(node.graph)))

    def knows(self, size: Any) -> bool:
        """Whether a symbolic number is one of this trace, and not of an outer one."""
        return size.node.shape_env is self.shape_env

    def lower(self, size: Any) -> Any:
        """A symbolic number as the node that computes it, or as a plain number if it is constant."""
        expression = size.node.expr
        if expression.is_number or expression in (True, False):
            return size.node.pytype(expression)
        unknown = expression.free_symbols - self.symbols.keys()
        if unknown:
            raise RuntimeError(
                f"the number {expression} depends on {unknown}, which neither an input nor a result determines. Pass it as an argument."
                f"{here()}"
            )
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
        super().__init__(dynamic=False, mode=mode)

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
        if expression.is_symbol:
            self.symbols.setdefault(expression, fx.Proxy(node, fx.proxy.GraphAppendingTracer(node.graph)))

    def guards(self) -> str:
        return ""


def _strides(t: torch.Tensor) -> Sequence[Any]:
    return t.stride() if t.layout is torch.strided else ()


_NUMBERS = {"size": torch.ops.aten.sym_size.int, "stride": torch.ops.aten.sym_stride.int, "numel": torch.ops.aten.sym_numel.default}


def _step(node: fx.Node, value: Any, key: Any, path: Sequence[Any]) -> tuple[fx.Node, Any]:
    """One step of the way from a result to a symbol in it: the node that takes it, and the value there."""
    graph = node.graph
    if isinstance(key, CallMethodKey):
        if key.name == "storage_offset":
            return graph.call_function(torch.ops.aten.sym_storage_offset.default, (node,)), value.storage_offset()
        dim = path[-1].idx if isinstance(path[-1], pytree.SequenceKey) else None
        taken = getattr(value, key.name)()
        rest = () if key.name == "numel" else (dim,)
        return graph.call_function(_NUMBERS[key.name], (node, *rest)), taken
    if isinstance(key, ConvertIntKey):
        return graph.call_function(torch.sym_ite, (node, 1, 0)), value
    if isinstance(key, DivideByKey):
        return graph.call_function(operator.floordiv, (node, key.divisor)), value // key.divisor
    if isinstance(key, pytree.SequenceKey) and isinstance(value, (torch.Size, tuple, list)):
        if node.target in _NUMBERS.values():
            return node, value[key.idx]  # the node before has taken this step
        return graph.call_function(operator.getitem, (node, key.idx)), value[key.idx]
    raise RuntimeError(f"a symbol of the result of {node.target} is found by {key}, which a graph cannot compute")
