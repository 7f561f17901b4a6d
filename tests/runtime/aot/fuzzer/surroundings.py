"""What random programs close over, and the engine that they run on: torch, or a
session of the runtime."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import runtime
from runtime.aot import aot_function, nop
from runtime.checkpoint import checkpoint

if TYPE_CHECKING:
    from .programs import CallText

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Engine:
    """What makes leaves, gradients and hooks: torch, or a session of the runtime. ``func``: its
    transforms. ``compiled``: what a part of the program goes through. ``apart``: raises for tensors
    of which torch's derivative is wrong if they share memory. ``unwritten``: raises for a tensor on
    which torch registers no hook. ``unmixed``: raises for a target and a source of a write that
    share part of a memory. ``spanning``: raises for a tensor that has less than a number of places
    between its first element and its last."""

    leaf: Callable[[torch.Tensor, bool], Any]
    grad: Callable[..., Any]
    hooks: Callable[..., contextlib.AbstractContextManager[Any]]
    func: Any
    checkpoint: Callable[..., Any]
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    apart: Callable[[Sequence[torch.Tensor]], None] = lambda tensors: None
    unwritten: Callable[[torch.Tensor], None] = lambda t: None
    unmixed: Callable[[torch.Tensor, torch.Tensor], None] = lambda target, source: None
    spanning: Callable[[torch.Tensor, int], None] = lambda t, number: None


def apart(tensors: Sequence[torch.Tensor]) -> None:
    """Raise if tensors share memory, so that the program is left out. Torch's foreach calls record
    the writes to them side by side, as if each was the first."""
    if len({t.untyped_storage()._cdata for t in tensors}) < len(tensors):
        raise ValueError("tensors of a foreach call share memory")


def unwritten(t: torch.Tensor) -> None:
    """Raise for a view that was written to, so that the program is left out. Torch's process ends
    at ``register_hook`` of some of them."""
    if t._is_view() and t._version:
        raise ValueError("a hook on a view that was written to")


def shows_twice(t: torch.Tensor) -> bool:
    """Return whether two elements of ``t`` are at one place of its memory."""
    places = torch.arange(t.untyped_storage().nbytes() // t.element_size())
    shown = places.as_strided(t.shape, t.stride(), t.storage_offset())
    n_places: int = shown.unique().numel()
    return n_places < t.numel()


def unmixed(target: torch.Tensor, source: torch.Tensor) -> None:
    """Raise if ``source`` is another view of the memory of ``target``, or the target shows an
    element of it several times, so that the program is left out. Torch's kernels read elements of
    it that they have written, or not, in the order that suits them."""
    places = [(t.shape, t.stride(), t.storage_offset()) for t in (target, source)]
    shared = target.untyped_storage()._cdata == source.untyped_storage()._cdata
    if shared and (places[0] != places[1] or shows_twice(target)):
        raise ValueError("a write reads other elements of the memory that it writes to")


def spanning(t: torch.Tensor, number: int) -> None:
    """Raise if ``t`` has less than ``number`` places of memory between its first element and
    its last, so that the program is left out. A kernel may leave more memory behind its result,
    with any numbers."""
    if (
        not t.numel()
        or 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) < number
    ):
        raise ValueError("as_strided reaches beyond the elements of its argument")


TORCH = Engine(
    lambda t, flag: t.requires_grad_(flag),
    torch.autograd.grad,
    torch.autograd.graph.saved_tensors_hooks,
    torch.func,
    torch_checkpoint,
    lambda f: f,
    apart,
    unwritten,
    unmixed,
    spanning,
)
SESSION = Engine(
    runtime.wrap,
    runtime.autograd.grad,
    runtime.autograd.graph.saved_tensors_hooks,
    runtime.func,
    checkpoint,
    lambda f: aot_function(f, nop),
)


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


class Halves(torch.autograd.Function):
    """A Function with ``setup_context`` and two results, of which the second has no gradient."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x / 2, x.detach() > 0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        (half,) = ctx.saved_tensors
        return g * 0.5 + half * 0.2


class Tripled(torch.autograd.Function):
    """A Function that writes to its argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2.5


def values(number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Elements that follow from ``number``. The tensor is no view. In torch a leaf that is a view
    takes its flags, and those of its own views, from a base that the program cannot see."""
    return _elements(number, shape, dtype).clone()


def _elements(number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    steps = torch.arange(count, dtype=torch.float64) * 1.7 + number
    if dtype.is_complex:
        return torch.complex(steps.sin(), steps.cos()).to(dtype).reshape(shape)
    if dtype.is_floating_point:
        return steps.sin().to(dtype).reshape(shape)
    return (steps * 3).long().remainder(2 if dtype is torch.bool else 5).to(dtype).reshape(shape)


class Surroundings:
    """What programs close over: parameters, buffers, modules, compiled functions, a generator."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.weight = engine.leaf(torch.tensor([0.5, 2.0]), True)
        self.counter = engine.leaf(torch.tensor([1.5]), False)
        self.norm = torch.nn.BatchNorm1d(3, affine=False)
        self.dropout = torch.nn.Dropout(0.4)
        with torch.random.fork_rng():
            self.layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
            self.table = torch.nn.Embedding(4, 3, max_norm=1.0)
        for m in (*self.layer, self.table):
            for i, (name, p) in enumerate(m.named_parameters()):
                names: dict[str, Any] = m._parameters
                names[name] = engine.leaf(values(i, p.shape, p.dtype), True)
        self.generator = torch.Generator().manual_seed(5)

    def scope(self) -> dict[str, Any]:
        """The names of a program."""
        engine = self.engine
        names = {
            "weight": self.weight,
            "counter": self.counter,
            "norm": self.norm,
            "dropout": self.dropout,
        }
        names |= {"layer": self.layer, "table": self.table, "generator": self.generator}
        names |= {
            "func": engine.func,
            "checkpoint": engine.checkpoint,
            "apart": engine.apart,
            "unwritten": engine.unwritten,
        }
        names |= {"unmixed": engine.unmixed, "spanning": engine.spanning}
        names["product"] = engine.compiled(lambda a, b: (a * b, a.view(-1)))
        names["grown"] = engine.compiled(lambda a: a.mul_(2))
        names["packed"] = lambda: engine.hooks(torch.clone, lambda t: t)
        return {
            "torch": torch,
            "Twice": Twice,
            "Halves": Halves,
            "Tripled": Tripled,
            "Pair": Pair,
            **names,
        }

    @property
    def tensors(self) -> list[Any]:
        modules = (self.norm, self.layer, self.table)
        return [
            self.weight,
            self.counter,
            *(t for m in modules for t in (*m.parameters(), *m.buffers())),
        ]

    def call(self, f: Callable[..., Any], text: CallText, given: Sequence[Any]) -> Any:
        """``f(*given)`` in the modes of the call."""
        for module in (self.norm, self.dropout, self.layer):
            module.train(text.training)
        torch.manual_seed(11)
        hooks = (
            self.engine.hooks(torch.clone, lambda t: t) if text.hooks else contextlib.nullcontext()
        )
        around = eval(text.around, {"torch": torch}) if text.around else contextlib.nullcontext()
        with torch.set_grad_enabled(text.grad), hooks, around:
            return f(*given)


def function_of(program: str, surroundings: Surroundings) -> Callable[..., Any]:
    scope = surroundings.scope()
    exec(program, scope)
    f: Callable[..., Any] = scope["f"]
    return f
