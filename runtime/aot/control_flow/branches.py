"""Capture a branch of ``cond`` or the body of a loop as a graph of its own.

The graph takes every tensor that it uses as an argument, those that the function closes over
included. So any transform around the call can be applied to the graph as to a function.

    (branch,), outside = captured([Piece("a branch of cond", lambda x: x * w)], [x])
    # the graph of `branch` takes x and w; `outside` is [w]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from ...autograd.function import Function, FunctionClass, rule, run_forward
from ...func.draws import DrawPerElement
from ...functionalize.functional_level import FunctionalLevel
from ...functionalize.functional_value import FunctionalValue
from ...rules.ops import INPLACE, generator_of, op_of
from ...seam import factories
from ...seam.call_types import Arguments, Keywords
from ...seam.containers import items_of
from ...seam.dispatch import innermost
from ...seam.generator_states import own_draws
from ...seam.graph_walks import nodes_among, results_of
from ...seam.level_mode import EnteringMode
from ...seam.levels import Value, bottom, levels_of
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
from ...trace.trace_value import TracedValue
from ..python_state.closed_over import at_hand, generators_of
from ..python_state.object_graph import early_graph


class Piece(NamedTuple):
    """Describe a function to capture."""

    # Its name in errors.
    what: str
    # Takes tensors, and returns a pytree.
    run: Callable[..., object]
    # How many of its first arguments are the carry of a loop. These and the results are contiguous,
    # because results are the arguments of the next step.
    contiguous: int = 0
    # Whether to copy a result that shares memory with an argument or another result. Otherwise such
    # a result is refused.
    copies: bool = False


@dataclass(frozen=True)
class Branch:
    """Hold a captured function."""

    # maps tensors to a tuple of tensors
    module: fx.GraphModule
    # the tree of what the function returns
    spec: pytree.TreeSpec | None = None
    # the leaves of that tree, with ``Ellipsis`` for a tensor
    constants: tuple[object, ...] = ()

    def returned(self, tensors: Sequence[object]) -> Any:
        """Put together what the function returns, given its ``tensors``."""
        assert self.spec is not None
        rest = iter(tensors)
        return pytree.tree_unflatten(
            [next(rest) if constant is ... else constant for constant in self.constants], self.spec
        )

    def results(self) -> list[fx.Node]:
        """Return the nodes of the tensors that the graph returns."""
        return list(items_of((results_of(self.module.graph),)))


class ControlFlow(Function):
    """Mark a Function whose call is one operator in a graph, with its derivative.

    It may be applied inside of a branch.
    """

    @classmethod
    def apply(cls, *args: object, **kwargs: object) -> Any:
        """Call the operator."""
        # The modes are noted here, because ``forward`` runs under no_grad.
        note_modes()
        return super().apply(*_with_draws_of_each_element(args), **kwargs)


def draws(branch: Branch) -> bool:
    """Return whether ``branch`` draws random numbers."""
    return _draw_in(branch) is not None


def _draw_in(branch: Branch) -> fx.Node | None:
    """Return a call of ``branch`` that draws random numbers; None if there is none."""
    for module in branch.module.modules():
        for node in getattr(module, "graph", fx.Graph()).nodes:
            if isinstance(node.target, OpOverload):
                record = op_of(node.target).record
                has_tag = torch.Tag.nondeterministic_seeded in node.target.tags
                if has_tag or (record is not None and record.draws is not None):
                    return node  # type: ignore[no-any-return]
    return None


def drawing(trace: Trace, *branches: Branch) -> AbstractContextManager[None]:
    """Return the context of a call in ``trace`` that may run ``branches``, which may draw."""
    generators: dict[int, Any] = {}
    for module in (module for branch in branches for module in branch.module.modules()):
        for node in getattr(module, "graph", fx.Graph()).nodes:
            if isinstance(node.target, OpOverload) and facts_of(node.target).may_draw:
                attributes = [
                    attrgetter(source.target)(module)
                    for source in node.all_input_nodes
                    if source.op == "get_attr"
                ]
                generator: Any = generator_of(attributes, {})
                # Several Python objects may stand for one generator, so its address is the key.
                generators[generator._cdata] = generator
    return trace.drawing(list(generators.values()))


def refuse_draws(what: str, *branches: Branch) -> None:
    """Refuse a derivative of branches that draw.

    It runs them once more, so it would be the derivative for other draws.
    """
    for node in filter(None, map(_draw_in, branches)):
        raise RuntimeError(
            f"{what} draws random numbers, and is differentiated. "
            "A derivative runs it once more, and would draw others. Draw the numbers outside, "
            f"and let it use them.{made_at(node)}"
        )


def _with_draws_of_each_element(args: Arguments) -> Sequence[object]:
    """Return the arguments of a call whose branches may draw.

    Where each element of a batch draws for itself, one argument becomes a batch. Else the level of
    the batch would not see the call.
    """
    levels: list[Any] = [
        mode.level for mode in current_dispatch_modes() if isinstance(mode, DrawPerElement)
    ]
    if not levels or not any(map(draws, _branches(args))):
        return args
    arguments = list(args)
    at = max(
        index for index, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)
    )
    for level in levels:
        if not any(level in levels_of(argument) for argument in arguments):
            each = level.spread(torch.ones((), dtype=torch.bool, device=arguments[at].device))
            # Both choices are the argument itself, so the elements stay and become a batch.
            arguments[at] = torch.where(each, arguments[at], arguments[at])
    return arguments


def _branches(args: Sequence[object]) -> list[Branch]:
    return [argument for argument in args if isinstance(argument, Branch)]


class _BranchLevel(FunctionalLevel):
    """Functionalize a branch, whose calls are captured.

    ``given``: its arguments and the tensors that it closes over, to which it must not write.
    """

    __slots__ = ("given", "what")

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.given: list[FunctionalValue] = []

    def write(self, value: FunctionalValue, new: torch.Tensor, counted: bool = True) -> None:
        """Write to a value of the branch itself; refuse a write to any other tensor."""
        # by memory: a write through a view changes the argument, too
        memory = value._store.memory
        if any(argument._store.memory is memory for argument in self.given):
            raise RuntimeError(
                f"{self.what} writes to a tensor that it is given or closes over. "
                f"Let it return the new value.{here()}"
            )
        super().write(value, new, counted)


@rule(_BranchLevel)
def _refuse_function(
    level: _BranchLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Run control flow, and refuse a custom Function of the user."""
    if issubclass(cls, ControlFlow):
        return run_forward(cls, args)
    raise RuntimeError(
        f"{cls.__name__}.apply inside {level.what}, which is captured as ATen calls. "
        f"They would lose the backward of a custom Function. Apply it before or after.{here()}"
    )


