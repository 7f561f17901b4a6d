"""Which gradients of a program a cotangent reaches.

def f(x, y):
    return x * 2, y * 3
grad(f(x, y)[0].sum(), y, allow_unused=True)        # None, as there is no path from the first result to y
"""

from __future__ import annotations

from collections.abc import Sequence

from ...tape.nodes import Edge, Node


def reach(roots: Sequence[Edge], ends: Sequence[Edge]) -> tuple[int, ...]:
    """For each end of a path a number: bit ``i`` says whether a path leads from root ``i`` to it."""
    reached: dict[Node, int] = {}
    arrived: dict[tuple[Node, int], int] = {}
    for i, (node, number) in enumerate(roots):
        reached[node] = reached.get(node, 0) | 1 << i
        arrived[node, number] = arrived.get((node, number), 0) | 1 << i
    for node in _order([node for node, _ in roots]):
        for edge in node.edges:
            if edge is not None:
                reached[edge[0]] = reached.get(edge[0], 0) | reached[node]
                arrived[edge] = arrived.get(edge, 0) | reached[node]
    return tuple(arrived.get((node, number), 0) for node, number in ends)


def _order(starts: Sequence[Node]) -> list[Node]:
    """All nodes behind ``starts``, each before those that its edges lead to."""
    done: dict[Node, None] = {}
    for start in starts:
        stack: list[tuple[Node, bool]] = [(start, False)]
        while stack:
            node, after = stack.pop()
            if node in done:
                continue
            if after:
                done[node] = None
                continue
            stack.append((node, True))
            stack.extend((edge[0], False) for edge in node.edges if edge is not None and edge[0] not in done)
    return list(reversed(done))
