"""Traces programs for any sizes: makes abstract inputs, writes size expressions as nodes, and
collects the guards under which a graph may be replayed.

Example: ``x.reshape(x.shape[0] * 2, -1)`` with ``x`` of shape (s0, s1) has the nodes
``sym_size(x, 0)`` and ``operator.mul(…, 2)``. The guard says that the number of elements fits.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import (
    SYMPY_INTERP,
    CallMethodKey,
    ConvertIntKey,
    DimDynamic,
    DivideByKey,
    StatelessSymbolicContext,
    compute_unbacked_bindings,
    statically_known_false,
    statically_known_true,
)

from ..seam import factories
from ..seam.call_types import Kernel
from ..seam.levels import Value
from ..torch_private.fake_tensors import FakeTensor, FakeTensorMode
from ..torch_private.mode_stacks import (
    is_traceable_wrapper_subclass,
    number_of_dispatch_modes,
    number_of_modes_before_dispatch,
    without_modes,
)
from ..torch_private.pytrees import pytree
from ..torch_private.symbolic_shapes import ConstantSource, PythonReferenceAnalysis, sympy_interp
from .abstract_values import faked
from .generated_code import function
from .outside import held_by_session
from .provenance import here
from .shape_environment import ShapeEnvironment

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)  # the numbers that a graph computes


class _Sizes(PythonReferenceAnalysis):
    """Arithmetic of sizes on the proxies of a graph.

    It overrides the operations of which torch's own makes a sympy expression of proxies, or fails.
    """

    @staticmethod
    def int_truediv(a: Any, b: object) -> object:
        return a / b

    @staticmethod
    def to_dtype(value: object, dtype: torch.dtype) -> object:
        return _call_in_graph(torch.sym_float, value)

    @staticmethod
    def trunc_to_int(value: object, dtype: torch.dtype) -> object:
        return _call_in_graph(math.trunc, value)

    @staticmethod
    def floor_to_int(value: object, dtype: torch.dtype) -> object:
        return _call_in_graph(math.floor, value)

    @staticmethod
    def ceil_to_int(value: object, dtype: torch.dtype) -> object:
        return _call_in_graph(math.ceil, value)

    # In a backward pass no function of torch sees that its argument is a proxy: the engine hides
    # its calls from modes.
    @staticmethod
    def minimum(a: object, b: object) -> object:
        return _call_in_graph(torch.sym_min, a, b)

    @staticmethod
    def maximum(a: object, b: object) -> object:
        return _call_in_graph(torch.sym_max, a, b)

    @staticmethod
    def not_(argument: object) -> object:
        return _call_in_graph(torch.sym_not, argument)

    @staticmethod
    def piecewise(*pairs: tuple[object, object]) -> object:
        # the first condition that holds decides; that of the last pair is true
        result = pairs[-1][0]
        for value, condition in reversed(pairs[:-1]):
            result = _call_in_graph(torch.sym_ite, condition, value, result)
        return result

    @staticmethod
    def round_to_int(argument: object, dtype: torch.dtype) -> object:
        return _call_in_graph(round, argument)

    @staticmethod
    def round_decimal(a: object, b: object) -> object:
        return _call_in_graph(round, a, b)


def _call_in_graph(function: Callable[..., object], *operands: object) -> object:
    """Return ``function`` of numbers, or its call in the graph: a method of a proxy would be a
    method of the number, which an ``int`` may lack."""
    proxy = next((operand for operand in operands if isinstance(operand, fx.Proxy)), None)
    if proxy is None:
        return function(*operands)
    return proxy.tracer.create_proxy("call_function", function, operands, {})


def unchecked(number: object) -> bool:
    """Return whether ``number`` is a symbol of a graph whose calls check no conditions. A program
    that went by its present value would be right for that alone, and no call would say so."""
    if not isinstance(number, SYMBOLIC) or getattr(number.node.shape_env, "checked", False):
        return False
    is_constant = number.node.maybe_as_int() is not None or number.node.maybe_as_bool() is not None
    return not is_constant


def undecided(condition: object) -> bool:
    """Return whether ``condition`` is :func:`unchecked`, and may hold or not, by what is known of
    its symbols."""
    if not (isinstance(condition, torch.SymBool) and unchecked(condition)):
        return False
    return not (statically_known_true(condition) or statically_known_false(condition))


class Place:
    """The place where a graph reads the value of a symbol."""

    __slots__ = ("proxy", "source", "take", "value")

    def __init__(
        self, source: fx.Node, take: Callable[[fx.Node], fx.Node] | None, value: object
    ) -> None:
        # the node whose result has the value, or the node from which it is taken
        self.source = source
        # creates the node that takes the value from `source`, when it is first needed
        self.take = take
        self.value = value
        self.proxy: fx.Proxy | None = None

    def read(self, tracer: Any) -> fx.Proxy:
        """Return the value in the graph, as a proxy of ``tracer``."""
        if self.proxy is None:
            node = self.source
            if self.take is not None:
                node = self.take(node)
            node.meta.setdefault("val", self.value)
            self.proxy = fx.Proxy(node, tracer)
        return self.proxy


class Abstraction:
    """The fake mode and shape environment of one trace on fake tensors.

    ``dynamic``: sizes are independent symbols (no duck shaping: two dimensions that happen to be
    equal stay two), so whatever the program itself requires to be equal becomes a guard and
    nothing else does. Sizes 0 and 1 stay constants: broadcasting depends on them. Without it
    sizes are numbers.
    """

    def __init__(self, *, dynamic: bool = True, mode: FakeTensorMode | None = None) -> None:
        self.dynamic = dynamic
        self.allows_real_constants = True  # unless `make_fx` is told otherwise
        self.mode = mode or FakeTensorMode(
            shape_env=ShapeEnvironment(duck_shape=False), allow_non_fake_inputs=True
        )
        self.shape_env: Any = self.mode.shape_env
        self.inputs: list[Any] = []
        self.numbers: list[Any] = []  # those of the inputs that are numbers
        self.symbols: dict[object, Place] = {}  # by symbol: where the graph reads its value
        # by expression: so that a size which is computed twice is one node
        self.computed: dict[object, fx.Node] = {}
        self._guards: str | None = None
        self._holds: Callable[..., bool] | None = None
        self._proxies: Any = None

    @property
    def is_general(self) -> bool:
        """Return whether sizes are symbols."""
        return self.dynamic

    def _tracer(self, node: fx.Node) -> object:
        """Return what makes the proxies of sizes: one for all, since proxies of two do not mix."""
        if self._proxies is None or self._proxies.graph is not node.graph:
            self._proxies = fx.proxy.GraphAppendingTracer(node.graph)
        return self._proxies

    @classmethod
    def of(
        cls, inputs: Sequence[object], *, dynamic: bool = False, fake: bool = False
    ) -> Abstraction | None:
        """Return what a trace of ``inputs`` needs: the mode of fake tensors among them, one of its
        own if it is to be ``dynamic`` or ``fake``, or None. Fake tensors of two modes are an error.
        """
        modes = {
            id(tensor.fake_mode): tensor.fake_mode
            for tensor in inputs
            if isinstance(tensor, FakeTensor)
        }
        if len(modes) > 1:
            raise RuntimeError(
                "the arguments are fake tensors of two modes. Make them in one FakeTensorMode."
            )
        if modes:
            return Given(next(iter(modes.values())))
        if dynamic or fake:
            return cls(dynamic=dynamic)
        return None

    def running(self) -> Any:
        """Return the context in which calls on fake tensors run: the fake mode alone. Levels around
        the trace have nothing to do with them."""
        if number_of_dispatch_modes() or number_of_modes_before_dispatch():
            return _without_modes_around(self.mode)
        return self.mode

    def abstract(self, tensor: torch.Tensor, fixed: bool = False) -> FakeTensor:
        """Return a fake tensor for input ``tensor``. Every size of it is a symbol if the trace is
        dynamic and the input is not ``fixed``. A fixed input is not among those that :meth:`holds`
        takes."""
        tensor = _plain_like(tensor)
        composed: bool = is_traceable_wrapper_subclass(tensor)
        if composed:
            raise RuntimeError(
                f"a {type(tensor).__name__} is an input of a trace on abstract values, which "
                "are plain "
                "tensors. Trace on real values, or compile the program with aot_function."
            )
        with without_modes():
            # the mode knows a tensor again, and the base of a view: a fixed size would be
            # a symbol there
            if fixed or tensor._is_view():
                tensor = tensor.detach().requires_grad_(tensor.requires_grad)
            if fixed or not self.dynamic:
                fake = faked(self.mode, tensor, static_shapes=True)
            else:  # without a context the sizes of a sparse tensor would be numbers
                context: Any = StatelessSymbolicContext(
                    dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim()
                )
                fake = faked(self.mode, tensor, symbolic_context=context)
        if not fixed and self.dynamic:
            self.inputs.append(fake)
        return fake

    def unknown(self, n: float, node: fx.Node) -> Any:
        """Return a symbol for the number ``n`` that is the input of ``node``, an ``int`` or a
        ``float``. ``n`` is its value in this trace, and the graph is right for others."""
        source, env = ConstantSource(f"input_{len(self.inputs)}"), self.shape_env
        if type(n) is float:
            symbol = env.create_unspecified_symbol(n, source)
            number = env.create_symfloatnode(symbol, hint=n)
        else:
            # unlike a size a number may be negative, and 0 and 1 are numbers like any other
            symbol = env.create_symbol(n, source, positive=None, do_not_specialize_zero_one=True)
            number = env.create_symintnode(symbol, hint=n)
        self.inputs.append(number)
        self.numbers.append(number)
        self.symbols[symbol] = Place(node, None, number)
        return number

    def pinned(self, number: Any) -> bool:
        """Return whether the program has asked for the value of a number that was a symbol, so that
        the graph is for this value alone."""
        return bool(number.node.expr.is_number)

    def constant(self, tensor: torch.Tensor, literal: bool = False) -> FakeTensor:
        """Return a closed-over tensor, or a literal of the program's text. Its sizes are
        numbers."""
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is not self.mode:
                raise RuntimeError(
                    "the program closes over a fake tensor of another mode than that "
                    "of the trace. Pass it as an argument."
                )
            return tensor
        if not (self.allows_real_constants or literal):
            raise RuntimeError(
                "the program closes over a real tensor, and its arguments are fake. "
                "Please convert all Tensors to FakeTensors first: pass it as an argument. "
                f"With _allow_non_fake_inputs=True it becomes a constant of the graph.{here()}"
            )
        with without_modes():
            return faked(self.mode, _plain_like(tensor), static_shapes=True)

    def bind(self, fake: Any, node: fx.Node) -> None:
        """Note where to read the sizes and strides of a placeholder, for the symbols that it is
        the first to have."""
        numbers: list[tuple[str, int | None, Any]] = [
            ("size", dim, size) for dim, size in enumerate(fake.shape)
        ]
        if fake.layout is torch.strided:
            numbers += [("stride", dim, stride) for dim, stride in enumerate(fake.stride())]
            numbers.append(("storage_offset", None, fake.storage_offset()))
        for name, dim, number in numbers:
            # an expression follows from the symbols in it, which other dimensions have
            if isinstance(number, torch.SymInt) and number.node.expr.is_symbol:
                read = functools.partial(_number_of, func=_NUMBERS[name], dim=dim)
                self.symbols.setdefault(number.node.expr, Place(node, read, number))

    def bind_results(self, node: fx.Node, out: object) -> None:
        """Note where to read the sizes of ``out``, the result of ``node``, that depend on values,
        and the number that it is."""
        if isinstance(out, SYMBOLIC) and out.node.expr.is_symbol:
            self.symbols.setdefault(out.node.expr, Place(node, None, out))
        if self.shape_env is None or not self.shape_env.pending_fresh_unbacked_symbols:
            return
        bindings = compute_unbacked_bindings(self.shape_env, out)
        if not bindings:
            return
        node.meta["unbacked_bindings"] = bindings
        for symbol, path in bindings.items():
            value = pytree.key_get(out, path) if path else out
            self.symbols.setdefault(
                symbol, Place(node, functools.partial(_follow, path=path), value)
            )

    def read_sizes_of(self, node: fx.Node) -> None:
        """Read what is still to be read of the result of ``node``, because its sizes are about to
        change in place."""
        # a read after the change would give the new size
        for place in self.symbols.values():
            if place.source is node:
                place.read(self._tracer(node))

    def forget_removed(self, graph: fx.Graph) -> None:
        """Forget the nodes of numbers that passes over ``graph`` have removed, since nothing used
        them any more. :meth:`lower` makes new ones."""
        present = set(graph.nodes)
        self.computed = {
            expression: node for expression, node in self.computed.items() if node in present
        }
        for place in self.symbols.values():
            if place.proxy is not None and place.proxy.node not in present:
                place.proxy = None

    def knows(self, size: Any) -> bool:
        """Return whether a symbolic number is one of this trace, and not of an outer one."""
        return size.node.shape_env is self.shape_env

    def lower(self, size: Any) -> Any:
        """Return a symbolic number as the node that computes it, or as a plain number if it is
        constant."""
        expression = size.node.expr
        # sympy's `true` is no number
        if expression.is_number or expression in (True, False):
            return size.node.pytype(expression)
        unknown = expression.free_symbols - self.symbols.keys()
        if unknown:
            raise RuntimeError(
                f"the number {expression} depends on {unknown}, "
                f"which neither an input nor a result determines. Pass it as an argument.{here()}"
            )
        node = self.computed.get(expression)
        if node is None:
            values = {}
            for symbol in expression.free_symbols:
                place = self.symbols[symbol]
                values[symbol] = place.read(self._tracer(place.source))
            proxy = sympy_interp(_Sizes, values, expression)
            if not isinstance(proxy, fx.Proxy):
                return proxy
            node = self.computed[expression] = proxy.node
            node.meta.setdefault("val", size)
        return node

    def guards(self) -> str:
        """Return Python source of what must hold of the sizes of the inputs; empty if any sizes of
        the right rank will do. Example: ``L['t0'].size()[0] == L['t1'].size()[0]``."""
        if self._guards is None:
            # Sizes that the program fixed count as static and are conditions like any other. How
            # inputs lie in memory is none: a graph of ATen calls that needs a layout says so when
            # it is replayed.
            source = self.shape_env.produce_guards_expression(self.inputs, ignore_static=False)
            parts = (
                part
                for part in (source or "").split(" and ")
                if ".stride()" not in part and ".storage_offset()" not in part
            )
            self._guards = " and ".join(filter(None, (*parts, *self._fixed_sizes())))
        return self._guards

    def _fixed_sizes(self) -> list[str]:
        """Return the conditions on sizes that torch makes no symbols of: those of sparse tensors,
        before torch 2.13."""
        conditions: list[str] = []
        for index, x in enumerate(self.inputs):
            if not isinstance(x, torch.Tensor) or x.layout is torch.strided:
                continue
            for dim, size in enumerate(x.shape):
                if isinstance(size, int):
                    conditions.append(f"t{index}.size()[{dim}] == {size}")
        return conditions

    def holds(self, *inputs: object) -> bool:
        """Return whether the graph is right for tensors and numbers like ``inputs``: those whose
        sizes or values are symbols."""
        if self._holds is None:
            self._holds = _compile_guards(self.guards(), len(self.inputs))
        try:
            return self._holds(*inputs)
        except ZeroDivisionError:  # a condition on the quotient of sizes, of which one is zero now
            return False


class Fixed(Abstraction):
    """The abstract values of a program that fails on symbols. Its sizes are numbers, and the graph
    is for these alone."""

    @property
    def is_general(self) -> bool:
        """Return that sizes are numbers."""
        return False

    def abstract(self, tensor: torch.Tensor, fixed: bool = False) -> FakeTensor:
        """Return a fake tensor for input ``tensor``, whose sizes are numbers."""
        fake = super().abstract(tensor, fixed=True)
        # a fixed input is not among those that `holds` takes, and this one is
        if not fixed:
            self.inputs.append(fake)
        return fake

    def guards(self) -> str:
        """Return the conditions of :class:`Abstraction`, and that all sizes are those of today."""
        if self._guards is None:
            sizes = [
                f"tuple(t{index}.size()) == {tuple(x.shape)}"
                for index, x in enumerate(self.inputs)
                if isinstance(x, torch.Tensor)
            ]
            self._guards = " and ".join([part for part in (super().guards(),) if part] + sizes)
        return self._guards


class Given(Abstraction):
    """The fake mode of a caller who brings fake tensors. Conditions on sizes become guards of his
    shape environment, which he checks."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__(dynamic=False, mode=mode)

    def abstract(self, tensor: torch.Tensor, fixed: bool = False) -> FakeTensor:
        """Return an alias of a fake tensor of the caller, or a fake tensor for a real one."""
        fake: Any = tensor
        if not isinstance(tensor, FakeTensor):
            fake = faked(self.mode, tensor, static_shapes=True)
        # an alias of its own, whose geometry the program may change
        with self.mode, torch.no_grad():
            return fake.detach()  # type: ignore[no-any-return]

    def number(self, size: Any, node: fx.Node) -> None:
        """Note the placeholder ``node`` of a size that is an argument of its own."""
        node.meta["val"] = size
        expression = size.node.expr
        if expression.is_symbol:
            self.symbols.setdefault(expression, Place(node, None, size))

    def guards(self) -> str:
        """Return no conditions: the caller's shape environment has them."""
        return ""