class Entering(EnteringMode):
    """Replace tensors from outside of a branch by its arguments.

    A result of a call under ``no_grad`` in the branch is detached, so it has no history later.
    """

    def __init__(
        self,
        what: str,
        first: int,
        functional: int,
        known: dict[int, FunctionalValue],
        enter: Callable[[torch.Tensor], FunctionalValue],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.what = what
        # numbers of the levels of the branch: its trace and its functionalize level
        self.first, self.functional = first, functional
        self.known = known
        self.enter = enter
        self.found = []
        self.recording = torch.is_grad_enabled()

    def value(self, tensor: object) -> object:
        """Return the argument for ``tensor``, new the first time; other objects as they are."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        # a value that the branch itself has computed
        if isinstance(tensor, Value) and tensor._level.number >= self.first:
            return tensor
        value = self.known.get(id(tensor))
        if value is None:
            value = self.known[id(tensor)] = self.enter(tensor)
            self.found.append(tensor)
        return value

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Call ``func`` with arguments of the branch in place of tensors from outside."""
        # a literal in the text of the branch
        if func is torch.ops.aten.lift_fresh.default:
            return func(*args)
        args, kwargs = pytree.tree_map(self.value, (args, kwargs or {}))
        level = innermost(args, kwargs)
        if level is not None and level.number > self.functional:
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
    pieces: Sequence[Piece], operands: Sequence[torch.Tensor]
) -> tuple[list[Branch], list[torch.Tensor]]:
    """Return ``pieces`` as functions of ``operands`` and of the tensors that any of them closes
    over.

    Return these tensors, too. ``RuntimeError`` with the line of a write to an argument of a piece.
    """
    outside: list[torch.Tensor] = []
    branches = []
    for piece in pieces:
        # once more for each size that no argument has: the tensors with these sizes are arguments
        # of the next try
        while True:
            try:
                branch = _capture(piece, operands, outside)
                break
            except _UnknownSizes as unknown:
                outside += unknown.carriers()
        branches.append((branch, len(outside)))
    # a later piece may close over further tensors, and all pieces take the same arguments
    complete: list[Branch] = []
    for piece, (branch, n_outside) in zip(pieces, branches, strict=True):
        if n_outside != len(outside):
            branch = _capture(piece, operands, outside)
        complete.append(branch)
    return complete, outside


class _UnknownSizes(Exception):
    """Say that a branch computes with sizes which none of its arguments has."""

    def __init__(self, sizes: Sequence[torch.SymInt]) -> None:
        self.sizes = sizes

    def carriers(self) -> list[torch.Tensor]:
        """Return empty tensors with these sizes, from which a graph can read them."""
        return [torch.empty((size, 0), dtype=torch.bool) for size in self.sizes]


class _Sizes(Given):
    """Use the fake mode of the values around a branch, and find sizes that no argument has."""

    def lower(self, size: torch.SymInt) -> Any:
        """Return ``size`` as a node of the graph. ``_UnknownSizes`` if it has other symbols."""
        unknown = sorted(size.node.expr.free_symbols - self.symbols.keys(), key=str)
        if unknown:
            hints = self.shape_env.backed_var_to_val
            raise _UnknownSizes(
                [
                    self.shape_env.create_symintnode(
                        symbol, hint=int(hints[symbol]) if symbol in hints else None
                    )
                    for symbol in unknown
                ]
            )
        return super().lower(size)


