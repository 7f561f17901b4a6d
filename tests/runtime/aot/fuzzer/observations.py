"""What a caller can see of a program: results, gradients, writes, aliases, versions, buffers, the state of random numbers.

``observed(engine, case, wrapped)`` is a list of pairs, a label and what was seen. ``difference`` compares two such lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import runtime

if TYPE_CHECKING:
    from .programs import CallText, Case

Seen = list[tuple[str, Any]]
UNCOUNTED = (".data", "t_()", "unsqueeze_", "squeeze_", "transpose_", "swapaxes_")
"""Programs with these do not have their versions compared. They may differ by one, since the graph makes one change of several.

Programs with ``.data`` do not have their gradients compared either. A write through it changes what torch has saved, and torch does not
notice.
"""


@dataclass(frozen=True)
class Engine:
    """What makes leaves, gradients and hooks: torch, or a session of the runtime."""

    leaf: Callable[[torch.Tensor, bool], Any]
    grad: Callable[..., Any]
    hooks: Callable[..., contextlib.AbstractContextManager[Any]]


TORCH = Engine(lambda t, flag: t.requires_grad_(flag), torch.autograd.grad, torch.autograd.graph.saved_tensors_hooks)
SESSION = Engine(runtime.wrap, runtime.autograd.grad, runtime.autograd.graph.saved_tensors_hooks)


class Twice(torch.autograd.Function):
    """A user's Function, with a gradient that shows whether it was used."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 2 + x * 0.1


