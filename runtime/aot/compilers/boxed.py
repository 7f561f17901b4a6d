"""Compilers and the boxed calling convention.

A *boxed* function takes one list of arguments and empties it, so that it can free each tensor after
its last use although its caller made the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from ...trace.graph_module import complete
from .placing import DESTINATIONS
from .replay import as_python, replayable
from .staged import Staged

Boxed = Callable[[list[Any]], Any]
Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


def make_boxed_func(f: Callable[..., object]) -> Boxed:
    """``f(*args)`` as a boxed function."""

    def boxed(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return f(*given)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """Return a compiler whose results are called boxed."""

    def compile_boxed(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return make_boxed_func(compiler(module, inputs))

    return compile_boxed


def as_boxed(function: Callable[..., object]) -> Boxed:
    """Return what a compiler returned, as a boxed function."""
    if not callable(function):
        raise TypeError(
            f"a compiler returned {function!r}. It takes a GraphModule and example inputs, "
            "and returns a function of such inputs"
        )
    return function if getattr(function, "_boxed_call", False) else make_boxed_func(function)


def nop(module: fx.GraphModule, _: list[Any]) -> Boxed:
    """Return the compiler that runs the graph as it is, one call after the other. The code for it
    is generated at the second call, or at once if the graph may write to arguments of the caller,
    which a :class:`.placing.Destination` says."""
    if not replayable(module):
        return make_boxed_func(complete(module).forward)
    return as_python(module) if module.meta.get(DESTINATIONS) else Staged(module)


def examples(module: fx.GraphModule) -> list[Any]:
    """Return the values that the inputs of ``module`` had in the trace, as a compiler takes
    them."""
    return [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