def _capture(piece: Piece, operands: Sequence[torch.Tensor], outside: list[torch.Tensor]) -> Branch:
    """Return ``piece`` as a function of ``operands`` and of ``outside``.

    ``outside`` grows by the tensors that the piece closes over.
    """
    mode = _fake_mode([*operands, *outside])
    trace = Trace(
        abstraction=None if mode is None else _Sizes(mode),
        fixed_sizes=True,
        provenance=Provenance(),
    )
    functional = _BranchLevel(piece.what)
    arguments = functional.given
    tensors = [*operands, *outside]
    spec: pytree.TreeSpec | None = None
    # the line of the operator, for errors after the piece has returned
    call = here()
    called = [x for x in at_hand(piece.run, 3) if isinstance(x, (FunctionType, MethodType))]
    generators = early_graph(called).generators

    def take(tensor: torch.Tensor) -> FunctionalValue:
        """Add an argument of the graph for ``tensor``."""
        # else the levels around would see the calls that make an example
        with without_modes():
            arguments.append(
                functional.wrap(
                    trace.input(
                        example(tensor, mode, len(arguments) < piece.contiguous),
                        f"arg{len(arguments)}_1",
                    )
                )
            )
        return arguments[-1]

    def run(_: Trace) -> list[object]:
        """Run the piece on the arguments of the graph."""
        nonlocal spec
        for tensor in tensors:
            take(tensor)

        def enter(tensor: torch.Tensor) -> FunctionalValue:
            """Add an argument for a tensor that the piece closes over."""
            outside.append(tensor)
            return take(tensor)

        # A carry is another tensor in the next step. So the tensor with which it starts is one
        # from outside if the piece also closes over it.
        known = {
            id(tensor): argument
            for tensor, argument in zip(
                tensors[piece.contiguous :], arguments[piece.contiguous :], strict=True
            )
        }
        with (
            suspended(),
            functional.mode,
            Entering(piece.what, trace.number, functional.number, known, enter) as entering,
        ):
            states = trace.random_states = RandomStates([*generators_of(piece.run), *generators])
            with states:
                outputs, spec = pytree.tree_flatten(piece.run(*arguments[: len(operands)]))
            if states.seedings:
                raise RuntimeError(
                    f"{piece.what} makes a random generator or sets the state of one, "
                    f"and a graph of it makes draws alone. Do that outside.{call}"
                )
            outputs = _separate(piece, list(map(entering.value, outputs)), arguments, call)
        return [
            functional.read(output) if isinstance(output, FunctionalValue) else output
            for output in outputs
        ]

    try:
        # a branch around this one would take the examples for tensors from outside
        with own_draws(), without_modes():
            run_trace(trace, run, (), (), dispatcher=mode is not None)
    finally:
        functional.close()
    output = trace.graph.output_node()
    results = results_of(trace.graph)
    output.args = (tuple(nodes_among(results)),)
    constants = tuple(... if isinstance(result, fx.Node) else result for result in results)
    return Branch(module_of(trace.graph, trace.attributes, "Branch"), spec, constants)


def _separate(
    piece: Piece, outs: Sequence[object], arguments: Sequence[FunctionalValue], call: str
) -> list[object]:
    """Return the results, none of which shares memory with an argument or an earlier result.

    One that does is copied or refused. ``call``: the line of the operator.
    """
    seen = {id(argument._store.memory) for argument in arguments}
    results = []
    for index, output in enumerate(outs):
        if isinstance(output, SYMBOLIC):
            raise RuntimeError(
                f"{piece.what} returns a size, which is no tensor. Return tensors; "
                f"pass other values around it.{call}"
            )
        if isinstance(output, FunctionalValue):
            if piece.contiguous:
                output = cast(FunctionalValue, output.contiguous())
            if id(output._store.memory) in seen:
                if not piece.copies:
                    node = cast(TracedValue, output._inner)._node
                    raise RuntimeError(
                        f"{piece.what} returns a tensor that shares memory with one that it "
                        f"is given, closes over or returns besides (result {index}). In a graph it "
                        f"is a tensor of its own. Return a .clone() of it.{made_at(node) or call}"
                    )
                output = cast(FunctionalValue, output.clone())
            seen.add(id(output._store.memory))
        results.append(output)
    return results


def _fake_mode(tensors: Sequence[object]) -> FakeTensorMode | None:
    """Return the mode of fake tensors under the values, if there are any."""
    for tensor in map(bottom, tensors):
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    return None


def example(t: torch.Tensor, mode: FakeTensorMode | None, contiguous: bool = False) -> torch.Tensor:
    """Return a plain tensor of the shape of ``t`` as its own level sees it.

    ``mode``: the mode of which it is a fake tensor; None for a real one. ``contiguous``: without
    it the example has the strides of ``t``. No branch may depend on its elements.
    """
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
        last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return factories.ones(
            last + 1 if t.numel() else 0, dtype=t.dtype, device=t.device
        ).as_strided(t.shape, t.stride())
