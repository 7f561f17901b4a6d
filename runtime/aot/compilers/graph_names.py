"""Name the graph that is being compiled, for compilers that name their files.

get_aot_graph_name()        # model__0_forward_0
"""

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
    """Hold the names of the graphs that this thread compiles, and how many it has compiled."""

    names: tuple[str, ...] = ()
    compiled: int = 0


_NOW = _Now()
_MODEL = "model"


def get_aot_compilation_context() -> tuple[list[str], str, int]:
    """Return the names of the graph that is being compiled on this thread, the name of the model,
    and the number of the graph.

    >>> get_aot_compilation_context()[0]
    []
    """
    return list(_NOW.names), _MODEL, _NOW.compiled


def get_aot_graph_name() -> str:
    """Return a name for the graph that is being compiled.

    Each graph has another one: ``model__0_forward_0``, ``model__0_backward_1``, …
    """
    return f"{_MODEL}__{'_'.join(_NOW.names)}_{_NOW.compiled}"


# torch has both names for it
get_graph_being_compiled = get_aot_graph_name


def next_number() -> int:
    """Return the number of the next program."""
    return next(_programs)


@dataclass(frozen=True)
class Compilers:
    """Hold the compilers of the graphs of one program.

    ``forward`` and ``backward`` are for a program with gradients, ``inference`` is for the only
    graph of one without.
    """

    forward: Compiler
    backward: Compiler
    inference: Compiler


def named_compilers(forward: Compiler, backward: Compiler, inference: Compiler) -> Compilers:
    """Return the compilers of one program.

    While one of them runs, the functions above say which graph it compiles.
    """
    number = next_number()

    def named(compiler: Compiler, kind: str) -> Compiler:
        """Return ``compiler``, with a name for the graph while it runs."""

        @wraps(compiler)
        def compile(module: fx.GraphModule, examples: list[object]) -> Any:
            """Compile ``module`` under its name."""
            before, _NOW.names = _NOW.names, (f"{number}_{kind}",)
            # `nop` generates code of its own
            if compiler is not nop:
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
