"""Which gradients of a program a cotangent reaches, and which nodes of its tape.

def f(x, y):
    return x * 2, y * 3
grad(f(x, y)[0].sum(), y, allow_unused=True)        # None, as there is no path from the
                                                    first result to y
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...autograd.function_node import FunctionNode
from ...tape.nodes import Edge, Node
from ..control_flow.branches import ControlFlow


@dataclass(frozen=True)
class Reach:
    """Bit ``i`` of a number says whether a path leads from root ``i``: to a node, or to
    one of its outputs."""

    nodes: Mapping[Node, int]
    outputs: Mapping[Edge, int]

    @classmethod
    def of(cls, roots: Sequence[Edge]) -> Reach:
        nodes: dict[Node, int] = {}
        outputs: dict[Edge, int] = {}
        for i, (node, number) in enumerate(roots):
            nodes[node] = nodes.get(node, 0) | 1 << i
            outputs[node, number] = outputs.get((node, number), 0) | 1 << i
        for node in _order([node for node, _ in roots]):
            for edge in node.edges:
                if edge is not None:
                    nodes[edge[0]] = nodes.get(edge[0], 0) | nodes[node]
                    outputs[edge] = outputs.get(edge, 0) | nodes[node]
        return cls(nodes, outputs)

    def asking(self) -> dict[str, set[frozenset[int]]]:
        """The nodes that ask which of their cotangents are there, by name: those of several outputs
        with hooks, and custom Functions that take None. For each the numbers of its outputs."""
        found: dict[str, set[frozenset[int]]] = {}
        arrived: dict[Node, set[int]] = {}
        for (node, _), bits in self.outputs.items():
            arrived.setdefault(node, set()).add(bits)
        for node, numbers in arrived.items():
            asks = (
                isinstance(node, FunctionNode)
                and not node.materialize_grads
                and not issubclass(node._forward_cls, ControlFlow)
            )
            if len(numbers) > 1 and (
                asks or node.pre_hooks or node.tensor_hooks or node.post_hooks
            ):
                found.setdefault(node.name(), set()).add(frozenset(numbers))
        return found


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
            stack.extend(
                (edge[0], False) for edge in node.edges if edge is not None and edge[0] not in done
            )
    return list(reversed(done))
