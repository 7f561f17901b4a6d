"""The inputs and constants of a trace: what the calls in its graph take.

    graph():
        %x : placeholder                    # an input
        %_tensor_constant0 : get_attr       # a tensor that the program closes over
        %mul : call_function[aten.mul.Tensor](%x, %_tensor_constant0)

:class:`.trace_level.Trace` runs the calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import count
from math import isfinite
from typing import Any

import torch
from torch import fx

from ..seam import factories
from ..seam.levels import Level
from ..seam.shells import faithful_shell
from ..torch_private.fake_tensors import FakeTensor
from ..torch_private.mode_stacks import without_modes
from .abstract_values import AbstractValues
from .number_reads import number_of, with_values
from .outside import OutsideMemory, detach_from_tapes, private_copy, refuse_made_of_values
from .provenance import Provenance, here
from .random_states import RandomStates
from .symbols import SYMBOLIC, Abstraction
from .trace_value import TracedValue

LITERAL_KINDS: frozenset[type] = frozenset(
    (
        int,
        float,
        bool,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)
_IN_GRAPHS = (*LITERAL_KINDS, complex, fx.Node, slice, range)


class TraceInputs(Level):
    """A level that collects what calls of a graph take."""

    __slots__ = (
        "_last_placeholder",
        "_numbers",
        "abstract",
        "abstraction",
        "attributes",
        "constants",
        "graph",
        "held",
        "outside",
        "provenance",
        "random_states",
        "reads",
    )

    def __init__(
        self,
        *,
        abstraction: Abstraction | None,
        reads: str,
        provenance: Provenance | None,
        late: bool,
    ) -> None:
        super().__init__()
        # The meaning of ``.item()``: ``"refuse"``, ``"symbol"`` (of an abstract value),
        # ``"constant"`` or ``"number"`` (see :mod:`.number_reads`).
        self.reads = reads
        # notes where nodes come from
        self.provenance = provenance
        # placeholders and constants are written here, and the constants it refers to are attributes
        # of its module, by name
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        # by prefix of the names of attributes
        self._numbers: defaultdict[str, count[int]] = defaultdict(count)
        self._last_placeholder: fx.Node | None = None
        # by id of a tensor that is no value of this level: its value; of another object: its node
        self.constants: dict[int, Any] = {}
        self.held: list[object] = []  # keeps ids in `constants` valid
        self.outside = OutsideMemory(abstraction is not None)
        # if a program that sets such a state is refused
        self.random_states: RandomStates | None = None
        # the fake mode of a program that runs on fake tensors
        self.abstraction = abstraction
        self.abstract = AbstractValues(
            None if abstraction is None else abstraction.mode, late and abstraction is None
        )

    def wrap(self, inner: torch.Tensor, node: fx.Node | None = None, /) -> TracedValue:
        """Return the tensor of ``node``; without one a constant of the program."""
        if node is None:
            return self.constant(inner)
        self.abstract.describe(node, inner)
        return self._value(inner, node)

    def _value(self, inner: torch.Tensor, node: fx.Node) -> TracedValue:
        """Return the value that stands for ``node``, whose abstract value is noted already."""
        value: TracedValue = faithful_shell(TracedValue, inner)
        value._level = self
        value._inner = inner
        value._node = node
        return value

    def placeholder(self, name: str) -> fx.Node:
        """Return a new placeholder. It precedes all calls, also when it comes late, as a cotangent
        does, whose shape is that of a result."""
        if self._last_placeholder is None:
            place = self.graph.inserting_before(next(iter(self.graph.nodes), None))
        else:
            place = self.graph.inserting_after(self._last_placeholder)
        with place:
            self._last_placeholder = self.graph.placeholder(name)
        return self._last_placeholder

    def input(self, tensor: torch.Tensor, name: str, fixed: bool = False) -> TracedValue:
        """Return a placeholder of the shape and dtype of ``tensor``. ``fixed``: its sizes are
        constants, whatever those of other inputs are."""
        node = self.placeholder(name)
        if self.abstraction is None:
            return self.wrap(private_copy(tensor), node)
        fake = self.abstraction.abstract(tensor, fixed)
        self.abstraction.bind(fake, node)
        return self.wrap(fake, node)

    def unknown(self, n: float, name: str) -> Any:
        """Return a placeholder for a number whose value is a symbol."""
        assert self.abstraction is not None
        node = self.placeholder(name)
        symbol = self.abstraction.unknown(n, node)
        self.abstract.describe(node, symbol)
        return symbol

    def late_input(self, like: TracedValue, name: str) -> TracedValue:
        """Return a placeholder of the shape and dtype of ``like``, whose sizes introduce no symbols
        of their own."""
        node = self.placeholder(name)
        # else the transforms within would take the example for a value of theirs
        with without_modes(), self.mode_of_inner():
            inner = factories.ones_like(like._inner, memory_format=torch.contiguous_format)
        return self.wrap(inner, node)

    def mode_of_inner(self) -> Any:
        """Return the context in which inner tensors can be created: the fake mode, if there is
        one."""
        return _NOTHING if self.abstraction is None else self.abstraction.mode

    def attribute(self, value: object, prefix: str) -> fx.Node:
        """Return a node that reads ``value`` from the module: what is no literal of Python is an
        attribute of it."""
        name = f"{prefix}{next(self._numbers[prefix])}"
        self.attributes[name] = value
        node = self.graph.get_attr(name)
        if self.provenance is not None:
            self.provenance.note(node)
        return node

    def constant(self, tensor: torch.Tensor, literal: bool = False) -> TracedValue:
        """Return a tensor that the program closes over, or a literal of its text. It is an
        attribute of the graph module and no copy, so later changes of it are seen."""
        # one attribute for one tensor, however often the program uses it
        value: TracedValue | None = self.constants.get(id(tensor))
        if value is None:
            refuse_made_of_values(tensor)
            # the state of a generator would be that of the trace in each call
            if self.random_states is not None:
                self.random_states.refuse_state(tensor)
            if self.abstraction is None and isinstance(tensor, FakeTensor):
                raise RuntimeError(
                    "the program closes over a fake tensor, and its arguments are real. "
                    f"Pass it as an argument, or give fake arguments of the same mode.{here()}"
                )
            prefix = "_tensor_constant"
            if isinstance(tensor, torch.nn.Parameter):
                prefix = "_param_constant"
            node = self.attribute(tensor, prefix)
            inner = detach_from_tapes(tensor)
            if self.abstraction is not None:
                inner = self.abstraction.constant(inner, literal)
            self.outside.hold(tensor)
            value = self.constants[id(tensor)] = self.wrap(inner, node)
            self.held.append(tensor)
        return value

    def other_constant(self, argument: object) -> fx.Node:
        """Return a constant that is neither a tensor nor a literal of Python: a generator, a script
        object, an outer size, ``1 + infj``."""
        node = self.constants.get(id(argument))
        if node is None:
            node = self.constants[id(argument)] = self.attribute(
                argument, "_symbolic_constant" if isinstance(argument, SYMBOLIC) else "_opaque_obj"
            )
            self.held.append(argument)
        return node

    def _operands(self, args: Iterable[Any]) -> tuple[list[object], list[object], list[object]]:
        """Return the arguments of a call three times: of this level, as in the graph, and on the
        tensors that it runs on."""
        own: list[Any] = []
        in_graph: list[Any] = []
        inner: list[Any] = []
        for argument in args:
            kind = type(argument)
            if kind is TracedValue and argument._level is self:
                own.append(argument)
                in_graph.append(argument._node)
                inner.append(argument._inner)
            elif kind in LITERAL_KINDS:
                own.append(argument)
                in_graph.append(argument)
                inner.append(argument)
            else:
                mine: Any
                if isinstance(argument, (list, tuple)):
                    mine = list(map(self._own, argument))
                    in_graph.append(list(map(self._operand, mine)))
                else:
                    mine = self._own(argument)
                    in_graph.append(self._operand(mine))
                own.append(mine)
                # on numbers of the program the kernels need the values of this run
                below = self.lowered_args((mine,))[0]
                inner.append(with_values(below) if self.reads == "number" else below)
        return own, in_graph, inner

    def _own(self, argument: object) -> Any:
        """Return ``argument`` as one of this level: a tensor of another one becomes a constant of
        the graph."""
        if not isinstance(argument, torch.Tensor) or (
            isinstance(argument, TracedValue) and argument._level is self
        ):
            return argument
        return self.constant(argument)

    def _operand(self, argument: object) -> Any:
        """Return ``argument``, of this level, as it stands in a call of the graph: a node, a
        literal, or a node that reads it from the module."""
        if isinstance(argument, TracedValue):
            return argument._node
        if type(argument) is complex and not isfinite(argument.imag):
            return self.other_constant(argument)  # its text, "(1+infj)", is no Python
        if isinstance(argument, _IN_GRAPHS):
            return argument
        if (number := number_of(argument)) is not None:
            return number.node
        if (
            isinstance(argument, SYMBOLIC)
            and self.abstraction is not None
            and self.abstraction.knows(argument)
        ):
            return self.abstraction.lower(argument)
        return self.other_constant(argument)

    def lower_output(self, value: object) -> Any:
        """Return what a result of the program is in the graph: a node, or a Python value as it
        is."""
        return self._operand(self._own(value))


_NOTHING = nullcontext()