def values(number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Elements that follow from ``number``."""
    count = torch.Size(shape).numel()
    steps = torch.arange(count, dtype=torch.float64) * 1.7 + number
    if dtype.is_complex:
        return torch.complex(steps.sin(), steps.cos()).to(dtype).reshape(shape)
    if dtype.is_floating_point:
        return steps.sin().to(dtype).reshape(shape)
    return (steps * 3).long().remainder(2 if dtype is torch.bool else 5).to(dtype).reshape(shape)


class Surroundings:
    """What programs close over: a parameter, a buffer, modules, a generator."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.weight = engine.leaf(torch.tensor([0.5, 2.0]), True)
        self.counter = engine.leaf(torch.tensor([1.5]), False)
        self.norm = torch.nn.BatchNorm1d(3, affine=False)
        self.dropout = torch.nn.Dropout(0.4)
        self.generator = torch.Generator().manual_seed(5)

    def scope(self) -> dict[str, Any]:
        names = {"weight": self.weight, "counter": self.counter, "norm": self.norm, "dropout": self.dropout}
        return {"torch": torch, "Twice": Twice, "generator": self.generator, **names}

    @property
    def tensors(self) -> list[Any]:
        return [self.weight, self.counter, *self.norm.buffers()]

    def call(self, f: Callable[..., Any], text: CallText, given: Sequence[Any]) -> Any:
        """``f(*given)`` in the modes of the call."""
        for module in (self.norm, self.dropout):
            module.train(text.training)
        torch.manual_seed(11)
        hooks = self.engine.hooks(lambda t: t * 1, lambda t: t) if text.hooks else contextlib.nullcontext()
        with torch.set_grad_enabled(text.grad), hooks:
            return f(*given)


def function_of(program: str, surroundings: Surroundings) -> Callable[..., Any]:
    scope = surroundings.scope()
    exec(program, scope)
    f: Callable[..., Any] = scope["f"]
    return f


def arguments_of(engine: Engine, text: CallText) -> tuple[list[Any], list[Any]]:
    """The tensors that the lines of a call make, each object once, and the arguments."""

    def leaf(number: int, shape: Sequence[int], dtype: torch.dtype, requires_grad: bool = False) -> Any:
        return engine.leaf(values(number, shape, dtype), requires_grad)

    scope: dict[str, Any] = {"torch": torch, "leaf": leaf}
    for line in text.lines:
        exec(line, scope)
    given = eval(f"({text.args},)", scope)
    return _once([t for name, t in scope.items() if isinstance(t, torch.Tensor)]), list(given)


def _once(tensors: Sequence[Any]) -> list[Any]:
    return list({id(t): t for t in tensors}.values())


def observed(engine: Engine, case: Case, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Seen]:
    """What is seen of each call of the wrapped program. An error of a call itself is raised. One of what follows ends the list."""
    surroundings = Surroundings(engine)
    f = wrapped(function_of(case.program, surroundings))
    source = str(case)
    counts, differentiates = not any(word in source for word in UNCOUNTED), ".data" not in source
    return [_Observation(surroundings, text, counts, differentiates).of(f) for text in case.calls]


class _Observation:
    """One call and what follows it. ``counts``: whether versions are looked at. ``differentiates``: whether gradients are."""

    def __init__(self, surroundings: Surroundings, text: CallText, counts: bool, differentiates: bool) -> None:
        self.surroundings = surroundings
        self.counts = counts
        self.differentiates = differentiates
        self.text = text
        self.made, self.given = arguments_of(surroundings.engine, text)
        self.flat = [t for t in pytree.tree_leaves(self.given) if isinstance(t, torch.Tensor)]
        self.seen: Seen = []
        self.picks: Iterator[float] = iter(text.picks)

    def of(self, f: Callable[..., Any]) -> Seen:
        outside = [*self.made, *self.flat, *self.surroundings.tensors]
        versions = [t._version for t in outside]
        out = self.surroundings.call(f, self.text, self.given)
        leaves, spec = pytree.tree_flatten(out)
        self.results = [t for t in leaves if isinstance(t, torch.Tensor)]
        self.see("structure", str(spec))
        self.see("constants", [x for x in leaves if not isinstance(x, torch.Tensor)])
        everything = [*self.made, *self.flat, *self.surroundings.tensors]
        for i, t in enumerate(self.results):
            self.see(f"result {i} is", [[t is x for x in everything], [t is r for r in self.results]])
        self.look("after the call")
        if self.counts:
            self.see("versions", [t._version - v for t, v in zip(outside, versions, strict=True)])
        self.see("random state", [torch.get_rng_state(), self.surroundings.generator.get_state()])
        for what in self.text.after:
            try:
                getattr(self, what.replace(" ", "_"))()
            except RuntimeError as error:
                self.see("error", error)
                break
        return self.seen

    def see(self, label: str, what: Any) -> None:
        self.seen.append((label, what))

    @property
    def tensors(self) -> list[tuple[str, Any]]:
        every = [("result", self.results), ("argument", self.flat), ("base", self.made), ("outside", self.surroundings.tensors)]
        return [(f"{what} {i}", t) for what, some in every for i, t in enumerate(some)]

    def look(self, when: str) -> None:
        for name, t in self.tensors:
            plain = t.detach()
            strides = [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] if t.numel() else []
            self.see(f"{name} {when}", [plain.resolve_conj().clone(), strides])
            if self.text.grad or not name.startswith("result"):
                self.see(f"flags of {name} {when}", [t.requires_grad, t.is_leaf])

    def differentiable(self) -> list[Any]:
        """The leaves whose gradients are looked at."""
        return _once([t for t in (*self.made, *self.surroundings.tensors) if t.requires_grad and t.is_leaf])

    def loss(self, tensors: Sequence[Any]) -> Any:
        found = [t for t in _once(tensors) if t is not None and t.requires_grad]
        if not found:
            return None
        real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in found]
        return sum((t.double().sin() * (i + 1)).sum() for i, t in enumerate(real))

    def gradients(self, create_graph: bool = False) -> None:
        wanted, grad = self.differentiable(), self.surroundings.engine.grad
        results = self.results if self.text.grad else []  # what a view made under no_grad requires may differ
        loss = self.loss([*results, *self.flat])
        if loss is None or not wanted or not self.differentiates:
            return
        found = grad(loss, wanted, allow_unused=True, create_graph=create_graph)
        self.see("gradients", [None if g is None else g.detach() for g in found])
        again = self.loss(found) if create_graph else None
        if again is not None:
            second = grad(again, wanted, allow_unused=True)
            self.see("second derivatives", [None if g is None else g.detach() for g in second])

    def second(self) -> None:
        self.gradients(create_graph=True)

    def write(self) -> None:
        with torch.no_grad():
            self._write()

    def recorded_write(self) -> None:
        self._write()

    def _write(self) -> None:
        pool = [t for _, t in self.tensors]
        t = pool[int(next(self.picks) * len(pool))]
        t.logical_not_() if t.dtype is torch.bool else t.add_(1)
        self.look("after a write")


def difference(a: Sequence[Seen], b: Sequence[Seen], tolerance: float) -> str:
    """The first label at which two observations differ, or an empty string. What follows an error in the first one does not count."""
    for call, (expected, found) in enumerate(zip(a, b, strict=True)):
        for i, (label, x) in enumerate(expected):
            if label == "error":
                return ""
            other, y = found[i] if i < len(found) else ("nothing", None)
            if isinstance(y, Exception):
                raise y
            if label != other or not same(x, y, tolerance):
                return f"call {call}, {label}: {x}, but found {other}: {y}"
        if len(found) > len(expected):
            label, y = found[len(expected)]
            if isinstance(y, Exception):
                raise y
            return f"call {call}: found {label} as well"
    return ""


def same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype is not b.dtype:
            return False
        return torch.allclose(_plain(a), _plain(b), rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def _plain(t: torch.Tensor) -> torch.Tensor:
    return runtime.unwrap(t) if isinstance(t, runtime.Tensor) else t
