"""Tensors that a program closes over become arguments of its graph.

    w = torch.ones(2, requires_grad=True)
    compiled = aot_function(lambda x: x * w, …)     # the graph takes x and w

So a parameter gets its gradient, a buffer that the program writes to is written to by every call,
and a tensor that changed between the forward and the backward pass is noticed by its version.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import fx

from ...rules.ops import VIEW, op_of
from ...seam.level_mode import EnteringMode, call_below
from ...seam.levels import Value, values_of
from ...seam.memory_gate import address_of, elements_of, memory_gate
from ...seam.shells import VALUES
from ...seam.surgery import GEOMETRY, show_geometry
from ...seam.user_code import unwatched
from ...session.tensor import SESSION
from ...torch_private.mode_stacks import unseen_by_handlers, without_modes
from ...trace.number_reads import number_of
from ...trace.provenance import CALL, line_of, refuse_default_dtype
from ...trace.symbols import SYMBOLIC
from ...trace.trace_value import TracedValue

_OF_TORCH = frozenset(("aten", "prim", "prims", "quantized", "mkldnn"))
_default_dtype = torch.get_default_dtype  # by one look-up
_TURNS = frozenset(
    getattr(packet, overload)
    for packet in (getattr(torch.ops.aten, name) for name in GEOMETRY)
    for overload in packet.overloads()
)
"""Ops that change sizes and strides of their argument in place."""


class ClosedOver(EnteringMode):
    """While entered, exchanges each tensor from outside for the value that ``enter`` makes of it,
    once per tensor."""

    def __init__(self, enter: Callable[[torch.Tensor], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.enter = enter
        self.found = []
        self._values: dict[int, Any] = {}  # by id of a tensor in `found`
        # tensors from outside whose elements the program has read, with the elements
        self.elements: list[tuple[torch.Tensor, bytes]] = []
        self._dtype = _default_dtype()
        self._geometry = _Geometry()
        self._depth = 0  # an operator of control flow enters the mode once more

    def __enter__(self) -> ClosedOver:
        self._depth += 1
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            if not self._depth:
                self._geometry.restore()

    def value(self, tensor: Any) -> Any:
        """Return the value of a tensor from outside, one for each tensor. Anything else as it
        is."""
        is_inside = type(tensor) in VALUES and tensor._level is not SESSION
        if is_inside or not isinstance(tensor, torch.Tensor):
            return tensor
        known = self._values.get(id(tensor))
        if known is None:
            self.found.append(tensor)
            known = self._values[id(tensor)] = self.enter(tensor)
        return known

    def _entered(self, args: Any) -> Any:
        """Return ``args``, a list or tuple, with values in place of tensors from outside, nested
        ones too."""
        entered: list[Any] = []
        for argument in args:
            kind = type(argument)
            # the most common case, without a frame
            if kind in VALUES and argument._level is not SESSION:
                entered.append(argument)
            elif kind is tuple or kind is list:
                entered.append(self._entered(argument))
            else:
                entered.append(self.value(argument))
        return entered if type(args) is list else tuple(entered)

    def _written(self) -> list[torch.Tensor]:
        """Return the tensors from outside that the program has written to."""
        return [tensor for tensor in self.found if _is_written(self._values[id(tensor)])]

    def overtakes(self, address: int) -> bool:
        return any(address_of(tensor) == address for tensor in self._written())

    def refuse_shared_writes(self) -> None:
        """Raise if the program has written to a tensor whose memory it has as an array."""
        with memory_gate() as gate:
            for tensor in self._written() if gate.shared else ():
                gate.refuse_written(tensor)

    def note_elements(self, tensor: torch.Tensor) -> None:
        if all(tensor is not known for known, _ in self.elements):
            self.elements.append((tensor, elements_of(tensor)))

    def exchange(self, tensor: torch.Tensor, value: object) -> None:
        self._values[id(tensor)] = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call of the program with values in place of tensors from outside."""
        if func is torch.ops.aten.lift_fresh.default:
            return func(*args)  # a literal of the program's text: no tensor from outside
        # which calls without a dtype have, and each call of the graph finds its own
        if _default_dtype() is not self._dtype:
            refuse_default_dtype()
        around = CALL.made_by
        CALL.made_by = sys._getframe(1)
        try:
            if func.namespace not in _OF_TORCH:  # its kernel may be the user's Python
                return self._dispatched(func, types, args, kwargs)
            return unwatched(self._dispatched, func, types, args, kwargs)
        finally:
            CALL.made_by = around

    def _dispatched(self, func: Any, types: object, args: Any, kwargs: Any) -> Any:
        """Run a call of the dispatcher with values in place of tensors from outside."""
        args = self._entered(args)
        values = self._entered([*kwargs.values()]) if kwargs else []
        kwargs = dict(zip(kwargs or (), values, strict=True))
        # torch's own detaches from torch's engine alone, and dispatches nothing
        if func is torch.ops.aten.detach_.default:
            return args[0].detach_()
        if torch.is_inference_mode_enabled() and op_of(func).kind is VIEW:
            # the dispatcher makes the result a view of a normal tensor
            with torch.inference_mode(False), torch.no_grad():
                return func(*args, **kwargs)
        result = call_below(func, types, args, kwargs)
        if func in _TURNS:
            for tensor in self._shown_by(args[0]):
                self._geometry.follow(tensor, func, args[1:], kwargs)
        return result

    def _shown_by(self, value: object) -> list[torch.Tensor]:
        """Return the tensors from outside for which the program has ``value``."""
        return [tensor for tensor in self.found if self._values[id(tensor)] is value]


