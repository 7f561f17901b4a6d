"""A program as data, and its text.

    program = Program((Input("a", "fresh"),), (Statement("sine", "p = a.sin()"),), ("p",), (call,))
    print(program.text())

    def program(a):
        p = a.sin()
        return [p]

Each part is a choice from the tables of a :class:`.word_tables.Grammar`, so a program is made
smaller by leaving parts out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

GRADS = ("plain", "leaf", "computed")  # whether an input requires grad, and as which kind of tensor


@dataclass(frozen=True)
class Input:
    """An argument of a program."""

    name: str
    # A word of the grammar's inputs.
    kind: str
    # Whether its base is a leaf, or computed from one.
    grad: str
    # The expression that makes it.
    text: str
    # The input that it shares memory with.
    other: str = ""


@dataclass(frozen=True)
class Call:
    """One call of a program."""

    # The difference from the first call.
    kind: str
    inputs: tuple[Input, ...]
    dtype: str = "double"
    # The context manager that the call runs in.
    around: str = ""
    # Statements that run before the call.
    before: str = ""
    # Whether the inputs are those of the call before it.
    repeats: bool = False

    def text(self) -> str:
        """Return the statements before the call: what changes, and what makes the inputs."""
        lines = [self.before]
        if not self.repeats:
            lines += [f"{argument.name} = {argument.text}" for argument in self.inputs]
        return "\n".join(filter(None, lines))


@dataclass(frozen=True)
class Statement:
    """Lines of the program."""

    # a word of the grammar's statements
    kind: str
    text: str


def texts_of(parts: Iterable[Input | Statement]) -> list[str]:
    """Return the texts of some parts."""
    return list(map(attrgetter("text"), parts))


@dataclass(frozen=True)
class Program:
    """What is called, and how often. `results`: an expression for each."""

    statements: tuple[Statement, ...]
    results: tuple[Statement, ...]
    calls: tuple[Call, ...]

    @property
    def names(self) -> list[str]:
        """Return the names of the arguments."""
        return list(map(attrgetter("name"), self.calls[0].inputs))

    def text(self) -> str:
        """Return the text of the function."""
        lines = [*texts_of(self.statements), f"return [{', '.join(texts_of(self.results))}]"]
        body = textwrap.indent("\n".join(lines), "    ")
        return f"def program({', '.join(self.names)}):\n{body}\n"

    def kinds(self) -> frozenset[str]:
        """Return the words of the grammar that the program has."""
        words = {f"statement {statement.kind}" for statement in self.statements}
        words |= {f"result {result.kind}" for result in self.results}
        for call in self.calls:
            words.add(f"call {call.kind}")
            words |= {f"input {argument.kind}" for argument in call.inputs}
        return frozenset(words)
