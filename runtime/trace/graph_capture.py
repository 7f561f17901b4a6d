"""Runs a program at a trace level, and makes a module of the graph.

Example: ``trace_flat(lambda level, x: [x.sin()], [torch.zeros(3)])`` returns a graph of a
placeholder, a call of ``aten.sin`` and the output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..seam.escapes import living
from ..seam.levels import Value
from ..seam.memory_gate import memory_gate
from ..stack_room import with_room
from ..torch_private.dispatcher import with_python_kernels

# these three and `python_kernels` register their kernels when they are imported
from . import checking_kernels as checking_kernels
from . import composite_kernels as composite_kernels
from . import provenance
from . import python_kernels as python_kernels
from .error_lines import name_line
from .graph_edits import without_unused
from .graph_module import GraphModule
from .provenance import Provenance
from .symbol_values import paused, running
from .symbols import SYMBOLIC, Abstraction, Given
from .torch_functions import SymbolIndices
from .trace_level import Trace


def trace_flat(
    function: Callable[..., Sequence[object]],
    tensors: Sequence[object],
    *,
    dynamic: bool = False,
    decompositions: Mapping[object, Callable[..., object]] | None = None,
    names: Sequence[str] | None = None,
    fixed_sizes: bool = False,
    abstraction: Abstraction | None = None,
    unknown: Collection[int] = (),
    provenance: Provenance | None = None,
    reads: str = "refuse",
    late: bool = False,
) -> tuple[fx.Graph, dict[str, object], Trace]:
    """Call ``function(level, *inputs)`` with traced values for the tensors in ``tensors``. Others
    are passed as they are, with a placeholder.

    ``fixed_sizes``: refuse an op whose result has a size that depends on values. ``abstraction``:
    what makes the abstract values, instead of a new one or of the mode of fake tensors among
    ``tensors``. ``unknown``: see :func:`run_trace`. ``provenance``: what notes where nodes come
    from. ``reads``, ``late``: see :class:`.trace_level.Trace`. Returns the graph, whose output is
    the list that ``function`` returned, its constants, and the closed level.
    """
    abstraction = abstraction or Abstraction.of(tensors, dynamic=dynamic)
    options: dict[str, Any] = {
        "abstraction": abstraction,
        "decompositions": decompositions,
        "fixed_sizes": fixed_sizes,
    }
    level = Trace(**options, provenance=provenance or Provenance(), reads=reads, late=late)
    run_trace(
        level,
        function,
        tensors,
        names or [f"arg{index}_1" for index in range(len(tensors))],
        unknown=unknown,
        dispatcher=abstraction is not None,
    )
    return level.graph, level.attributes, level


@with_room
def run_trace(
    level: Trace,
    f: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    names: Sequence[str],
    *,
    unknown: Collection[int] = (),
    dispatcher: bool = False,
) -> None:
    """Trace ``f`` at ``level``, see :func:`trace_flat`. ``unknown``: the positions of the numbers
    that become symbols. ``dispatcher``: whether torch's Python dispatcher is on, which has the
    kernels for symbolic sizes."""
    try:
        arguments: list[Any] = []
        for index, (tensor, name) in enumerate(zip(inputs, names, strict=True)):
            if isinstance(tensor, torch.Tensor):
                arguments.append(level.input(tensor, name))
            elif index in unknown:
                arguments.append(level.unknown(tensor, name))
            else:
                node = level.placeholder(name)
                if isinstance(tensor, SYMBOLIC) and isinstance(level.abstraction, Given):
                    level.abstraction.number(tensor, node)
                arguments.append(tensor)
        dispatching: AbstractContextManager[object] = nullcontext()
        if dispatcher:
            dispatching = with_python_kernels()
        indexing: AbstractContextManager[object] = nullcontext()
        if level.abstraction is not None:
            indexing = SymbolIndices()
        with dispatching, memory_gate(), level.mode, indexing:
            outputs = _run(level, f, arguments)
        level.finish()
        level.graph.output(list(map(level.lower_output, outputs)))
    finally:
        # also of a program that fails: what it has written outside is put back
        level.close()


def _run(
    level: Trace, function: Callable[..., Sequence[Any]], arguments: Sequence[object]
) -> list[Any]:
    """Return the results of the program. Its errors get the user's line."""
    environment = lower = None
    if level.abstraction is not None:
        environment, lower = level.abstraction.shape_env, level.abstraction.lower
    try:
        with running(environment, lower):
            outputs: list[Any] = living(provenance.run(function, level, *arguments))
    except Exception as error:
        with paused():  # an error may hold sizes of a program around
            name_line(error, error.__traceback__, _advice(level, error))
        raise
    return outputs


def _advice(level: Trace, error: Exception) -> str:
    """Return the note for an error of a program whose sizes or numbers are symbols."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return "The program asks for a condition on a value that is not known while it is traced."
    symbols = level.abstraction is not None and level.abstraction.symbols
    # the classes with which code in C and in Python refuses a symbol in place of a number
    if symbols and isinstance(error, (RuntimeError, TypeError, AttributeError)):
        return (
            "Sizes and numbers of the program may be symbols here. "
            "If that is the cause, int(size) makes one a constant."
        )
    return ""


def module_of(
    graph: fx.Graph,
    attributes: Mapping[str, object],
    name: str = "Traced",
    kind: type[fx.GraphModule] = GraphModule,
    kept: Collection[fx.Node] = (),
) -> fx.GraphModule:
    """Return a graph with its constants as a module, of the class ``kind``. Unused calls without
    effect are left out, except those in ``kept``."""
    root = torch.nn.Module()
    for key, value in attributes.items():
        if isinstance(value, torch.nn.Parameter):
            root.register_parameter(key, value)
        elif isinstance(value, torch.Tensor) and not isinstance(value, Value):
            root.register_buffer(key, value)
        elif isinstance(value, torch.nn.Module):
            root.add_module(key, value)
        else:
            root.__dict__[key] = value
    without_unused(graph, kept)
    return kind(root, graph, name)