@contextmanager
def _without_modes_around(mode: FakeTensorMode) -> Generator[None]:
    with without_modes(), mode:
        yield


def _hints_of(numbers: Iterable[int | torch.SymInt]) -> list[int]:
    """List sizes or strides, in place of a symbol the number that it has here."""
    return [int(number if isinstance(number, int) else number.node.hint) for number in numbers]


def _plain_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, or for a value of a level around the trace, which has no elements to show,
    a tensor of its shape. Symbols of an outer trace count as the sizes that they have there."""
    tensor = held_by_session(tensor)
    if not isinstance(tensor, Value) or tensor.layout is not torch.strided:
        return tensor
    shape, stride = _hints_of(tensor.shape), _hints_of(tensor.stride())
    with without_modes():
        return factories.empty_strided(
            shape, stride, dtype=tensor.dtype, device=tensor.device
        ).zero_()


def _compile_guards(code: str, n_inputs: int) -> Callable[..., bool]:
    """Return a function of ``n_inputs`` tensors from the source of their guards, which asks each
    tensor for its sizes once."""
    if not code:
        return lambda *tensors: True
    # torch names the inputs as Dynamo does, by a dictionary `L` of local variables
    code = re.sub(r"L\['(t\d+)'\]", r"\1", code)
    used = sorted(set(re.findall(r"\b(t\d+)\.size\(\)", code)))
    code = re.sub(r"\b(t\d+)\.size\(\)", r"\1_sizes", code)
    names = ", ".join(f"t{index}" for index in range(n_inputs))
    sizes = [f"    {name}_sizes = {name}.shape" for name in used]
    lines = [f"def holds({names}):", *sizes, f"    return bool({code})"]
    return function(lines, "holds", "<guards of sizes>", {"math": math, **SYMPY_INTERP})


_NUMBERS = {
    "size": torch.ops.aten.sym_size.int,
    "stride": torch.ops.aten.sym_stride.int,
    "numel": torch.ops.aten.sym_numel.default,
    "storage_offset": torch.ops.aten.sym_storage_offset.default,
}


def _number_of(node: fx.Node, func: Kernel, dim: int | None) -> fx.Node:
    """Return a size, a stride or the offset of the result of ``node``."""
    if dim is None:
        return node.graph.call_function(func, (node,))
    return node.graph.call_function(func, (node, dim))


def _follow(node: fx.Node, path: Sequence[object]) -> fx.Node:
    """Return the node at ``path`` in the result of ``node``, a path of
    :func:`compute_unbacked_bindings`."""
    graph = node.graph
    method: str | None = None
    for key in path:
        if isinstance(key, CallMethodKey) and key.name in ("size", "stride"):
            method = key.name  # the next key says of which dimension
        elif isinstance(key, CallMethodKey) and key.name in _NUMBERS:
            node = graph.call_function(_NUMBERS[key.name], (node,))
        elif isinstance(key, pytree.SequenceKey):
            read: Callable[..., object] = operator.getitem
            if method is not None:
                read = _NUMBERS[method]
            node = graph.call_function(read, (node, key.idx))
            method = None
        elif isinstance(key, ConvertIntKey):
            node = graph.call_function(torch.sym_ite, (node, 1, 0))
        elif isinstance(key, DivideByKey):
            node = graph.call_function(operator.floordiv, (node, key.divisor))
        else:
            raise RuntimeError(
                f"a symbol of the result of {node.target} is found by {key}, "
                f"which a graph cannot compute.{here()}"
            )
    return node