class _Geometry:
    """Let tensors from outside show, while a program runs, the sizes that it gives them.

        self.v.unsqueeze_(0)
        return x * self.v.dim()         # asks the tensor itself, and is to get 2 for a vector

    What a tensor says of its sizes is no call of an op, so that no value can answer. The tensor
    changes as its value does, and changes back when the run ends: a call changes it for good.

    ``_before``: by identity, each such tensor with a view from before the first change.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}

    def follow(
        self, tensor: torch.Tensor, func: Any, rest: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Change ``tensor`` as ``func``, an op that changes sizes or strides in place, does."""
        functional = op_of(func).functional
        assert functional is not None, "a change of geometry is a view in place"
        view_op = functional.func
        with without_modes(), unseen_by_handlers(), torch.no_grad():
            now = tensor.detach()
            self._before.setdefault(id(tensor), (tensor, now, _inner_of(tensor)))
            after = view_op(now, *rest, **kwargs)
            show_geometry(tensor, after, _inner_of(after))

    def restore(self) -> None:
        """Give the tensors the geometry from before."""
        with unseen_by_handlers():
            for tensor, before, inner in self._before.values():
                show_geometry(tensor, before, inner)
        self._before.clear()


def _inner_of(tensor: Any) -> Any:
    """Return what ``tensor`` holds, if it is a value."""
    return tensor._inner if isinstance(tensor, Value) else None


def _is_written(value: object) -> bool:
    return any(part._level.has_written(part) for part in values_of(value))


def modules_of(function: object) -> tuple[torch.nn.Module, ...]:
    """Return the modules that ``function`` calls as far as they are at hand: ``function`` itself,
    what it is a method of or closes over, with their children."""
    found: dict[int, torch.nn.Module] = {}
    for x in at_hand(function, 3):
        if isinstance(x, torch.nn.Module):
            found.update((id(module), module) for module in x.modules())
    return tuple(found.values())


def generators_of(f: object) -> list[torch.Generator]:
    """Return the random generators that ``f`` closes over, as far as they are at hand."""
    found: dict[int, Any] = {}
    for x in at_hand(f, 3):
        candidates = [x]
        if isinstance(x, FunctionType):
            candidates += map(x.__globals__.get, x.__code__.co_names)
        generators = [value for value in candidates if isinstance(value, torch.Generator)]
        found.update((id(generator), generator) for generator in generators)
    # `RandomStates` has torch's own in any case
    found.pop(id(torch.default_generator), None)
    return list(found.values())


def attributes_of(x: object) -> Mapping[str, Any] | None:
    """Return ``vars(x)``, or None. No ``__getattr__`` of the user's is run, which may raise
    anything."""
    try:
        own: Mapping[str, Any] = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    return own


def holds_values(function: object) -> bool:
    """Return whether ``function``, a function or an object, holds values of a trace or of another
    level, or sizes that are symbols, as far as they are at hand."""
    return any(x is not function for x in _values_in(function))


def computed_at(function: object) -> str:
    """Return the user's line that has computed the first value that ``function`` holds or is, as
    the end of an error message. Empty if it is not known."""
    for x in _values_in(function):
        lines = map(line_of, _nodes_of(x))
        if (line := next(filter(None, lines), None)) is not None:
            return f" It was computed at {line}"
    return ""


def _nodes_of(x: object) -> list[fx.Node]:
    """Return the nodes of the graph that give ``x``, a value or a number that is read of one."""
    if isinstance(x, SYMBOLIC):
        known = number_of(x)
        if known is None:
            return []
        # a source is the call that reads the number; what it reads was computed on the line
        return [node for source in known.sources for node in source.all_input_nodes]
    while isinstance(x, Value) and not isinstance(x, TracedValue):
        x = x._inner
    return [x._node] if isinstance(x, TracedValue) else []


def _values_in(function: object) -> Iterator[object]:
    own = None if isinstance(function, (torch.nn.Module, type)) else attributes_of(function)
    for y in (*(own or {}).values(), function):
        for x in at_hand(y, 5):
            if isinstance(x, SYMBOLIC) or (isinstance(x, Value) and x._level.number > 0):
                yield x


def at_hand(function: object, depth: int) -> Iterator[Any]:
    """Yield ``function``, and what one comes to from it by closures, partial arguments, methods,
    lists and dictionaries, in ``depth`` steps."""
    yield function
    below: list[Any] = []
    if isinstance(function, functools.partial):
        below = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, MethodType):
        below = [function.__self__, function.__func__]
    elif isinstance(function, FunctionType):
        below = [
            *(cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)),
            getattr(function, "__wrapped__", None),
        ]
        below += [
            function.__globals__[name]
            for name in function.__code__.co_names
            if isinstance(function.__globals__.get(name), torch.nn.Module)
        ]
    elif isinstance(function, (list, tuple)):
        below = list(function)
    elif isinstance(function, dict):
        below = list(function.values())
    if depth:
        for x in below:
            yield from at_hand(x, depth - 1)


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
