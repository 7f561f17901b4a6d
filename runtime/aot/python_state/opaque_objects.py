"""Objects of C that say nothing of themselves, where a program has a name for one.

    compressor = zlib.compressobj()

    @jit
    def step(x):
        return x * len(compressor.compress(b"text"))    # refused: `compressor` is named here

What such an object has cannot be compared or put back. One that the program has no name for may be
in the graph: the trainer holds it, say."""

from __future__ import annotations

from typing import Any

from ...trace.provenance import happened_at
from .nodes import FunctionParts
from .object_graph import ObjectGraph
from .summary import line_naming


def opaque_objects_named(graph: ObjectGraph) -> list[tuple[Any, str]]:
    """List the opaque objects of ``graph`` that the program has a name for, each with it."""
    if not graph.opaque:
        return []
    named = graph.code.named_objects(graph.nodes, graph.roots)
    return [(x, name) for x, name in graph.opaque if id(x) in named]


def refuse_opaque_objects(graph: ObjectGraph) -> None:
    """Raise ``RuntimeError`` if the program has a name for an opaque object."""
    for x, name in opaque_objects_named(graph):
        functions = [node.owner for node in graph.nodes if isinstance(node, FunctionParts)]
        known = [(f.__code__, f.__globals__) for f in functions]
        code = [*graph.code.entered.values(), *known]  # it may not have run yet
        line = line_naming(name, code) or graph.code.first_line
        raise RuntimeError(
            f"the program can come to {name}, a {type(x).__qualname__} of C, which does not "
            "say whether it is as it was. Do that outside, and pass what it gives. Or name it "
            f"in ignore=(…,), if the program does not depend on it.{happened_at(line)}"
        )
