"""The objects that a program has names for.

    it = iter(samples)

    @jit
    def step(x):
        return x * length_hint(it)      # `it` is named here

The graph of objects may hold an iterator that the program has no name for: the trainer has it, and
code that computes names may come to it. Such a one is compared if the hook sees a call of it. What
is named may be read by a function of C that no hook sees, as in the example. So each call compares
how far it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from .nodes import Cell, FunctionParts, Named, Node
from .object_kinds import row_of
from .values import SIMPLE


def named_objects(
    nodes: Iterable[Node], roots: Iterable[object], names: Collection[str]
) -> set[int]:
    """Return the identities of the objects to which ``names`` lead, and of those in them.

    ``nodes``: of the graph. ``roots``: what the program is made of and given. An attribute counts
    whosever it is, if code has its name. What variables of functions around and defaults hold
    counts, as do the items of a container that counts."""
    items: defaultdict[int, list[Node]] = defaultdict(list)
    pending: list[object] = list(roots)
    for node in nodes:
        if isinstance(node, Named):
            pending += [x for name, x in node.had.items() if name in names]
            pending += _below(node)  # of slots
        elif isinstance(node, (Cell, FunctionParts)):
            pending += _below(node)
        else:
            items[id(node.owner)].append(node)
    found: set[int] = set()
    while pending:
        x = pending.pop()
        if type(x) in SIMPLE or id(x) in found:
            continue
        found.add(id(x))
        for node in items[id(x)]:
            pending += _below(node)
        row = row_of(x)
        if row is not None:
            pending += row.below(x)
    return found


def _below(node: Node) -> list[object]:
    return [x for x, _ in node.below()]
