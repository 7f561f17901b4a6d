"""The trace level: runs a program and writes the ATen calls that it makes into a ``torch.fx.Graph``.

A :class:`TracedValue` stands for a node of the graph and holds the tensor that the call really gave, so the program runs while it
is traced. That tensor is real by default: small kernels are many times faster than abstract ones, and a static graph needs no
more. For dynamic shapes it is a ``FakeTensor`` of symbolic size.

Transforms entered inside a trace are inner levels, so the ATen calls of their rules arrive here: tracing ``vjp(f)`` gives a joint graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ..rules.core import QUESTIONS
from ..seam.level_mode import LevelMode
from ..seam.levels import Level, Value, rewrapped
from ..seam.shells import faithful_shell
from ..seam.surgery import refit
from .symbols import SYMBOLIC, Abstraction, Given

aten = torch.ops.aten
# The ops by which torch makes a tensor of numbers in the text of a program.
_LITERALS = frozenset((aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default))
_is_composite = torch._C._dispatch_has_kernel_for_dispatch_key


class TracedValue(Value):
    """The tensor of a node. It has no storage of its own, so nothing can read its elements behind the graph's back."""

    _level: Trace
    _node: fx.Node
    _literal: torch.Tensor | None = None  # set for constants of the program's text: their elements may be read

    @property
    def _version(self) -> int:  # type: ignore[override]
        return self._inner._version  # views are shells of their own; what they stand for shares one counter

    def tolist(self) -> Any:
        raise _escape("tolist()")

    def numpy(self, *, force: bool = False) -> Any:
        raise _escape("numpy()")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TracedValue({self._node.name}: {self.dtype}{list(self.shape)})"


def _escape(how: str) -> RuntimeError:
    return RuntimeError(
        f"{how} asks for the elements of a tensor while the program is being traced. The graph would keep today's value for ever. "
        "Use tensor operations instead (torch.where for a choice), pass the number as an argument of its own, or leave this part out of "
        "what is traced."
    )


