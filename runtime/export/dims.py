"""Sizes of exported programs: ``torch.export.Dim`` in, symbols with ranges and conditions out.

export(f, (x, y), dynamic_shapes={"x": {0: Dim("n", min=4)}, "y": None})
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)

from ..torch_private.dispatcher import OpOverload
from ..torch_private.fake_tensors import FakeTensor
from ..torch_private.pytrees import pytree
from ..torch_private.symbolic_shapes import (
    ConstantSource,
    DerivedDim,
    DimHint,
    DimHintType,
    ValueRanges,
    int_oo,
)
from ..trace.abstract_values import faked
from ..trace.symbols import Abstraction

Spec = Mapping[int, Any]  # per dimension of a tensor: a Dim, a hint, or a number


_aten = torch.ops.aten
_OF_SIZES = frozenset(
    (
        _aten.sym_size.int,
        _aten.sym_stride.int,
        _aten.sym_storage_offset.default,
        _aten._assert_scalar.default,
    )
)


@dataclass(frozen=True)
class _Named:
    """One place of a named ``Dim``, or of a hint: dimension ``at`` of argument ``where``."""

    dim: Any
    where: str
    at: int
    size: Any

    def __str__(self) -> str:
        name = f"the dimension marked {self.dim}"
        if isinstance(self.dim, Dim):
            name = f"Dim {self.dim.__name__!r}"
        return f"{name}, dimension {self.at} of {self.where}"

    @property
    def range(self) -> tuple[Any, Any]:
        if not self.derived:
            return _bounds(self.dim)
        low, high = _bounds(self.dim.root)
        low = max(self.dim.fn(low), 0)
        if high is not int_oo:
            high = self.dim.fn(high)
        return low, high

    @property
    def derived(self) -> bool:
        """Whether it is computed from another ``Dim``, as ``2 * Dim("n") + 1``."""
        return isinstance(self.dim, DerivedDim)

    @property
    def fixed(self) -> bool:
        """Whether the program may not narrow it."""
        return isinstance(self.dim, Dim)

    @property
    def automatic(self) -> bool:
        return isinstance(self.dim, DimHint) and self.dim.type is DimHintType.AUTO


def _bounds(dim: Any) -> tuple[object, object]:
    """Return the least and the largest size that a ``Dim`` or a hint allows."""
    low, high = dim.min, dim.max
    if low is None:
        low = 0
    if high is None:
        high = int_oo
    return low, high


class ExportedSizes(Abstraction):
    """Makes fake tensors whose sizes are symbols where ``specs`` say so. ``names`` are those of the
    inputs, for errors."""

    def __init__(self, specs: Sequence[Spec], names: Sequence[str]) -> None:
        super().__init__()
        self.specs = dict(zip(names, specs, strict=True))
        self.names = [n for n in names if self.specs[n] is not None]
        self.places: list[_Named] = []
        self.known: dict[str, Any] = {}  # sizes by name of a Dim
        # placeholders with their fake tensors and names
        self.bound: list[tuple[fx.Node, Any, str]] = []
        self.last = ""  # the input that was made last
        # by id of a place of a Dim that is computed from another one: what it must be
        self.derived: dict[int, Any] = {}

    def abstract(self, t: torch.Tensor, fixed: bool = False) -> FakeTensor:
        if fixed:
            return super().abstract(t, fixed=True)
        name = self.last = self.names.pop(0)
        spec = self.specs.get(name) or {}
        _check_spec(t, spec, name)
        dims = {i: dim for i, dim in spec.items() if _is_dynamic(dim)}
        kinds = [DimDynamic.DYNAMIC if i in dims else DimDynamic.STATIC for i in range(t.dim())]
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
        source = ConstantSource(f"input_{len(self.inputs)}")
        fake: Any = faked(self.mode, t, symbolic_context=context, source=source)
        self.inputs.append(fake)
        for i, dim in dims.items():
            self._constrain(_Named(dim, name, i, fake.shape[i]), int(t.shape[i]))
        if not self.names:  # of the last input: the sizes of all roots are known
            self._relate_derived()
        return fake  # type: ignore[no-any-return]

    def _relate_derived(self) -> None:
        for place in self.places:
            if place.derived:
                self._relate(place)

    def bind(self, fake: object, node: fx.Node) -> None:
        self.bound.append((node, fake, self.last))
        super().bind(fake, node)

    def _constrain(self, place: _Named, example: int) -> None:
        low, high = place.range
        if not isinstance(place.size, torch.SymInt):
            if place.automatic:
                return  # of size 0 or 1
            raise ValueError(
                f"{place} has size {example} in the example. Sizes 0 and 1 are constants, "
                "so take a larger example."
            )
        if not low <= example <= high:
            raise ValueError(
                f"{place} has size {example} in the example, which is not between {low} and {high}"
            )
        self.places.append(place)
        if place.derived:
            return
        if isinstance(place.dim, Dim):
            first = self.known.setdefault(place.dim.__name__, place.size)
            if first is not place.size and not bool(first == place.size):
                raise ValueError(
                    f"{place} has size {example} in the example, and elsewhere another one"
                )
        self._bound(place)

    def _bound(self, place: _Named) -> None:
        low, high = place.range
        if high is not int_oo:
            bool(place.size <= high)
        if low > 2:
            bool(place.size >= low)

    def _relate(self, place: _Named) -> None:
        """Tell the sizes that ``place`` is ``a * n + b``, where n is the size of its root. A root
        that is no dimension itself is computed from the first dimension that depends on it."""
        fn, root = place.dim.fn, place.dim.root.__name__
        offset, factor = fn(0), fn(1) - fn(0)
        example = self._example(place.size)
        if root not in self.known:
            if (example - offset) % factor:
                raise ValueError(
                    f"{place} has size {example} in the example, "
                    f"which is not {place.dim.__name__} for any {root}"
                )
            bool((place.size - offset) % factor == 0)
            self._bound(place)
            self.known[root] = (place.size - offset) // factor
            return
        expected = fn(self.known[root])
        if self._example(expected) != example:
            raise ValueError(
                f"{place} has size {example} in the example, "
                f"where {place.dim.__name__} is {self._example(expected)}"
            )
        bool(place.size == expected)
        self.derived[id(place)] = expected

    @staticmethod
    def _example(size: Any) -> int:
        if isinstance(size, int):
            return int(size)
        return int(size.node.hint)

    def ranges(self) -> dict[sympy.Symbol, ValueRanges[Any]]:
        """Return the range of each symbol. Raise if the program needs more than its Dim says."""
        by_symbol: dict[sympy.Symbol, _Named] = {}
        for place in self.places:
            symbol = self._symbol_of(place)
            if symbol is None:
                continue
            self._refuse_equal(place, by_symbol.setdefault(symbol, place))
            self._refuse_narrow(place, symbol)
        symbols: set[sympy.Symbol] = set()
        for fake in self.inputs:
            numbers = list(fake.shape)
            if fake.layout is torch.strided:
                numbers += fake.stride()
            for n in numbers:
                if isinstance(n, torch.SymInt):
                    symbols |= n.node.expr.free_symbols
        return {s: self.shape_env.var_to_range[s] for s in sorted(symbols, key=str)}

    def _symbol_of(self, place: _Named) -> sympy.Symbol | None:
        """Return the symbol that ``place`` is in the program. None if the root of its Dim says all
        of it, or an automatic one turned out to be no symbol. Raise if another one did."""
        env = self.shape_env
        expression = env.replace(place.size.node.expr)
        derived = self.derived.get(id(place))
        if derived is not None and not expression.is_number:
            says_all = expression == env.replace(derived.node.expr)
            if says_all:
                return None
        if expression.is_symbol:
            return expression
        if place.automatic:
            return None
        if expression.is_number:
            raise ValueError(
                f"{place}: the program is right for size {expression} alone. "
                "Leave the Dim out, or change the program."
            )
        raise ValueError(f"{place}: the program needs it to be {expression}. Give it Dim.AUTO.")

    def _refuse_equal(self, place: _Named, other: _Named) -> None:
        """Raise if two places with one symbol have different Dims."""
        if place.fixed and other.fixed and place.dim.__name__ != other.dim.__name__:
            raise ValueError(
                f"{place}, and {other}: the program needs them to be equal. Use one Dim for both."
            )

    def _refuse_narrow(self, place: _Named, symbol: sympy.Symbol) -> None:
        """Raise if the program needs a narrower range of ``symbol`` than the Dim of ``place``
        says."""
        if not place.fixed:
            return
        found = self.shape_env.var_to_range[symbol]
        low, high = place.range
        if found.lower > max(low, 2):
            bound = f"min={found.lower}"
        elif found.upper < high:
            bound = f"max={found.upper}"
        else:
            return
        raise ValueError(
            f"{place}: the program needs {found.lower} <= size <= {found.upper}. "
            f"Say Dim({place.dim.__name__!r}, {bound})."
        )

    def ranges_of_values(self, graph: fx.Graph) -> dict[sympy.Symbol, ValueRanges[Any]]:
        """Return the range of each size that depends on values, as that of ``torch.nonzero(x)``.
        Without it torch cannot load the program."""
        found = {s for node in graph.nodes for s in free_unbacked_symbols(node.meta.get("val"))}
        return {s: self.shape_env.var_to_range[s] for s in sorted(found, key=str)}

    def write_conditions(self, graph: fx.Graph) -> None:
        """Check in the graph what the range of a symbol does not say, and that a size is none of
        those that are constants."""
        env = self.shape_env
        # some symbols turned out to be numbers after the guard
        found = [env.replace(guard.expr) for guard in env.guards]
        conditions = [c for c in found if env._maybe_evaluate_static(c, axioms=()) is None]
        conditions += [sympy.Ge(s, r.lower) for s, r in self.ranges().items() if r.lower >= 2]
        self.forget_removed(graph)
        with graph.inserting_before(graph.output_node()):
            self._write_relations(graph)
            for condition in dict.fromkeys(conditions):
                holds = self.lower(env.create_symboolnode(condition))
                if isinstance(holds, fx.Node):
                    message = (
                        f"the exported program is right for {condition} alone; "
                        f"{self._describe_symbols(condition)}"
                    )
                    graph.call_function(torch.ops.aten._assert_scalar.default, (holds, message))
        _move_checks(graph)

    def _write_relations(self, graph: fx.Graph) -> None:
        """Check each size that is computed from others, such as ``2 * n``, or that turned
        out to be a number. Torch checks sizes that were numbers from the start, and those
        that are symbols."""
        env = self.shape_env
        for node, fake, name in self.bound:
            for at, size in enumerate(fake.shape):
                if not isinstance(size, torch.SymInt):
                    continue
                expression = env.replace(size.node.expr)
                if expression.is_symbol:
                    continue
                actual = graph.call_function(torch.ops.aten.sym_size.int, (node, at))
                actual.meta["val"] = size
                if expression.is_number:
                    wanted, symbols = int(expression), ""
                else:
                    example = self._example(size)
                    wanted = self.lower(env.create_symintnode(expression, hint=example))
                    symbols = f"; {self._describe_symbols(expression)}"
                holds = graph.call_function(operator.eq, (actual, wanted))
                message = (
                    f"the exported program is right if dimension {at} of {name} "
                    f"is {expression} alone{symbols}"
                )
                graph.call_function(torch.ops.aten._assert_scalar.default, (holds, message))

    def _describe_symbols(self, expression: Any) -> str:
        """Return what the symbols of ``expression`` are."""
        symbols = sorted(expression.free_symbols, key=str)
        return ", ".join(
            f"{s} is dimension {p.at} of {p.where}"
            for p in self.places
            for s in symbols
            if self._is(p, s)
        )

    def _is(self, place: _Named, symbol: object) -> bool:
        return bool(self.shape_env.replace(place.size.node.expr) == symbol)


def _move_checks(graph: fx.Graph) -> None:
    """Let what sizes of inputs alone decide be checked before the calls of the program. These may
    fail where a check does not hold, as an item of ``chunk`` that is not there."""
    needed = _nodes_of_checks(graph)
    later = [n for n in graph.nodes if n not in needed and n.op not in _INPUTS]
    first = next(n for n in later if n.target is not _ASSERT_METADATA)
    for n in [n for n in graph.nodes if n in needed and n.op not in _INPUTS]:
        first.prepend(n)


_INPUTS = ("placeholder", "get_attr")
_ASSERT = torch.ops.aten._assert_scalar.default
_ASSERT_METADATA = torch.ops.aten._assert_tensor_metadata.default


def _nodes_of_checks(graph: fx.Graph) -> set[fx.Node]:
    """Find the checks that follow from sizes of inputs alone, and the nodes that these need."""
    known = _nodes_of_input_sizes(graph)
    needed: set[fx.Node] = set()
    stack = [n for n in graph.nodes if n.target is _ASSERT and n in known]
    while stack:
        n = stack.pop()
        if n not in needed:
            needed.add(n)
            stack += n.all_input_nodes
    return needed


def _nodes_of_input_sizes(graph: fx.Graph) -> set[fx.Node]:
    """Find the inputs, and the nodes that compute with nothing but their sizes."""
    known = {n for n in graph.nodes if n.op in _INPUTS}
    for n in graph.nodes:
        if n.op != "call_function" or not known.issuperset(n.all_input_nodes):
            continue
        # a function of Python computes with numbers
        if n.target in _OF_SIZES or not isinstance(n.target, OpOverload):
            known.add(n)
    return known


def _is_dynamic(dim: object) -> bool:
    if isinstance(dim, DimHint):
        return dim.type is not DimHintType.STATIC
    return isinstance(dim, Dim)


def _check_spec(t: torch.Tensor, spec: Spec, name: str) -> None:
    """Raise if ``t`` does not have a dimension of ``spec``, or has another size there."""
    for dim in spec:
        if not 0 <= dim < t.dim():
            raise ValueError(
                f"dynamic_shapes has dimension {dim} of {name}, which has {t.dim()} dimensions"
            )
    for i, n in spec.items():
        if type(n) is int and n != t.shape[i]:
            raise ValueError(
                f"dynamic_shapes says {n} for dimension {i} of {name}, whose size is {t.shape[i]}"
            )


def specs_of(
    f: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, Any],
    dynamic_shapes: object,
) -> list[Any]:
    """For each leaf of the arguments what ``dynamic_shapes`` says of it, as
    ``torch.export.export`` takes it."""
    arguments = [*args, *kwargs.values()]
    if dynamic_shapes is None:
        given: list[Any] = [None] * len(arguments)
    elif isinstance(dynamic_shapes, Mapping):
        given = _by_name(f, args, kwargs, dynamic_shapes)
    elif isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) != len(arguments):
            raise ValueError(
                f"dynamic_shapes has {len(dynamic_shapes)} items for {len(arguments)} arguments"
            )
        given = list(dynamic_shapes)
    else:
        raise TypeError(
            "dynamic_shapes is a dict by name of argument, or a tuple with an item per argument, "
            f"not {type(dynamic_shapes)}"
        )
    return [
        leaf for value, spec in zip(arguments, given, strict=True) for leaf in _leaves(value, spec)
    ]


def parameters_of(f: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, or of the ``forward`` of a module."""
    if isinstance(f, torch.nn.Module):
        return inspect.signature(f.forward).parameters
    return inspect.signature(f).parameters


