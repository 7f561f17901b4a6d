"""Convert functions and compilers to the boxed calling convention.

A *boxed* function takes one list of arguments and empties it. So it can free each tensor after its
last use, although its caller has the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import fx

from ...trace.graph_module import complete
from .placing import DESTINATIONS
from .replay import as_python, replayable
from .staged import Staged, run_graph

Boxed = Callable[[list[Any]], Any]
Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


def make_boxed_func(f: Callable[..., object]) -> Boxed:
    """Return ``f(*args)`` as a boxed function."""

    def boxed(args: list[object]) -> object:
        """Call ``f`` with the items of ``args``, and empty the list before."""
        arguments = tuple(args)
        args.clear()
        return f(*arguments)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """Return ``compiler`` with boxed functions as its results."""

    def compile_boxed(module: fx.GraphModule, inputs: list[object]) -> Callable[..., object]:
        """Compile ``module``, and return a boxed function."""
        return make_boxed_func(compiler(module, inputs))

    return compile_boxed


def as_boxed(function: Callable[..., object]) -> Boxed:
    """Return the function that a compiler returned as a boxed one.

    ``TypeError`` if it is no function.
    """
    if not callable(function):
        raise TypeError(
            f"a compiler returned {function!r}. It takes a GraphModule and example inputs, "
            "and returns a function of such inputs"
        )
    if getattr(function, "_boxed_call", False):
        return function
    return make_boxed_func(function)


def nop(module: fx.GraphModule, _: Sequence[object]) -> Boxed:
    """Compile nothing: return a function that runs the calls of the graph one after the other.

    The code for it is generated at the second call. It is generated at once if the graph may write
    to arguments of the caller, which a :class:`.placing.Destination` says.
    """
    if not replayable(module):
        return make_boxed_func(complete(module).forward)
    if module.meta.get(DESTINATIONS):
        return as_python(module)
    return Staged(module)


def node_by_node(module: fx.GraphModule, _: list[object]) -> Boxed:
    """Compile nothing, as :func:`nop`, and generate no code at any call."""
    if not replayable(module):
        return make_boxed_func(complete(module).forward)
    run = partial(run_graph, module)
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def examples(module: fx.GraphModule) -> list[Any]:
    """Return the values that the inputs of ``module`` had in the trace, for a compiler."""
    return [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