class Trace(Level):
    """One running trace. ``graph`` grows with every call; ``attributes`` are the constants that it refers to, by name."""

    __slots__ = ("abstraction", "attributes", "constants", "decompositions", "fixed_sizes", "graph", "held", "mode")
    what = "trace (make_fx, aot_function or export)"

    def __init__(
        self,
        *,
        dynamic: bool = False,
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
        fixed_sizes: bool = False,
        abstraction: Abstraction | None = None,
    ) -> None:
        super().__init__()
        self.fixed_sizes = fixed_sizes  # whether an op whose result has a size that depends on values is refused
        self.graph = fx.Graph()
        self.attributes: dict[str, torch.Tensor] = {}
        self.constants: dict[int, TracedValue] = {}
        self.held: list[torch.Tensor] = []  # keeps ids in `constants` valid
        self.decompositions = decompositions or {}
        self.abstraction = abstraction or (Abstraction() if dynamic else None)
        self.mode = LevelMode(self)

    def wrap(self, inner: torch.Tensor, node: fx.Node | None = None, /) -> TracedValue:
        """The tensor of ``node``; without one a constant of the program."""
        if node is None:
            return self.constant(inner)
        v: TracedValue = faithful_shell(TracedValue, inner)
        v._level = self
        v._inner = inner
        v._node = node
        node.meta["val"] = inner
        return v

    def input(self, t: torch.Tensor, name: str) -> TracedValue:
        """A placeholder. Placeholders precede all calls, also when they are made late (cotangents, whose shapes the forward tells)."""
        last = None
        for node in self.graph.nodes:
            if node.op == "placeholder":
                last = node
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before(next(iter(self.graph.nodes), None)):
            node = self.graph.placeholder(name)
        if self.abstraction is None:
            return self.wrap(private_copy(t), node)
        fake = self.abstraction.abstract(t)
        self.abstraction.bind(fake, node)
        return self.wrap(fake, node)

    def late_input(self, like: TracedValue, name: str) -> TracedValue:
        """A placeholder of the shape and dtype of ``like``, whose sizes introduce no symbols of their own."""
        last = next(n for n in reversed(self.graph.nodes) if n.op == "placeholder")
        with self.graph.inserting_after(last):
            node = self.graph.placeholder(name)
        with _disable_current_modes(), self.mode_of_inner():  # else the transforms within would take the example for a value of theirs
            inner = torch.ones_like(like._inner, memory_format=torch.contiguous_format)
        return self.wrap(inner, node)

    def mode_of_inner(self) -> Any:
        return self.abstraction.mode if self.abstraction is not None else _NOTHING

    def constant(self, t: torch.Tensor) -> TracedValue:
        """A tensor that the program closes over: an attribute of the graph module, not a copy, so later changes of it are seen."""
        known = self.constants.get(id(t))
        if known is None:
            name = f"_tensor_constant{len(self.attributes)}"
            self.attributes[name] = t
            with _at_start(self.graph):
                node = self.graph.get_attr(name)
            inner = t.detach() if not isinstance(t, Value) and t.requires_grad else t
            if self.abstraction is not None:
                inner = self.abstraction.constant(inner)
            known = self.constants[id(t)] = self.wrap(inner, node)
            self.held.append(t)
        return known

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.split("::")[1]
        if name in QUESTIONS:
            return QUESTIONS[name](self.lowered(args[0]))
        if func is aten.lift_fresh.default:  # a literal of the program's text, which the program may write to
            return self.call(aten.lift_fresh_copy.default, (self.constant(args[0].clone()),), kwargs)
        if self.fixed_sizes and _size_depends_on_values(func, args):
            raise RuntimeError(
                f"the size of what {func} returns depends on values. The graph would keep the size that it has for these arguments. Use "
                "an op whose result has one size (torch.where for a choice, a product with the mask for a sum), or leave this part out "
                "of what is traced."
            )
        table = self.decompositions.get(func)
        if table is not None:
            with self.mode:
                out = table(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if _is_composite(func.name(), DispatchKey.CompositeImplicitAutograd):
            with self.mode:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if torch.Tag.data_dependent_output in func.tags:
            return self._read(func, name, args, kwargs)
        if func in (aten.sym_size.int, aten.sym_size.default, aten.sym_stride.default, aten.sym_numel.default):
            return func(*self.lowered_args(args))
        args, kwargs = self._map(args, self._own), self._map_dict(kwargs, self._own)
        with self.mode_of_inner():
            out = func(*self.lowered_args(args), **self.lowered_kwargs(kwargs))
        node = self.graph.call_function(func, tuple(self._map(args, self._in_graph)), self._map_dict(kwargs, self._in_graph))
        return self._results(func, node, out, args, kwargs)

    def _read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An answer in Python about elements is possible for constants of the program's text only."""
        literal = [_literal(a) for a in args]
        if any(isinstance(a, TracedValue) and a._literal is None for a in args):
            raise _escape("item(), bool(), int() or float()" if name in ("item", "_local_scalar_dense", "is_nonzero") else f"{name}()")
        return func(*literal, **kwargs)

    def _results(self, func: Any, node: fx.Node, out: Any, args: Any, kwargs: Any) -> Any:
        written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
        if written:
            return self._mutated(func, node, out, written, args, kwargs)
        node.meta["val"] = out
        if isinstance(out, torch.Tensor):
            v = self.wrap(out, node)
            v._literal = self._literal_of(func, args, kwargs, v)
            return v
        return rewrapped(out, lambda t, i: self.wrap(t, _item(node, i, t)))

    def _literal_of(self, func: Any, args: Any, kwargs: Any, v: TracedValue) -> torch.Tensor | None:
        """The value of ``v`` if it is a number that follows from the text of the program alone."""
        if func in _LITERALS and args[0]._node.op == "get_attr":
            return self.attributes[str(args[0]._node.target)]
        if v.dim() or torch.Tag.nondeterministic_seeded in func.tags or any(r.alias_info is not None for r in func._schema.returns):
            return None
        given = [b for a in (*args, *kwargs.values()) for b in (a if isinstance(a, (list, tuple)) else (a,))]
        if any(isinstance(a, SYMBOLIC) or (isinstance(a, TracedValue) and a._literal is None) for a in given):
            return None
        out: torch.Tensor = func(*self._map(args, _literal), **self._map_dict(kwargs, _literal))
        return out

    def _mutated(self, func: Any, node: fx.Node, out: Any, written: list[int], args: Any, kwargs: Any) -> Any:
        """The call changed arguments. Their values stay; where the call returns one, its node becomes the newest name of it."""
        targets = [_argument(func, i, args, kwargs) for i in written]
        flat = [t for x in targets for t in (x if isinstance(x, (list, tuple)) else (x,)) if isinstance(t, TracedValue)]
        for t in flat:
            t._literal = None
            if t.shape != t._inner.shape or (t.layout is torch.strided and t.stride() != t._inner.stride()):
                refit(t, self.wrap(t._inner, t._node))
        if isinstance(out, torch.Tensor) and flat:
            flat[0]._node = node
            node.meta["val"] = out
            return flat[0]
        same = {id(t._inner): t for t in flat}
        return rewrapped(out, lambda t, i: same[id(t)] if id(t) in same else self.wrap(t, _item(node, i, t)))

    def _own(self, a: Any) -> Any:
        """Any tensor that is not of this level becomes a constant of the graph."""
        return self.constant(a) if isinstance(a, torch.Tensor) and not (isinstance(a, TracedValue) and a._level is self) else a

    def _in_graph(self, a: Any) -> Any:
        if isinstance(a, TracedValue):
            return a._node
        if isinstance(a, SYMBOLIC):
            if self.abstraction is None:
                raise RuntimeError(f"a symbolic number {a} in a trace of static shapes")
            return self.abstraction.lower(a)
        return a

    def _map(self, args: Any, f: Callable[[Any], Any]) -> list[Any]:
        return [[f(b) for b in a] if isinstance(a, (list, tuple)) else f(a) for a in args]

    def _map_dict(self, kwargs: Any, f: Callable[[Any], Any]) -> dict[str, Any]:
        return dict(zip(kwargs, self._map(kwargs.values(), f), strict=True)) if kwargs else {}

    def lower_output(self, v: Any) -> Any:
        """What a result of the program is in the graph: a node, or a Python value as it is."""
        return self._in_graph(self._own(v))


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


_NOTHING = _Nothing()


def _literal(a: Any) -> Any:
    return a._literal if isinstance(a, TracedValue) else a


def _item(node: fx.Node, i: int | None, value: Any) -> fx.Node:
    """The node of result ``i`` of the call at ``node``; of its only result, ``node`` itself."""
    if i is None:
        return node
    got = node.graph.call_function(operator.getitem, (node, i))
    got.meta["val"] = value
    return got


def _size_depends_on_values(func: Any, args: Any) -> bool:
    """Whether how many elements a call returns depends on the elements of an argument. An index does so only by a mask."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func is aten.index.Tensor:
        return any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return True


def _argument(func: Any, i: int, args: Any, kwargs: Any) -> Any:
    return args[i] if i < len(args) else kwargs.get(func._schema.arguments[i].name)


def _at_start(graph: fx.Graph) -> Any:
    """Constants are read after the placeholders and before the calls, whenever they are first met."""
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr"):
            return graph.inserting_before(node)
    return graph.inserting_before(None)


def private_copy(t: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of ``t``, overlaps included.

    Tracing must not change the caller's tensor, and strides decide whether a reshape is a view.
    """
    if isinstance(t, Value) or t.layout is not torch.strided or t.is_nested:
        return t.detach().clone()
    t = t.detach().resolve_conj().resolve_neg()
    fresh = torch.empty(0, dtype=t.dtype, device=t.device)
    storage: Any = t.untyped_storage()
    return fresh.set_(storage.clone(), t.storage_offset(), t.shape, t.stride())


def trace_flat(
    f: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    *,
    dynamic: bool = False,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    names: Sequence[str] | None = None,
    fixed_sizes: bool = False,
    abstraction: Abstraction | None = None,
) -> tuple[fx.Graph, dict[str, torch.Tensor], Trace]:
    """Call ``f(level, *given)`` with traced values for the tensors in ``tensors``. Others are passed as they are, with a placeholder.

    ``fixed_sizes``: refuse an op whose result has a size that depends on values. ``abstraction``: what makes the abstract values, instead
    of a new one. Returns the graph, whose output is the list that ``f``
    returned, its constants, and the closed level.
    """
    level = Trace(dynamic=dynamic, decompositions=decompositions, fixed_sizes=fixed_sizes, abstraction=abstraction)
    names = names or [f"arg{i}_1" for i in range(len(tensors))]
    try:
        given = []
        for t, name in zip(tensors, names, strict=True):
            if isinstance(t, torch.Tensor):
                given.append(level.input(t, name))
            else:
                node = level.graph.placeholder(name)
                if isinstance(t, SYMBOLIC) and isinstance(level.abstraction, Given):
                    level.abstraction.number(t, node)
                given.append(t)
        with level.mode, enable_python_dispatcher() if level.abstraction is not None else _NOTHING:
            outs = f(level, *given)
        level.graph.output([level.lower_output(o) for o in outs])
    finally:
        level.close()
    return level.graph, level.attributes, level


def module_of(graph: fx.Graph, attributes: Mapping[str, torch.Tensor], name: str = "Traced") -> fx.GraphModule:
    """A graph with its constants as a module. Unused calls without effect are left out."""
    root = torch.nn.Module()
    for key, t in attributes.items():
        if isinstance(t, torch.nn.Parameter):
            root.register_parameter(key, t)
        elif isinstance(t, Value):
            root.__dict__[key] = t
        else:
            root.register_buffer(key, t)
    graph.eliminate_dead_code()
    graph.lint()
    return fx.GraphModule(root, graph, name)


def make_fx(
    f: Callable[..., Any],
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
    tracing_mode: str = "real",
) -> Callable[..., fx.GraphModule]:
    """``make_fx(f)(*args)`` runs ``f`` on ``args`` and returns the ATen calls that it made as a ``GraphModule`` of the same signature.

    ``tracing_mode``: ``"real"`` (sizes are constants) or ``"symbolic"`` (sizes are read from the arguments). Arguments and results may
    be any pytree; Python numbers are constants.
    """
    if tracing_mode not in ("real", "symbolic"):
        raise ValueError(f"tracing_mode must be 'real' or 'symbolic', got {tracing_mode!r}")

    @wraps(f)
    def traced(*args: Any) -> fx.GraphModule:
        flat, spec = pytree.tree_flatten((args, {}))
        out_spec: Any = None

        def run(_: Trace, *values: Any) -> list[Any]:
            nonlocal out_spec
            given, _kwargs = pytree.tree_unflatten(list(values), spec)
            outs, out_spec = pytree.tree_flatten(f(*given))
            return outs

        names = _names(f, args)
        graph, attributes, _ = trace_flat(run, flat, dynamic=tracing_mode == "symbolic", decompositions=decomposition_table)
        _structured(graph, names, spec, out_spec)
        return module_of(graph, attributes)

    return traced


def _structured(graph: fx.Graph, names: list[str], in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec) -> None:
    """Give the graph the signature of the program. Plain where that is possible, so that graph passes can copy its nodes: flat arguments
    need no code generation of their own, nor do results in tuples, lists and dicts."""
    output = graph.output_node()
    plain_out = _is_plain(out_spec)
    if plain_out:
        results: Any = output.args[0]
        output.args = (pytree.tree_unflatten(list(results), out_spec),)
    if not plain_out or not all(spec.is_leaf() for spec in in_spec.child(0).children()):
        graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(names, in_spec, None if plain_out else out_spec)))


def _is_plain(spec: pytree.TreeSpec) -> bool:
    return spec.is_leaf() or (spec.type in (tuple, list, dict) and all(map(_is_plain, spec.children())))


def _names(f: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """Names for the arguments of the generated ``forward``: those of ``f`` where it says so."""
    try:
        known = [p.name for p in signature(f).parameters.values() if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        known = []
    return [known[i] if i < len(known) else f"arg{i}" for i in range(len(args))]
