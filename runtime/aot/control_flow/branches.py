"""A function that is captured apart from the program around it: a branch of ``cond``,
the body of a loop.

It becomes a graph of ATen calls that takes every tensor it uses as an argument, those that it
closes over included. So any transform around it can be applied to it as to a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import fx

from ...autograd.function import Function, FunctionClass, rule, run_forward
from ...func.draws import DrawPerElement
from ...functionalize.functional_level import FunctionalLevel
from ...functionalize.functional_value import FunctionalValue
from ...rules.ops import INPLACE, generator_of, op_of
from ...seam import factories
from ...seam.generator_states import own_draws
from ...seam.level_mode import EnteringMode
from ...seam.levels import Value, bottom, innermost, levels_of
from ...torch_private.dispatcher import OpOverload
from ...torch_private.fake_tensors import FakeTensor, FakeTensorMode
from ...torch_private.mode_stacks import current_dispatch_modes, without_modes
from ...torch_private.pytrees import pytree
from ...trace.call_facts import facts_of
from ...trace.graph_capture import module_of, run_trace
from ...trace.pre_dispatch import note_modes, suspended
from ...trace.provenance import Provenance, here, made_at
from ...trace.random_states import RandomStates
from ...trace.symbols import SYMBOLIC, Given
from ...trace.trace_level import Trace
from ..python_state.closed_over import at_hand, generators_of
from ..python_state.object_graph import early_graph


class Piece(NamedTuple):
    """A function to capture. ``what``: its name in errors. ``run`` takes tensors and
    returns a pytree.

    ``contiguous``: how many of its first arguments are the carry of a loop. The elements of these
    and of the results lie one after the other, because results are the arguments of the next step.
    ``copies``: a result that shares memory with an argument or another result is copied. Without it
    such a result is refused."""

    what: str
    run: Callable[..., Any]
    contiguous: int = 0
    copies: bool = False


@dataclass(frozen=True)
class Branch:
    """``module`` maps tensors to a tuple of tensors. ``spec``: the tree of what the function
    returns. ``constants``: its leaves, a tensor as ``Ellipsis``."""

    module: fx.GraphModule
    spec: pytree.TreeSpec | None = None
    constants: tuple[Any, ...] = ()

    def returned(self, tensors: Sequence[object]) -> Any:
        """Return what the function returns, of the tensors among it."""
        assert self.spec is not None
        rest = iter(tensors)
        return pytree.tree_unflatten(
            [next(rest) if c is ... else c for c in self.constants], self.spec
        )

    def results(self) -> list[fx.Node]:
        """Return the nodes of the tensors that the graph returns."""
        found: Any = self.module.graph.output_node().args[0]
        return list(found) if isinstance(found, (list, tuple)) else [found]


class ControlFlow(Function):
    """A Function whose call is in a graph as one operator, with its derivative. It may stand
    inside a branch."""

    @classmethod
    def apply(cls, *args: object, **kwargs: object) -> Any:
        note_modes()  # here, as ``forward`` runs under no_grad
        return super().apply(*_with_draws_of_each_element(args), **kwargs)


def draws(branch: Branch) -> bool:
    """Return whether ``branch`` draws random numbers."""
    return _draw_in(branch) is not None


def _draw_in(branch: Branch) -> fx.Node | None:
    """A call that draws random numbers."""
    for module in branch.module.modules():
        for node in getattr(module, "graph", fx.Graph()).nodes:
            if isinstance(node.target, OpOverload):
                record = op_of(node.target).record
                if torch.Tag.nondeterministic_seeded in node.target.tags or (
                    record is not None and record.draws is not None
                ):
                    return node  # type: ignore[no-any-return]
    return None


def drawing(trace: Trace, *branches: Branch) -> AbstractContextManager[None]:
    """Around a call in ``trace`` that may run ``branches``, which may draw."""
    generators: dict[int, Any] = {}
    for module in (m for branch in branches for m in branch.module.modules()):
        for n in getattr(module, "graph", fx.Graph()).nodes:
            if isinstance(n.target, OpOverload) and facts_of(n.target).may_draw:
                attributes = [
                    attrgetter(a.target)(module) for a in n.all_input_nodes if a.op == "get_attr"
                ]
                generator: Any = generator_of(attributes, {})
                generators[generator._cdata] = generator
    return trace.drawing(list(generators.values()))


def refuse_draws(what: str, *branches: Branch) -> None:
    """Refuse a derivative of branches that draw. It runs them once more, so it would be
    that of other draws."""
    for n in filter(None, map(_draw_in, branches)):
        raise RuntimeError(
            f"{what} draws random numbers, and is differentiated. "
            "A derivative runs it once more, and would draw others. Draw the numbers outside, "
            f"and let it use them.{made_at(n)}"
        )


def _with_draws_of_each_element(args: Sequence[Any]) -> Sequence[object]:
    """Return the arguments of a call whose branches may draw. Where each element of a batch draws
    for itself, one of them becomes a batch: else the level of the batch would not see the call."""
    levels: list[Any] = [
        mode.level for mode in current_dispatch_modes() if isinstance(mode, DrawPerElement)
    ]
    if not levels or not any(map(draws, _branches(args))):
        return args
    found = list(args)
    at = max(index for index, a in enumerate(found) if isinstance(a, torch.Tensor))
    for level in levels:
        if not any(level in levels_of(a) for a in found):
            each = level.spread(torch.ones((), dtype=torch.bool, device=found[at].device))
            found[at] = torch.where(each, found[at], found[at])
    return found


def _branches(args: Sequence[object]) -> list[Branch]:
    return [argument for argument in args if isinstance(argument, Branch)]


class _BranchLevel(FunctionalLevel):
    """The functionalize level of a branch, whose calls are captured. ``given``: the tensors that it
    must not write to."""

    __slots__ = ("given", "what")

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.given: list[FunctionalValue] = []

    def write(self, value: FunctionalValue, new: torch.Tensor, counted: bool = True) -> None:
        if any(value._store.memory is g._store.memory for g in self.given):
            raise RuntimeError(
                f"{self.what} writes to a tensor that it is given or closes over. "
                f"Let it return the new value.{here()}"
            )
        super().write(value, new, counted)


@rule(_BranchLevel)
def _refuse_function(
    level: _BranchLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    if issubclass(cls, ControlFlow):
        return run_forward(cls, args)
    raise RuntimeError(
        f"{cls.__name__}.apply inside {level.what}, which is captured as ATen calls. "
        f"They would lose the backward of a custom Function. Apply it before or after.{here()}"
    )


class Entering(EnteringMode):
    """Exchanges tensors from outside of a branch for its arguments. What a branch does under
    ``no_grad`` has no history afterwards."""

    def __init__(
        self,
        what: str,
        first: int,
        functional: int,
        known: dict[int, Any],
        enter: Callable[[torch.Tensor], Any],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.what = what
        # numbers of the levels of the branch: its trace and its functionalize level
        self.first, self.functional = first, functional
        self.known = known
        self.enter = enter
        self.recording = torch.is_grad_enabled()

    def value(self, tensor: object) -> Any:
        if not isinstance(tensor, torch.Tensor) or (
            isinstance(tensor, Value) and tensor._level.number >= self.first
        ):
            return tensor
        found = self.known.get(id(tensor))
        if found is None:
            found = self.known[id(tensor)] = self.enter(tensor)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            return func(*args)  # a literal of the branch's text
        args, kwargs = pytree.tree_map(self.value, (args, kwargs or {}))
        found = innermost(args, kwargs)
        if found is not None and found.number > self.functional:
            # a transform inside the branch, whose rule may meet tensors from outside: a
            # tangent, a cotangent
            with self:
                return Value.__torch_dispatch__(func, types, args, kwargs)
        out = func(*args, **kwargs)
        if not self.recording or torch.is_grad_enabled():
            return out
        if op_of(func).kind is INPLACE:
            raise RuntimeError(
                f"{self.what} writes under no_grad. Compute a new tensor instead.{here()}"
            )
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, out)


def captured(
    pieces: Sequence[Piece], operands: Sequence[object]
) -> tuple[list[Branch], list[torch.Tensor]]:
    """``pieces`` as functions of ``operands`` and of the tensors that any of them closes over,
    which are returned, too.

    ``RuntimeError`` with the line of a write to a tensor that a piece is given.
    """
    outside: list[torch.Tensor] = []
    found = []
    for piece in pieces:
        while True:
            try:
                branch = _capture(piece, operands, outside)
                break
            except _UnknownSizes as unknown:
                outside += unknown.carriers()
        found.append((branch, len(outside)))
    return [
        b if n == len(outside) else _capture(p, operands, outside)
        for p, (b, n) in zip(pieces, found, strict=True)
    ], outside


class _UnknownSizes(Exception):
    """A branch computes with sizes that no tensor that it is given has."""

    def __init__(self, sizes: Sequence[Any]) -> None:
        self.sizes = sizes

    def carriers(self) -> list[torch.Tensor]:
        """Empty tensors that have these sizes, from which a graph can read them."""
        return [torch.empty((size, 0), dtype=torch.bool) for size in self.sizes]


class _Sizes(Given):
    """The fake mode of what is around a branch."""

    def lower(self, size: Any) -> Any:
        unknown = sorted(size.node.expr.free_symbols - self.symbols.keys(), key=str)
        if unknown:
            hints = self.shape_env.backed_var_to_val
            raise _UnknownSizes(
                [
                    self.shape_env.create_symintnode(s, hint=int(hints[s]) if s in hints else None)
                    for s in unknown
                ]
            )
        return super().lower(size)


def _capture(piece: Piece, operands: Sequence[Any], outside: list[torch.Tensor]) -> Branch:
    """``piece`` as a function of ``operands`` and of ``outside``, which grows by the tensors
    that it closes over."""
    mode = _fake_mode([*operands, *outside])
    trace = Trace(
        abstraction=None if mode is None else _Sizes(mode),
        fixed_sizes=True,
        provenance=Provenance(),
    )
    functional = _BranchLevel(piece.what)
    given = functional.given
    tensors = [*operands, *outside]
    spec: Any = None
    call = here()  # of the operator, for what is found when the piece has returned
    called = [x for x in at_hand(piece.run, 3) if isinstance(x, (FunctionType, MethodType))]
    found = early_graph(called).generators

    def take(tensor: torch.Tensor) -> FunctionalValue:
        # else the levels around would see the calls that make an example
        with without_modes():
            given.append(
                functional.wrap(
                    trace.input(
                        example(tensor, mode, len(given) < piece.contiguous), f"arg{len(given)}_1"
                    )
                )
            )
        return given[-1]

    def run(_: Trace) -> list[Any]:
        nonlocal spec
        for tensor in tensors:
            take(tensor)

        def enter(tensor: torch.Tensor) -> Any:
            outside.append(tensor)
            return take(tensor)

        # A carry starts as the tensor that it is given, and is another one in the next step. What
        # is closed over stays.
        known = {
            id(t): v
            for t, v in zip(tensors[piece.contiguous :], given[piece.contiguous :], strict=True)
        }
        with (
            suspended(),
            functional.mode,
            Entering(piece.what, trace.number, functional.number, known, enter) as entering,
        ):
            states = trace.random_states = RandomStates([*generators_of(piece.run), *found])
            with states:
                outs, spec = pytree.tree_flatten(piece.run(*given[: len(operands)]))
            if states.seedings:
                raise RuntimeError(
                    f"{piece.what} makes a random generator or sets the state of one, "
                    f"and a graph of it makes draws alone. Do that outside.{call}"
                )
            outs = _apart(piece, list(map(entering.value, outs)), given, call)
        return [
            functional.read(output) if isinstance(output, FunctionalValue) else output
            for output in outs
        ]

    try:
        # a branch around this one would take the examples for tensors from outside
        with own_draws(), without_modes():
            run_trace(trace, run, (), (), dispatcher=mode is not None)
    finally:
        functional.close()
    output = trace.graph.output_node()
    results: Any = output.args[0]
    output.args = (tuple(r for r in results if isinstance(r, fx.Node)),)
    constants = tuple(... if isinstance(r, fx.Node) else r for r in results)
    return Branch(module_of(trace.graph, trace.attributes, "Branch"), spec, constants)


def _apart(piece: Piece, outs: Sequence[Any], given: Sequence[Any], call: str) -> list[object]:
    """Return the results. One that shares memory with an argument or an earlier result is copied or
    refused. ``call``: its line."""
    seen = {id(v._store.memory) for v in given}
    found = []
    for index, o in enumerate(outs):
        if isinstance(o, SYMBOLIC):
            raise RuntimeError(
                f"{piece.what} returns a size, which is no tensor. Return tensors; "
                f"pass other values around it.{call}"
            )
        if isinstance(o, FunctionalValue):
            if piece.contiguous:
                o = o.contiguous()
            if id(o._store.memory) in seen:
                if not piece.copies:
                    made: Any = o._inner._node
                    raise RuntimeError(
                        f"{piece.what} returns a tensor that shares memory with one that it "
                        f"is given, closes over or returns besides (result {index}). In a graph it "
                        f"is a tensor of its own. Return a .clone() of it.{made_at(made) or call}"
                    )
                o = o.clone()
            seen.add(id(o._store.memory))
        found.append(o)
    return found


def _fake_mode(tensors: Sequence[object]) -> FakeTensorMode | None:
    """Return the mode of fake tensors under the values, if there are any."""
    for tensor in map(bottom, tensors):
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    return None


def example(t: torch.Tensor, mode: FakeTensorMode | None, contiguous: bool = False) -> torch.Tensor:
    """Return a plain tensor of the shape of ``t`` as its own level sees it. No branch may depend on
    its elements."""
    plain = bottom(t)
    if plain.layout is not torch.strided:
        detached: torch.Tensor = plain.detach()
        return detached
    with without_modes(), mode or nullcontext():
        if contiguous:
            return factories.ones(t.shape, dtype=t.dtype, device=t.device)
        if mode is not None:
            return factories.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        # the place of the last element
        last = sum((n - 1) * size for n, size in zip(t.shape, t.stride(), strict=True))
        return factories.ones(
            last + 1 if t.numel() else 0, dtype=t.dtype, device=t.device
        ).as_strided(t.shape, t.stride())
