"""What a backward pass asks of Python's state: what custom Functions and hooks read.

    reads = BackwardReads.of(state.graph, codes, state.written)
    found = reads.look()                # when a call is recorded
    reads.require(found)                # when its backward pass runs

Eager mode reads when the pass runs, and the graph has what was there at the call. So the pass is
refused where that has changed. A place that the program itself changes is not asked: a later call
changes it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...trace.provenance import happened_at
from .code_names import names_of
from .lookups import COMPUTED
from .name_lines import line_naming
from .nodes import Cell, Label, Named, Node, OneByOne, Place
from .object_graph import ObjectGraph
from .program_code import Code
from .reads import same
from .values import marks_of, shown

_CONTAINERS = (list, dict, set)


@contextmanager
def at_places(values: Sequence[tuple[Place, Any]]) -> Iterator[None]:
    """Have, while entered, ``values`` at places: what a run has left where the graph has an
    argument, which a backward pass reads after it."""
    before = [(place, place.current()) for place, _ in values]
    try:
        for place, value in values:
            place.put(value)
        yield
    finally:
        for place, value in before:
            place.put(value)


class _Question:
    """What ``node`` has at ``label``; all that it has without one."""

    def __init__(self, node: Node, label: Label | None) -> None:
        self.node = node
        self.label = label

    @property
    def key(self) -> tuple[int, Label]:
        """Return what tells places apart, as :attr:`.nodes.Place.key`."""
        return id(self.node.owner), self.label

    @property
    def what(self) -> str:
        """Return how an error names the place."""
        if self.label is None:
            return self.node.name
        return f"{shown(self.label)} of {self.node.name}"

    def answer(self) -> Any:
        """Return what is there now."""
        if isinstance(self.node, OneByOne) and type(self.node.owner) not in _CONTAINERS:
            return self.node.at(self.label)
        if isinstance(self.node.owner, set):
            return marks_of(self.node.owner)
        return self.node.look()


class BackwardReads:
    """Ask what the traced backward pass of a program has read. ``codes``: of the functions that it
    has entered."""

    def __init__(self, questions: Sequence[_Question], codes: Sequence[Code]) -> None:
        self.questions = questions
        self.codes = codes

    @classmethod
    def of(
        cls, graph: ObjectGraph, codes: Sequence[Code], written: Collection[tuple[int, Any]]
    ) -> BackwardReads | None:
        """Return what functions with these ``codes`` may have read. ``written``: keys of the places
        that the program changes. None if no function of the user's was entered."""
        if not codes:
            return None
        changed = {owner for owner, _ in written}
        questions = [
            question
            for question in _questions(graph, codes)
            if question.key not in written
            and not (question.label is None and id(question.node.owner) in changed)
        ]
        return cls(questions, codes)

    def look(self) -> list[Any]:
        """Return what is there now."""
        return [question.answer() for question in self.questions]

    def require(self, found: Sequence[Any]) -> None:
        """Raise ``RuntimeError`` if something is there now that was not ``found`` at the call."""
        for question, was in zip(self.questions, found, strict=True):
            if same(question.answer(), was):
                continue
            line = line_naming(str(question.label), self.codes)
            raise RuntimeError(
                f"the backward pass of a captured program reads {question.what}, in a custom "
                "Function or in a hook, and that has changed since the call. In eager mode the "
                "pass would read the new value, and a graph has that of the call. Change it after "
                "the pass, or let the program run backward() itself."
                f"{happened_at(line) if line is not None else ''}"
            )


def _questions(graph: ObjectGraph, codes: Sequence[Code]) -> Iterator[_Question]:
    """Yield what functions have names for, and what containers have that are there."""
    names, variables = set[str](), set[str]()
    for code, _ in codes:
        names |= names_of(code).every | names_of(code).words
        variables.update(code.co_freevars)
    every = not COMPUTED.isdisjoint(names)
    values: list[Any] = []
    for node in graph.nodes:
        for label, value in _values(node):
            if every or label in names or (isinstance(node, Cell) and node.variable in variables):
                values.append(value)
                yield _Question(node, label)
    yield from _questions_of_containers(graph, values)


def _values(node: Node) -> Iterator[tuple[Label, Any]]:
    """Yield what a node with names had before the program."""
    if isinstance(node, (Named, Cell)):
        yield from node.values_before()


def _questions_of_containers(graph: ObjectGraph, values: list[Any]) -> Iterator[_Question]:
    """Yield a question for each container among ``values``, at any depth."""
    nodes = {id(node.owner): node for node in graph.nodes if type(node.owner) in _CONTAINERS}
    seen = set[int]()
    while values:
        value = values.pop()
        if type(value) is tuple:
            values += value
        node = nodes.get(id(value))
        if node is None or id(value) in seen:
            continue
        seen.add(id(value))
        values += value.values() if isinstance(value, dict) else value
        yield _Question(node, None)
