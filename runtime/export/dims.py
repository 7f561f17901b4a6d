"""Turn ``torch.export.Dim`` of exported programs into symbols with ranges and conditions.

    export(f, (x, y), dynamic_shapes={"x": {0: Dim("n", min=4)}, "y": None})

Here the first size of ``x`` becomes a symbol of at least 4, and all other sizes are constants.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
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

from ..seam.graph_walks import inputs_of, walk
from ..torch_private.dispatcher import OpOverload
from ..torch_private.fake_tensors import FakeTensor
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
from .dynamic_shapes import Spec, check_spec, is_dynamic

_aten = torch.ops.aten
_ASSERT = _aten._assert_scalar.default
_ASSERT_METADATA = _aten._assert_tensor_metadata.default
_INPUT_OPS = ("placeholder", "get_attr")  # ``op`` of the nodes of a graph that are its inputs
# Operators that need no elements of tensors: they take the geometry of one, or numbers.
_SIZE_OPS = frozenset(
    (
        _aten.sym_size.int,
        _aten.sym_stride.int,
        _aten.sym_storage_offset.default,
        _ASSERT,
    )
)


@dataclass(frozen=True)
class _DimPlace:
    """A dimension of an argument for which ``dynamic_shapes`` has a ``Dim`` or a hint."""

    dim: Any  # the Dim or the hint
    argument: str
    index: int  # of the dimension
    size: Any  # that of the fake tensor: a SymInt, or a number if it is constant

    def __str__(self) -> str:
        name = f"the dimension marked {self.dim}"
        if isinstance(self.dim, Dim):
            name = f"Dim {self.dim.__name__!r}"
        return f"{name}, dimension {self.index} of {self.argument}"

    @property
    def range(self) -> tuple[Any, Any]:
        """Return the least and the largest size that it may have. The latter may be ``int_oo``."""
        if not self.is_derived:
            return _bounds(self.dim)
        low, high = _bounds(self.dim.root)
        # torch allows only increasing functions of a Dim, so the bounds of its root give its own
        low = max(self.dim.fn(low), 0)
        if high is not int_oo:
            high = self.dim.fn(high)
        return low, high

    @property
    def is_derived(self) -> bool:
        """Return whether its ``Dim`` is computed from another ``Dim``, as ``2 * Dim("n") + 1``."""
        return isinstance(self.dim, DerivedDim)

    @property
    def is_fixed(self) -> bool:
        """Return whether it is an error if the program narrows its range. A hint leaves that
        free."""
        return isinstance(self.dim, Dim)

    @property
    def is_automatic(self) -> bool:
        """Return whether the program may even make a constant of it: ``Dim.AUTO``."""
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
    """Make fake tensors of inputs, whose sizes are symbols where ``specs`` say so.

    ``specs`` has an item for each input, in the order in which :meth:`abstract` gets them. None is
    for an input that is no tensor. ``names`` are those of the inputs, for errors.

    The truth of a condition on symbols, ``bool(size <= 8)``, adds it to the guards of
    ``shape_env``. That is how ranges and relations get there: the result is not used.
    """

    def __init__(self, specs: Sequence[Spec], names: Sequence[str]) -> None:
        super().__init__()
        self.specs = dict(zip(names, specs, strict=True))
        # the tensors for which there is no fake tensor yet
        self.names_left = [name for name in names if self.specs[name] is not None]
        self.last_name = ""  # the input with the newest fake tensor
        self.places: list[_DimPlace] = []
        self.sizes_by_dim: dict[str, Any] = {}  # by name of a Dim, its first size
        # each placeholder with its fake tensor and its name
        self.placeholders: list[tuple[fx.Node, Any, str]] = []
        # by id of a place of a derived Dim: the size that follows from that of its root. By id,
        # because a hash of a place would ask for that of a symbolic size, which has none.
        self.expected_sizes: dict[int, Any] = {}

    def abstract(self, tensor: torch.Tensor, fixed: bool = False) -> FakeTensor:
        """Return a fake tensor for the next input ``tensor``, with symbols for its dynamic sizes.

        All sizes of a ``fixed`` input are constants, and it is none of ``names``. ``ValueError`` if
        ``tensor`` does not fit what ``dynamic_shapes`` says of it.
        """
        if fixed:
            return super().abstract(tensor, fixed=True)
        name = self.last_name = self.names_left.pop(0)
        spec = self.specs.get(name) or {}
        check_spec(tensor, spec, name)
        dims = {index: dim for index, dim in spec.items() if is_dynamic(dim)}
        # a size without a Dim is a constant of the program
        kinds = [DimDynamic.STATIC] * tensor.dim()
        for index in dims:
            kinds[index] = DimDynamic.DYNAMIC
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
        source = ConstantSource(f"input_{len(self.inputs)}")
        fake: Any = faked(self.mode, tensor, symbolic_context=context, source=source)
        self.inputs.append(fake)
        for index, dim in dims.items():
            place = _DimPlace(dim, name, index, fake.shape[index])
            self._constrain(place, int(tensor.shape[index]))
        if not self.names_left:  # only now the sizes of all roots are known
            self._relate_all()
        return fake  # type: ignore[no-any-return]

    def _relate_all(self) -> None:
        """Relate the sizes of derived Dims to those of their roots."""
        for place in self.places:
            if place.is_derived:
                self._relate(place)

    def bind(self, fake: object, node: fx.Node) -> None:
        """Remember the placeholder ``node`` of ``fake``, the newest fake tensor."""
        self.placeholders.append((node, fake, self.last_name))
        super().bind(fake, node)

    def _constrain(self, place: _DimPlace, example: int) -> None:
        """Add the range of ``place`` to the guards, and that places of one Dim have one size.

        ``example`` is the size that the input has. ``ValueError`` if its Dim does not allow that.
        """
        low, high = place.range
        if not isinstance(place.size, torch.SymInt):
            if place.is_automatic:
                return  # its size is 0 or 1, which are constants for torch
            raise ValueError(
                f"{place} has size {example} in the example. Sizes 0 and 1 are constants, "
                "so take a larger example."
            )
        if not low <= example <= high:
            raise ValueError(
                f"{place} has size {example} in the example, which is not between {low} and {high}"
            )
        self.places.append(place)
        if place.is_derived:
            return  # _relate_all is for these
        # the first place of a Dim has its symbol, and an equality becomes a guard at each other one
        if isinstance(place.dim, Dim):
            first_size = self.sizes_by_dim.setdefault(place.dim.__name__, place.size)
            if first_size is not place.size and not bool(first_size == place.size):
                raise ValueError(
                    f"{place} has size {example} in the example, and elsewhere another one"
                )
        self._guard_range(place)

    def _guard_range(self, place: _DimPlace) -> None:
        """Add the bounds of ``place`` to the guards."""
        low, high = place.range
        # the truth adds the guard, see the class
        if high is not int_oo:
            bool(place.size <= high)
        # the range of every symbol begins at 2, as 0 and 1 are constants
        if low > 2:
            bool(place.size >= low)

    def _relate(self, place: _DimPlace) -> None:
        """Add to the guards that ``place`` is ``factor * n + offset``, where n is the size of its
        root.

        A root that is no dimension itself is computed from the first dimension that depends on it.
        ``ValueError`` if the sizes of the example are not related in this way.
        """
        compute, root = place.dim.fn, place.dim.root.__name__
        # two values are enough: torch allows only linear functions of a Dim
        offset, factor = compute(0), compute(1) - compute(0)
        example = self._example(place.size)
        if root not in self.sizes_by_dim:
            if (example - offset) % factor:
                raise ValueError(
                    f"{place} has size {example} in the example, "
                    f"which is not {place.dim.__name__} for any {root}"
                )
            bool((place.size - offset) % factor == 0)
            self._guard_range(place)
            self.sizes_by_dim[root] = (place.size - offset) // factor
            return
        expected = compute(self.sizes_by_dim[root])
        expected_example = self._example(expected)
        if expected_example != example:
            raise ValueError(
                f"{place} has size {example} in the example, "
                f"where {place.dim.__name__} is {expected_example}"
            )
        bool(place.size == expected)
        self.expected_sizes[id(place)] = expected

    @staticmethod
    def _example(size: Any) -> int:
        """Return the number that ``size`` is for the example inputs."""
        if isinstance(size, int):
            return int(size)
        return int(size.node.hint)

    def ranges(self) -> dict[sympy.Symbol, ValueRanges[Any]]:
        """Return the range of each symbol in the sizes and strides of inputs.

        ``ValueError`` if the program needs a narrower range or other relations than a Dim says.
        """
        # two Dims with one symbol, or a narrower range, are relations that no Dim says
        by_symbol: dict[sympy.Symbol, _DimPlace] = {}
        for place in self.places:
            symbol = self._symbol_of(place)
            if symbol is None:
                continue
            first = by_symbol.setdefault(symbol, place)
            self._refuse_equal(place, first)
            self._refuse_narrow(place, symbol)
        # a stride may have a symbol that no size has
        symbols: set[sympy.Symbol] = set()
        for fake in self.inputs:
            numbers = list(fake.shape)
            if fake.layout is torch.strided:
                numbers += fake.stride()
            for number in numbers:
                if isinstance(number, torch.SymInt):
                    symbols |= number.node.expr.free_symbols
        # sorted, because the order of a set differs from run to run
        ordered = sorted(symbols, key=str)
        return {symbol: self.shape_env.var_to_range[symbol] for symbol in ordered}

    def _symbol_of(self, place: _DimPlace) -> sympy.Symbol | None:
        """Return the symbol that the size of ``place`` is, now that the program has been traced.

        None if its root says all of it, and if it is automatic and the program made something else
        of it. ``ValueError`` for any other place that the program made something else of.
        """
        env = self.shape_env
        expression = env.replace(place.size.node.expr)
        expected = self.expected_sizes.get(id(place))
        if expected is not None and not expression.is_number:
            root_says_all = expression == env.replace(expected.node.expr)
            if root_says_all:
                return None
        if expression.is_symbol:
            return expression
        if place.is_automatic:
            return None
        if expression.is_number:
            raise ValueError(
                f"{place}: the program is right for size {expression} alone. "
                "Leave the Dim out, or change the program."
            )
        raise ValueError(f"{place}: the program needs it to be {expression}. Give it Dim.AUTO.")

    def _refuse_equal(self, place: _DimPlace, other: _DimPlace) -> None:
        """Raise if two places with one symbol have different Dims."""
        if place.is_fixed and other.is_fixed and place.dim.__name__ != other.dim.__name__:
            raise ValueError(
                f"{place}, and {other}: the program needs them to be equal. Use one Dim for both."
            )

    def _refuse_narrow(self, place: _DimPlace, symbol: sympy.Symbol) -> None:
        """Raise if the program needs a narrower range of ``symbol`` than the Dim of ``place``
        says."""
        if not place.is_fixed:
            return
        # torch takes sizes 0 and 1 for constants, so a symbol begins at 2 in any case
        needed = self.shape_env.var_to_range[symbol]
        low, high = place.range
        if needed.lower > max(low, 2):
            bound = f"min={needed.lower}"
        elif needed.upper < high:
            bound = f"max={needed.upper}"
        else:
            return
        raise ValueError(
            f"{place}: the program needs {needed.lower} <= size <= {needed.upper}. "
            f"Say Dim({place.dim.__name__!r}, {bound})."
        )

    def ranges_of_values(self, graph: fx.Graph) -> dict[sympy.Symbol, ValueRanges[Any]]:
        """Return the range of each size that depends on values, as that of ``torch.nonzero(x)``.
        Without it torch cannot load the program."""
        symbols: set[sympy.Symbol] = set()
        for node in graph.nodes:
            symbols.update(free_unbacked_symbols(node.meta.get("val")))
        ordered = sorted(symbols, key=str)  # as in `ranges`
        return {symbol: self.shape_env.var_to_range[symbol] for symbol in ordered}

    def write_conditions(self, graph: fx.Graph) -> None:
        """Add checks of the sizes of inputs to the graph, before the calls of the program.

        They are for what the range of a symbol does not say, and for sizes 0 and 1, which the
        program takes for constants. A failed check names the dimension.
        """
        env = self.shape_env
        # some symbols turned out to be numbers after the guard
        guards = [env.replace(guard.expr) for guard in env.guards]
        # Ranges decide the others. The axioms of the environment are these guards, so with them
        # each guard would be decided.
        conditions = [
            guard for guard in guards if env._maybe_evaluate_static(guard, axioms=()) is None
        ]
        # the program takes 0 and 1 for constants, so a range from 2 on needs a check
        conditions += [
            sympy.Ge(symbol, interval.lower)
            for symbol, interval in self.ranges().items()
            if interval.lower >= 2
        ]
        # passes over the graph came before this, and a removed node cannot be read again
        self.forget_removed(graph)
        with graph.inserting_before(graph.output_node()):
            self._write_relations(graph)
            for condition in dict.fromkeys(conditions):  # each once, in order
                holds = self.lower(env.create_symboolnode(condition))
                if isinstance(holds, fx.Node):
                    message = (
                        f"the exported program is right for {condition} alone; "
                        f"{self._describe_symbols(condition)}"
                    )
                    graph.call_function(_ASSERT, (holds, message))
        _move_checks(graph)

    def _write_relations(self, graph: fx.Graph) -> None:
        """Check each size that is computed from others, such as ``2 * n``, or that turned
        out to be a number.

        Torch checks sizes that were numbers from the start, and those that are symbols.
        """
        for node, fake, name in self.placeholders:
            for index, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt):
                    self._write_relation(graph, node, index, size, name)

    def _write_relation(
        self, graph: fx.Graph, node: fx.Node, index: int, size: torch.SymInt, name: str
    ) -> None:
        """Check dimension ``index`` of the placeholder ``node``, whose size is ``size``, unless
        that is a symbol. ``name`` is that of the input."""
        env = self.shape_env
        expression = env.replace(size.node.expr)
        if expression.is_symbol:
            return
        # the size in the call, and the one that the program is for: a number, or one of symbols
        actual = graph.call_function(_aten.sym_size.int, (node, index))
        actual.meta["val"] = size
        if expression.is_number:
            expected, symbols = int(expression), ""
        else:
            example = self._example(size)
            expected = self.lower(env.create_symintnode(expression, hint=example))
            symbols = f"; {self._describe_symbols(expression)}"
        holds = graph.call_function(operator.eq, (actual, expected))
        message = (
            f"the exported program is right if dimension {index} of {name} "
            f"is {expression} alone{symbols}"
        )
        graph.call_function(_ASSERT, (holds, message))

    def _describe_symbols(self, expression: Any) -> str:
        """Return where the symbols of ``expression`` come from: "s0 is dimension 1 of x"."""
        symbols = sorted(expression.free_symbols, key=str)
        descriptions: list[str] = []
        for place in self.places:
            for symbol in symbols:
                if self._is_symbol(place, symbol):
                    descriptions.append(f"{symbol} is dimension {place.index} of {place.argument}")
        return ", ".join(descriptions)

    def _is_symbol(self, place: _DimPlace, symbol: object) -> bool:
        """Tell whether the size of ``place`` is ``symbol``."""
        return bool(self.shape_env.replace(place.size.node.expr) == symbol)


def _move_checks(graph: fx.Graph) -> None:
    """Move the checks of sizes of inputs before the calls of the program.

    If a size is wrong, a call may raise before its check has run: ``x.chunk(2)[1]``, where ``x``
    has one element. Only checks that need no result of a call can move. The asserts of the
    inputs' metadata stay before them.
    """
    needed = _nodes_of_checks(graph)
    nodes = [node for node in graph.nodes if node.op not in _INPUT_OPS]
    first_call = next(
        node for node in nodes if node not in needed and node.target is not _ASSERT_METADATA
    )
    for node in nodes:
        if node in needed:
            first_call.prepend(node)


def _nodes_of_checks(graph: fx.Graph) -> set[fx.Node]:
    """Find the checks that follow from sizes of inputs alone, and the nodes that these need."""
    from_sizes = _nodes_of_input_sizes(graph)
    checks = [node for node in graph.nodes if node.target is _ASSERT and node in from_sizes]
    return set(walk(checks, inputs_of))


def _nodes_of_input_sizes(graph: fx.Graph) -> set[fx.Node]:
    """Find the inputs, and the nodes that compute with nothing but their sizes.

    The order of the graph is one of definition before use, so one pass finds all.
    """
    known = {node for node in graph.nodes if node.op in _INPUT_OPS}
    for node in graph.nodes:
        if node.op != "call_function" or not known.issuperset(node.all_input_nodes):
            continue
        # a function that is no operator, such as ``operator.mul``, computes with numbers
        if node.target in _SIZE_OPS or not isinstance(node.target, OpOverload):
            known.add(node)
    return known
