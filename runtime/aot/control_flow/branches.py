"""A function that is captured apart from the program around it: a branch of ``cond``, the body of a loop.

It becomes a graph of ATen calls that takes every tensor it uses as an argument, those that it closes over included. So any transform around
it can be applied to it as to a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ...autograd.function import Function, FunctionClass, rule, run_forward
from ...func.functionalize import FunctionalLevel, FunctionalValue
from ...func.symbols import Given
from ...func.trace import Trace
from ...func.tracing import module_of, run_trace
from ...rules.ops import INPLACE, op_of
from ...seam import factories
from ...seam.level_mode import EnteringMode
from ...seam.levels import Value, bottom


@dataclass(frozen=True)
class Branch:
    """``module`` maps tensors to a tuple of tensors. ``spec``: the tree of what the function returns."""

    module: fx.GraphModule
    spec: pytree.TreeSpec | None = None


class ControlFlow(Function):
    """A Function whose call is in a graph as one operator, with its derivative. It may stand inside a branch."""


class _BranchLevel(FunctionalLevel):
    """The functionalize level of a branch, whose calls are captured."""

    __slots__ = ()


@rule(_BranchLevel)
def _refuse_function(level: _BranchLevel, cls: FunctionClass, args: tuple[Any, ...]) -> tuple[Any, Any]:
    if issubclass(cls, ControlFlow):
        return run_forward(cls, args)
    raise RuntimeError(
        f"{cls.__name__}.apply inside a branch of cond: a branch is captured as ATen calls, which would lose the backward of a custom "
        "Function. Apply it before or after cond."
    )


class _Entering(EnteringMode):
    """Exchanges tensors from outside of a branch for its arguments. What a branch does under ``no_grad`` has no history afterwards."""

    def __init__(self, first: int, known: dict[int, Any], enter: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first = first  # number of the level of the branch's trace
        self.known = known
        self.enter = enter
        self.recording = torch.is_grad_enabled()

    def value(self, t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or (isinstance(t, Value) and t._level.number >= self.first):
            return t
        found = self.known.get(id(t))
        if found is None:
            found = self.known[id(t)] = self.enter(t)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            return func(*args)  # a literal of the branch's text
        args, kwargs = pytree.tree_map(self.value, (args, kwargs or {}))
        out = func(*args, **kwargs)
        if not self.recording or torch.is_grad_enabled():
            return out
        if op_of(func).kind is INPLACE:
            raise RuntimeError("a branch of cond writes under no_grad. Compute a new tensor instead.")
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, out)


def captured(f: Callable[..., Any], operands: Sequence[Any], spec: pytree.TreeSpec, outside: list[torch.Tensor]) -> Branch:
    """``f`` of the tree ``spec`` of ``operands``, as a function of ``operands`` and of ``outside``.

    ``outside`` grows by the tensors that ``f`` closes over. ``RuntimeError`` if ``f`` writes to a tensor that it is given.
    """
    mode = _fake_mode([*operands, *outside])
    trace = Trace(abstraction=None if mode is None else Given(mode), fixed_sizes=True)
    functional = _BranchLevel()
    tensors = [*operands, *outside]
    out_spec: Any = None

    def run(_: Trace, *traced: Any) -> list[Any]:
        nonlocal out_spec
        values = [functional.wrap(t) for t in traced]
        given = list(values)

        def enter(t: torch.Tensor) -> Any:
            outside.append(t)
            with _disable_current_modes():
                v = functional.wrap(trace.input(example(t, mode), f"operand_{len(given)}"))
            given.append(v)
            return v

        known = {id(t): v for t, v in zip(tensors, given, strict=True)}
        with functional.mode, _Entering(trace.number, known, enter) as entering:
            outs, out_spec = pytree.tree_flatten(f(*pytree.tree_unflatten(values[: len(operands)], spec)))
            outs = [entering.value(o) for o in outs]
            if any(v._store.memory.generation for v in given):
                raise RuntimeError("a branch of cond writes to a tensor that it is given or closes over. Let it return the new value.")
            outs = _apart(outs, given)
        return [functional.read(o) if isinstance(o, FunctionalValue) else o for o in outs]

    try:
        examples = [example(t, mode) for t in tensors]
        run_trace(trace, run, examples, [f"operand_{i}" for i in range(len(tensors))], dispatcher=mode is not None)
    finally:
        functional.close()
    output = trace.graph.output_node()
    results: Any = output.args[0]
    if not all(isinstance(r, fx.Node) for r in results):
        raise RuntimeError("a branch of cond returns something that is no tensor. Return tensors; pass other values around it.")
    output.args = (tuple(results),)
    return Branch(module_of(trace.graph, trace.attributes, "Branch"), out_spec)


def _apart(outs: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """The results, with a copy of each that shares memory with an argument or an earlier result."""
    seen = {id(v._store.memory) for v in given}
    found = []
    for o in outs:
        if isinstance(o, FunctionalValue):
            if id(o._store.memory) in seen:
                o = o.clone()
            seen.add(id(o._store.memory))
        found.append(o)
    return found


def _fake_mode(tensors: Sequence[Any]) -> FakeTensorMode | None:
    """The mode of fake tensors under the values, if there are any."""
    for t in map(bottom, tensors):
        if isinstance(t, FakeTensor):
            return t.fake_mode
    return None


def example(t: torch.Tensor, mode: FakeTensorMode | None) -> torch.Tensor:
    """A plain tensor of the shape of ``t`` as its own level sees it. No branch may depend on its elements."""
    plain = bottom(t)
    if plain.layout is not torch.strided:
        detached: torch.Tensor = plain.detach()
        return detached
    with _disable_current_modes(), mode or nullcontext():
        if mode is not None:
            return factories.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
        return factories.ones(extent, dtype=t.dtype, device=t.device).as_strided(t.shape, t.stride())
