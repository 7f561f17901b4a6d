"""Walks over graphs, those of ``torch.fx`` and those of a tape.

    after = {"loss": ["mul"], "mul": ["w", "x"], "w": ["x"], "x": []}.__getitem__
    list(walk(["loss"], after))                         # ["loss", "mul", "x", "w"]
    list(walk(["loss"], after, breadth_first=True))     # ["loss", "mul", "w", "x"]
    list(walk_postorder(["loss"], after))               # ["x", "w", "mul", "loss"]
    nodes_before(["w"], ["loss", "mul", "w"], after)    # {"mul", "loss"}

``following`` returns the nodes that the edges of a node lead to: :func:`inputs_of` or
:func:`users_of` in a graph of ``torch.fx``. No walk is recursive, so a graph may be of any depth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

from torch import fx

N = TypeVar("N", bound=Hashable)


def walk(
    starts: Iterable[N], following: Callable[[N], Iterable[N]], breadth_first: bool = False
) -> Iterator[N]:
    """Yield ``starts`` and the nodes that paths from them lead to, each node once.

    The walk goes depth first, and to the last of several nodes first. With ``breadth_first`` the
    nearest node comes first. ``following`` is asked about a node when the next one is needed.
    """
    visited: set[N] = set()
    waiting = deque(starts)
    take = waiting.popleft if breadth_first else waiting.pop
    while waiting:
        node = take()
        if node not in visited:
            visited.add(node)
            yield node
            waiting.extend(following(node))


def walk_postorder(starts: Iterable[N], following: Callable[[N], Iterable[N]]) -> Iterator[N]:
    """Yield the nodes of :func:`walk`, each after all nodes that its edges lead to.

    ``starts`` come in their order, and the last of several following nodes comes first.
    """
    done: set[N] = set()
    for start in starts:
        stack = [start]
        while stack:
            node = stack[-1]
            missing = [target for target in following(node) if target not in done]
            # these come first, and then the node is on top of the stack again
            if missing:
                stack += missing
                continue
            stack.pop()
            # several edges may have led to the node
            if node not in done:
                done.add(node)
                yield node


def nodes_before(
    ends: Iterable[N], nodes: Iterable[N], following: Callable[[N], Iterable[N]]
) -> set[N]:
    """Return those of ``nodes`` from which a path of at least one edge leads to one of ``ends``."""
    preceding: dict[N, list[N]] = {}
    for node in nodes:
        for target in following(node):
            preceding.setdefault(target, []).append(node)

    def before(node: N) -> Iterable[N]:
        return preceding.get(node, ())

    return set(walk(chain.from_iterable(map(before, ends)), before))


# graphs of torch.fx


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that ``node`` takes."""
    return node.all_input_nodes


def users_of(node: fx.Node) -> Iterable[fx.Node]:
    """Return the nodes that take ``node``."""
    return node.users


def nodes_among(values: Iterable[object]) -> list[fx.Node]:
    """List the nodes among arguments of a call or results of a graph, which may be constants."""
    return [value for value in values if isinstance(value, fx.Node)]


def results_of(graph: fx.Graph) -> Any:
    """Return the results of ``graph``: a list of nodes and constants, or a single one."""
    (results,) = graph.output_node().args
    return results


def last_users(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return for each node that has users the last one of them, in program order."""
    return {node: user for user in graph.nodes for node in user.all_input_nodes}
