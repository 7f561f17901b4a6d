"""What a jitted function has captured, and why: a table for people, and the programs as text.

print(explain(f))       # programs, their arguments, why each was captured, what was refused
print(source(f))        # the calls of the programs, with the user's lines
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from ..native.library import library
from ..trace.provenance import line_of
from .jitted import Jitted, JittedModule
from .programs import Captured, described


@dataclass(frozen=True)
class Report:
    """``programs``: in the order of their captures. ``refused``: the arguments for which nothing
    was captured, each with the reason. ``ignored``: the objects of ``ignore=``. ``guards``: where
    guards compare: in C++, or why in Python. ``str()`` is a table, and under it what each program
    has to do with Python's state."""

    name: str
    programs: tuple[Captured, ...]
    refused: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    guards: str = ""

    def __str__(self) -> str:
        """Return the table, then what each program has to do with Python's state."""
        rows = [("program", "sizes", "ops", "arguments", "captured because of")]
        for index, captured in enumerate(self.programs):
            number = sum(
                node.op == "call_function" for node in captured.program.joint.traced.graph.nodes
            )
            rows.append(
                (
                    str(index),
                    "any" if captured.dynamic else "fixed",
                    str(number),
                    ", ".join(captured.arguments),
                    captured.why,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        lines += [
            f"program {index} {line}"
            for index, captured in enumerate(self.programs)
            for line in (*captured.state.lines(), *captured.program.serves)
        ]
        if self.programs:
            lines.append(f"guards compare {self.guards}")
        lines += [f"ignored {text}" for text in self.ignored]
        lines += [f"refused {text}" for text in self.refused]
        count = len(self.programs)
        head = f"{self.name}: {count} program{'s' * (count != 1)}"
        return "\n".join([head, *lines])


def explain(f: object) -> Report:
    """Return what ``f`` has captured, and why. ``TypeError`` if it is not jitted.

    >>> from runtime.jit import jit
    >>> f = jit(lambda x: x * 2)
    >>> f(torch.ones(3)).shape, f(torch.ones(4)).shape
    (torch.Size([3]), torch.Size([4]))
    >>> [(c.dynamic, c.why) for c in explain(f).programs]
    [(False, 'the first call'), (True, 'argument 0 is float32[4], was float32[3]')]
    """
    jitted = _jitted(f)
    return Report(
        getattr(jitted, "__name__", type(jitted.__wrapped__).__name__),
        tuple(jitted.captured),
        tuple(jitted.refused),
        tuple(map(described, jitted.options.ignore)),
        library().describe(),
    )


def source(f: object) -> str:
    """Return the programs of ``f`` as Python functions, in the order of their captures. A comment
    above the calls names the user's line that makes them. A program with gradients is shown as one
    function: the results, then the gradients. ``TypeError`` if ``f`` is not jitted."""
    return "\n\n".join(
        _text(f"program_{index}", captured.program.joint.traced.graph)
        for index, captured in enumerate(_jitted(f).captured)
    )


def _jitted(function: object) -> Jitted:
    """Return the jitted function that a module or a bound method has."""
    found = (
        function._jitted
        if isinstance(function, JittedModule)
        else getattr(function, "__func__", function)
    )
    if not isinstance(found, Jitted):
        raise TypeError(f"{type(function).__name__} is not jitted: give what jit returned")
    return found


def _text(name: str, graph: fx.Graph) -> str:
    """Return a graph as a Python function. A line of the user's is named once for all of its
    calls that follow one another."""
    parameters = ", ".join(node.name for node in graph.find_nodes(op="placeholder"))
    lines = [f"def {name}({parameters}):"]
    before = None
    for node in graph.nodes:
        line = line_of(node)
        if node.op not in ("placeholder", "output") and line is not None and line != before:
            lines.append(f"    # {line}")
            before = line
        if node.op == "get_attr":
            lines.append(f"    {node.name} = self.{node.target}")
        elif node.op == "call_function":
            arguments = list(map(_spelled, node.args))
            arguments += [f"{key}={_spelled(value)}" for key, value in node.kwargs.items()]
            # an op of ATen says of itself `aten.sin.default`
            func = (
                f"torch.ops.{node.target}"
                if hasattr(node.target, "overloadpacket")
                else getattr(node.target, "__name__", str(node.target))
            )
            lines.append(f"    {node.name} = {func}({', '.join(arguments)})")
        elif node.op == "output":
            lines.append(f"    return {_spelled(node.args[0])}")
    return "\n".join(lines)


def _spelled(argument: object) -> str:
    if not isinstance(argument, (list, tuple)):
        return repr(argument)  # of a node its name
    inner = ", ".join(map(_spelled, argument))
    if isinstance(argument, list):
        return f"[{inner}]"
    comma = "," if len(argument) == 1 else ""
    return f"({inner}{comma})"
