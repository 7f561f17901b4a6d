"""What a backward pass asks of Python's state: what custom Functions and hooks read.

    reads = BackwardReads.of(state.backward, state.graph.nodes, state.written)
    found = reads.look()                # when a call is recorded
    reads.require(found)                # when its backward pass runs

Eager mode reads when the pass runs, and the graph has what was there at the call. So the pass is
refused where that has changed. The functions that the traced pass has entered have a graph of
objects of their own. A place that the program itself changes is not asked: a later call changes it,
too.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ...seam.levels import Value
from ...trace.provenance import happened_at
from .contents import Cursor, Draws, Fact
from .name_lines import line_naming
from .nodes import Cell, Globals, Node, Place
from .object_graph import ObjectGraph
from .program_code import BackwardEntries, Code
from .values import shown


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


class BackwardReads:
    """Ask for the objects ``nodes``. ``codes``: of the functions that come to them. ``written``:
    keys of the places that the program changes."""

    def __init__(
        self, nodes: Sequence[Node], codes: Sequence[Code], written: Collection[tuple[int, Any]]
    ) -> None:
        self.nodes = nodes
        self.codes = codes
        self.written = written

    @classmethod
    def of(
        cls,
        entries: BackwardEntries,
        known: Sequence[Node],
        written: Collection[tuple[int, Any]],
    ) -> BackwardReads | None:
        """Return what functions of the user's may have read. ``known``: the objects to which the
        program comes. None if no function was entered."""
        codes = list(entries.codes.values())
        if not codes:
            return None
        if not entries.given.isdisjoint(entries.found):
            code = codes[0][0]
            raise RuntimeError(
                "the backward pass of the program comes to a container that the program is given, "
                "in a custom Function or in a hook. A call would not see that it changes before "
                "the pass. Pass its items, or let the program run backward() itself."
                f"{happened_at((code.co_filename, code.co_firstlineno, code.co_name))}"
            )
        graph = ObjectGraph([x for x in entries.found.values() if not isinstance(x, Value)])
        for code, names in codes:
            graph.enter(code, names)
        for module in _modules_of(known):
            graph.enter_module(module)  # a function may import it by any name
        variables = {name for code, _ in codes for name in code.co_freevars}
        cells = [x for x in known if isinstance(x, Cell) and x.variable in variables]
        return cls([*filter(_may_be_asked, graph.nodes), *cells], codes, written)

    def look(self) -> list[Node]:
        """Return the objects with what they have now."""
        found = list(map(copy.copy, self.nodes))
        for node in found:
            node.renew()
        return found

    def require(self, found: Sequence[Node]) -> None:
        """Raise ``RuntimeError`` if an object has something else than it had when it was
        ``found``."""
        for node in found:
            if node.holds():
                continue
            for label, _, _ in node.differences():
                if not self._is_written(node, label):
                    self._refuse(node, label)

    def _is_written(self, node: Node, label: object) -> bool:
        """Return whether the program changes what the object has at ``label``, or as a whole."""
        owner = id(node.owner)
        return (owner, label) in self.written or (owner, None) in self.written

    def _refuse(self, node: Node, label: object) -> None:
        what = node.name if label is None else f"{shown(label)} of {node.name}"
        line = line_naming(what, self.codes)
        if line is None:
            code = self.codes[0][0]
            line = code.co_filename, code.co_firstlineno, code.co_name
        raise RuntimeError(
            f"the backward pass of a captured program reads {what}, in a custom Function or in a "
            "hook, and that has changed since the call. In eager mode the pass would read the new "
            "value, and a graph has that of the call. Change it after the pass, or let the program "
            f"run backward() itself.{happened_at(line)}"
        )


def _modules_of(nodes: Iterable[Node]) -> Iterator[ModuleType]:
    """Yield the modules whose names are among the objects of a program."""
    for node in nodes:
        if isinstance(node, Globals):
            module = sys.modules.get(str(node.owner.get("__name__")))
            if module is not None and vars(module) is node.owner:
                yield module


def _may_be_asked(node: Node) -> bool:
    """Return whether it can be asked later what an object has. A pass has modes of its own, and
    other code draws and iterates."""
    return node.watched and not isinstance(node, (Cursor, Draws, Fact))
