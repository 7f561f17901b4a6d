"""Find the leaves of a program that is captured, and the nodes of the tape that lead to them.

    leaves = LeafIndex(arguments, frozen)
    leaves.at(node)         # (p, the value that the program has in place of the parameter p)

A leaf is a tensor from outside, or an argument by its key. Start with :class:`LeafIndex`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import torch

from ...seam.graph_walks import walk
from ...seam.level_mode import EnteringMode, entering_mode
from ...session import backward as session
from ...tape.nodes import Edge, Input, Node, nodes_after, nodes_at
from ...tape.values import GradValue, edge_of
from .program_tape import Argument, ProgramTape


def mode_of_program() -> EnteringMode:
    """Return the mode that has the values of tensors from outside."""
    mode = entering_mode()
    assert mode is not None, "a program that is captured has such a mode"
    return mode


def end_of(value: object) -> Node | None:
    """Return the node at the end of the path of a leaf; None if ``value`` is no leaf, or does not
    require grad."""
    if not isinstance(value, GradValue) or not isinstance(value._level, ProgramTape):
        return None
    edge = value._edge
    if edge is None or not isinstance(edge[0], (Argument, Input)):
        return None
    return edge[0]


def reachable(nodes: Iterable[Node]) -> dict[Node, None]:
    """Return the nodes that ``nodes`` lead to, in the same order at every capture of a program.

    A cache on disk finds a graph by its text, which has to be the same each time.
    """
    return dict.fromkeys(walk(nodes, nodes_after))


def edge_of_value(value: object) -> Edge | None:
    """Return the history of ``value``; None for a tensor that is no value of a tape."""
    return edge_of(value) if isinstance(value, GradValue) else None


def nodes_of(values: object) -> list[Node]:
    """Return the nodes at which the histories of ``values`` begin."""
    own = (value for value in session.listed(values) if isinstance(value, GradValue))
    return list(nodes_at(map(edge_of, own)))


class LeafIndex:
    """Find the leaf at a node of the tape.

    A program of thousands of leaves asks for each, so that they have an index. What is in it may
    have another history since, and a leaf that is frozen may end its freeze. So the index is
    checked, and :meth:`search` looks at all. ``frozen``: see :class:`LeafGradients`.
    """

    def __init__(
        self,
        arguments: Mapping[object, object],
        frozen: Mapping[int, tuple[torch.Tensor, object]],
    ) -> None:
        self._arguments = arguments
        self._frozen = frozen
        self._mode: EnteringMode | None = None
        self._count = 0  # how many of those that the mode has found are in the index
        self._index: dict[Node, tuple[object, object]] = {}

    def at(self, node: Node) -> tuple[object, object] | None:
        """Return the leaf at ``node``, or the key of an argument, and its value; None if the index
        has none, or another one by now."""
        mode = mode_of_program()
        # a branch or another capture inside has a mode, and values, of its own
        if mode is not self._mode:
            self._mode, self._count, self._index = mode, 0, {}
            self._enter(self._arguments.items())
        count = len(mode.found)
        self._enter(map(self._pair, mode.found[self._count : count]))
        self._count = count
        found = self._index.get(node)
        if found is None or end_of(found[1]) is not node:
            return None
        return found

    def search(self, node: Node) -> tuple[object, object] | None:
        """Return the same after a look at each leaf."""
        pairs = chain(self._arguments.items(), map(self._pair, mode_of_program().found))
        return next((pair for pair in pairs if end_of(pair[1]) is node), None)

    def _enter(self, pairs: Iterable[tuple[object, object]]) -> None:
        """Add the leaves among ``pairs``, each a tensor or a key, and its value."""
        for leaf, value in pairs:
            end = end_of(value)
            if end is not None:
                self._index.setdefault(end, (leaf, value))

    def _pair(self, tensor: torch.Tensor) -> tuple[object, object]:
        """Return ``tensor`` and the value that has its history."""
        if id(tensor) in self._frozen:  # the mode has one without a history
            return tensor, self._frozen[id(tensor)][1]
        return tensor, mode_of_program().value(tensor)
