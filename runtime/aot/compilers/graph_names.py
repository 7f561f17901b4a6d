"""Which graph is being compiled: what a compiler asks in order to name its files."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import fx

from ...seam.ambient import Ambient
from ...trace.graph_module import complete
from .boxed import Compiler, nop

_programs = itertools.count()


class _Now(Ambient):
    """The names of the graphs that this thread compiles, and how many it has compiled."""

    names: tuple[str, ...] = ()
    compiled: int = 0


_NOW = _Now()
_MODEL = "model"


def get_aot_compilation_context() -> tuple[list[str], str, int]:
    """Return the graph that is being compiled on this thread, the name of the model, and the number
    of the graph.

    >>> get_aot_compilation_context()[0]
    []
    """
    return list(_NOW.names), _MODEL, _NOW.compiled


def get_aot_graph_name() -> str:
    """Return a name for the graph that is being compiled, another one for each:
    ``model__0_forward_0``, ``model__0_backward_1``, …"""
    return f"{_MODEL}__{'_'.join(_NOW.names)}_{_NOW.compiled}"


get_graph_being_compiled = get_aot_graph_name


def next_number() -> int:
    """Return the number of the next program."""
    return next(_programs)


@dataclass(frozen=True)
class Compilers:
    """The compilers of the graphs of one program: of its forward and its backward where gradients
    are wanted, and ``inference`` of the only graph where none are."""

    forward: Compiler
    backward: Compiler
    inference: Compiler


def named_compilers(forward: Compiler, backward: Compiler, inference: Compiler) -> Compilers:
    """Return the compilers of one program. While one runs, the functions above say which graph it
    compiles."""
    number = next_number()

    def named(compiler: Compiler, kind: str) -> Compiler:
        @wraps(compiler)
        def compile(module: fx.GraphModule, examples: list[Any]) -> Any:
            before, _NOW.names = _NOW.names, (f"{number}_{kind}",)
            if compiler is not nop:  # which makes code of its own
                module = complete(module)
            try:
                return compiler(module, examples)
            finally:
                _NOW.names = before
                _NOW.compiled += 1

        return compile

    return Compilers(
        forward=named(forward, "forward"),
        backward=named(backward, "backward"),
        inference=named(inference, "inference"),
    )