def _by_name(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Mapping[str, Any]
) -> list[Any]:
    """Return what ``shapes`` says of each argument, the positional ones first."""
    known = parameters_of(f)
    found: dict[Any, Any] = {}  # by name, or by the number of an item of ``*args``
    names: list[Any] = []
    for p in known.values():
        if p.kind is p.VAR_POSITIONAL:
            rest = range(len(names), len(args))
            given = shapes.get(p.name)
            if given is not None:
                found |= {i: given[i - rest.start] for i in rest}
            names += rest
        elif p.kind is p.VAR_KEYWORD:
            found |= shapes.get(p.name) or {}
        else:
            names.append(p.name)
    unknown = shapes.keys() - known.keys()
    if unknown:
        raise ValueError(
            f"dynamic_shapes has {sorted(unknown)}, which are no parameters of the program"
        )
    found = {**shapes, **found}
    return list(map(found.get, [*names[: len(args)], *kwargs]))


def _leaves(value: Any, spec: Any) -> Iterator[Any]:
    """``spec`` of each leaf of ``value``: None, or what it says by dimension."""
    if spec is None:
        yield from map(_constant_sizes, pytree.tree_leaves(value))
    elif isinstance(value, torch.Tensor) and isinstance(spec, (Mapping, list, tuple)):
        yield _by_dimension(spec)
    elif isinstance(spec, Mapping) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, spec.get(key))
    elif _are_sequences_of_one_length(value, spec):
        for item, part in zip(value, spec, strict=True):
            yield from _leaves(item, part)
    else:
        raise ValueError(
            f"dynamic_shapes says {spec!r} of an argument of type {type(value).__name__}, "
            "which does not have that structure"
        )


def _constant_sizes(x: object) -> dict[int, object] | None:
    """Return the spec of a leaf that ``dynamic_shapes`` says nothing of."""
    if isinstance(x, torch.Tensor):
        return {}
    return None


def _by_dimension(spec: Any) -> dict[int, object]:
    """Return the spec of a tensor as a dictionary."""
    if isinstance(spec, Mapping):
        return dict(spec)
    return {i: size for i, size in enumerate(spec) if size is not None}


def _are_sequences_of_one_length(value: Any, spec: Any) -> bool:
    """Tell whether ``spec`` has an item for each of ``value``."""
    both = isinstance(value, (list, tuple)) and isinstance(spec, (list, tuple))
    return both and len(value) == len(spec)
