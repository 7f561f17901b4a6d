"""The ops that the code of a compiled program calls, as a dispatch mode of torch sees them.

A compiled program runs eagerly under a mode of the caller. So the mode is entered where a compiler
may: around the code that ``nop`` has made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime.aot import aot_function, nop

from .random_graphs import bits


class Calls(TorchDispatchMode):
    """Notes each op that is called, with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Any] = []
        self.arguments: list[Sequence[Any]] = []
        self.results: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.ops.append(func)
        self.arguments.append(args)
        self.results.append(func(*args, **(kwargs or {})))
        return self.results[-1]


class Noting:
    """The compiler ``nop``, whose code notes its last call. ``modules``: what it got."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.modules: list[fx.GraphModule] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.modules.append(module)
        run: Any = nop(module, inputs)

        def noted(args: list[Any]) -> Any:
            with Calls() as self.calls:
                return run(args)

        noted._boxed_call = True  # type: ignore[attr-defined]
        if hasattr(run, "placed"):
            noted.placed = run.placed  # type: ignore[attr-defined]
        return noted


def same_bits(ours: Any, theirs: Any) -> None:
    """Check that two results have the same tensors: bits, dtypes and strides."""
    pairs = zip(_tensors(ours), _tensors(theirs), strict=True)
    for a, b in pairs:
        assert a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()
        assert torch.equal(bits(a), bits(b))


def _tensors(result: Any) -> list[Tensor]:
    return [runtime.unwrap(t) for t in pytree.tree_leaves(result) if t is not None]


def last_calls(f: Callable[..., Any], *args: Tensor) -> Calls:
    """Return what the third call of the compiled ``f`` ran. The second one generates the code.
    Each call gives what ``f`` gives, and leaves in its arguments what ``f`` leaves."""
    noting = Noting()
    compiled = aot_function(f, noting)
    mine, theirs = [a.clone() for a in args], [a.clone() for a in args]
    for _ in range(3):
        same_bits(compiled(*mine), f(*theirs))
        same_bits(mine, theirs)
    return noting.calls


def executed(f: Callable[..., Any], *args: Tensor) -> list[Any]:
    """Return the ops that the code of the compiled ``f`` calls, see :func:`last_calls`."""
    return last_calls(f, *args).ops


def check_bits(f: Callable[..., Any], *args: Tensor) -> None:
    """Check that the compiled ``f`` gives what ``f`` gives, see :func:`last_calls`."""
    last_calls(f, *args)


def executed_in_backward(f: Callable[..., Any], x: Tensor) -> list[Any]:
    """Return the ops that the code of the backward of ``f`` calls, whose gradient is that of
    torch."""
    noting = Noting()
    compiled = aot_function(f, nop, noting)
    reference = x.clone().requires_grad_()
    f(reference).backward()
    for _ in range(3):
        leaf = runtime.wrap(x, requires_grad=True)
        compiled(leaf).backward()
        torch.testing.assert_close(runtime.unwrap(leaf.grad), reference.grad)
    return noting.calls.ops


def calls_of_graph(module: fx.GraphModule, *args: Tensor) -> tuple[Any, Calls]:
    """Run the code that ``nop`` makes of ``module``. Return the results, and what was called."""
    run = nop(module, list(args))
    for _ in range(3):
        given = [a.clone() for a in args]
        with Calls() as calls:
            results = run(given)
    return results, calls
