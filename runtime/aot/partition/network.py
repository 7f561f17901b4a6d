"""Turn a joint graph into a flow network whose cheapest cut says what to save.

Each value is two vertices, and the edge between them weighs the bytes of saving it. The cut passes
through the saved values; those behind it, on the side of the sink, are computed again. So the sink
stands behind everything that the backward uses, and the source before everything that cannot be
computed again. A call of a price has an edge from the source that weighs it: the cut passes there
if the call is computed again. If the price of every call rises together, fewer calls are computed
again, and these are among those of before: the cuts are nested, because only the edges at the
source change (Gallo, Grigoriadis and Tarjan 1989). :func:`min_cut` finds the cheapest cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import fx

from ...checkpoint.selective import CheckpointPolicy
from ...seam.graph_walks import nodes_among
from .halves import Parts
from .recompute import Again, again, call_of, is_item, is_size, is_view, n_bytes, policy_of, work

# --- minimum cuts ---------------------------------------------------------------------------------
#
# Graphs are directed, and capacities are integers. scipy's maximum flow takes capacities of 32
# bits, so larger ones are scaled down. A search of the residual graph then finds the cut.

INFINITE = -1
_LARGEST = 2**31 - 1


def min_cut(
    n: int, edges: Sequence[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, np.ndarray[Any, Any]]:
    """Return the value of the minimum cut, and which of the ``n`` vertices are on the sink's side.

    ``edges``: (from, to, capacity), capacity a number of bytes or ``INFINITE``. Of several minimum
    cuts this is the one nearest to the sink. The value is that of the edges cut, unscaled. Scaling
    may miss a cut that is better by less than one part in 2**31 / (number of edges).
    ``ValueError`` if no cut is finite.
    """
    start = np.array([edge[0] for edge in edges], dtype=np.int64)
    end = np.array([edge[1] for edge in edges], dtype=np.int64)
    capacity = np.array([edge[2] for edge in edges], dtype=np.int64)
    finite = capacity >= 0
    total = int(capacity[finite].sum())
    # scale the capacities, with room for an infinite one above all others, and for rounding up
    limit = _LARGEST - 1 - len(edges)
    scale = max(1, -(-total // max(limit, 1)))
    scaled = np.where(finite, -(-capacity // scale), 0)
    scaled[~finite] = scaled.sum() + 1
    # parallel edges add up; two infinite ones must not overflow
    dense = csr_array((scaled, (start, end)), shape=(n, n))
    dense.sum_duplicates()
    dense.data = np.minimum(dense.data, _LARGEST)
    network = csr_array((dense.data.astype(np.int32), dense.indices, dense.indptr), shape=(n, n))
    # the vertices from which the sink can still be reached are on its side
    flow = maximum_flow(network, source, sink).flow
    residual = csr_array(network.astype(np.int64) - flow.astype(np.int64))
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reaches_sink = np.zeros(n, dtype=bool)
    reaches_sink[breadth_first_order(csr_array(residual.T), sink, return_predecessors=False)] = True
    cut = ~reaches_sink[start] & reaches_sink[end]
    if (cut & ~finite).any() or reaches_sink[source]:
        raise ValueError("source and sink are joined by edges of infinite capacity")
    return int(capacity[cut].sum()), reaches_sink


# --- networks of joint graphs ---------------------------------------------------------------------

AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def _views_of_inputs(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the views of arguments, and views of these. ``nodes``: in program order."""
    views: set[fx.Node] = set()
    for node in nodes:
        source = node.args[0] if is_view(node) else None
        if isinstance(source, fx.Node) and (source.op == "placeholder" or source in views):
            views.add(node)
    return views


class Network:
    """Build the network of a joint graph, and cut it."""

    def __init__(
        self, parts: Parts, static: Collection[fx.Node], allowed: Callable[[fx.Node], bool]
    ) -> None:
        self.parts = parts
        # inputs that cost nothing to save
        self.static = static
        # which calls may be computed again for nothing
        self.allowed = {
            candidate: _costs_nothing(candidate, allowed) for candidate in parts.candidates
        }
        self.fixed = {
            candidate: kept_in_forward(candidate, parts) for candidate in parts.candidates
        }
        # the value has this vertex and the next one, between which it is saved
        self.vertex = {candidate: 2 * index for index, candidate in enumerate(parts.candidates)}
        self.source = 2 * len(self.vertex)
        self.sink = self.source + 1
        self.views_of_inputs = _views_of_inputs(parts.nodes)
        self.edges = self._edges()
        self.works: dict[fx.Node, int] = {}

    def _edges(self) -> list[tuple[int, int, int]]:
        """List the edges that no price changes: of values, to their users, and to the sink."""
        parts, vertex, edges = self.parts, self.vertex, []
        gradients = set(nodes_among(parts.gradients))
        # each value is two vertices: the edge between them is cut where the value is saved
        for node, entry in vertex.items():
            leave = entry + 1
            edges.append((entry, leave, self._price_of_saving(node)))
            edges += [(leave, vertex[user], INFINITE) for user in node.users if user in vertex]
            if node in gradients or self._feeds_backward(node):
                edges.append((leave, self.sink, INFINITE))
        return edges

    def _feeds_backward(self, node: fx.Node) -> bool:
        """Return whether a call that only the backward can make takes ``node``."""
        return any(user in self.parts.backward and user not in self.vertex for user in node.users)

    def _price_of_saving(self, node: fx.Node) -> int:
        """Return the cost of saving ``node``.

        A call with several results is saved by its items, and no value inside of a region is saved.
        """
        value = node.meta.get("val")
        # an argument that is no tensor, a call for its effect
        if not node.users:
            return 0
        if value is None and node.op != "get_attr":
            raise ValueError(
                f"the size of {node.name} is not known: it has no meta['val']. "
                "Make the joint graph with make_fx"
            )
        if node in self.static or node.op == "get_attr":
            return 0
        if self.inside(node) or not (isinstance(value, torch.Tensor) or is_size(node)):
            return INFINITE
        # One byte more decides between equal values: rather an argument than a view of it, rather
        # a value that the forward needs than another one.
        behind = node not in self.parts.forward_set or node in self.views_of_inputs
        return max(1, n_bytes(value)) + behind

    def inside(self, node: fx.Node) -> bool:
        """Return whether a checkpoint region has ``node`` inside, and so always runs it again."""
        if policy_of(node) is not CheckpointPolicy.MUST_RECOMPUTE:
            return False
        return again(node).pure and not self.parts.leaves_region(node)

    def cut(
        self, price: Callable[[fx.Node], int] | None = None, fixed: Collection[fx.Node] = ()
    ) -> list[fx.Node]:
        """Return the nodes to save.

        ``price``: what it costs to compute a call again that is not allowed for nothing; None: such
        calls are not. ``fixed``: further values that the forward alone may compute.
        """
        edges = list(self.edges)
        for node, entry in self.vertex.items():
            capacity = self._price_of_again(node, price, fixed)
            if capacity:
                edges.append((self.source, entry, capacity))
        # without a user in the backward there is nothing to save
        if not any(end == self.sink for _, end, _ in edges):
            return []
        _, behind = min_cut(self.sink + 1, edges, self.source, self.sink)
        # a value is saved if the cut passes between its two vertices
        return [
            node
            for node, entry in self.vertex.items()
            if not behind[entry] and behind[entry + 1] and node.op != "get_attr"
        ]

    def _price_of_again(
        self, node: fx.Node, price: Callable[[fx.Node], int] | None, fixed: Collection[fx.Node]
    ) -> int:
        """Return the cost of computing ``node`` again, ``INFINITE`` if only the forward may.

        ``price`` and ``fixed`` as for :meth:`cut`.
        """
        if self.fixed[node] or node in fixed:
            return INFINITE
        if self.allowed[node]:
            return 0
        if price is None:
            return INFINITE
        return price(node)

    def work(self, node: fx.Node) -> int:
        """Return the cost of a call in bytes moved; of an item that of its call."""
        call = call_of(node)
        # several cuts ask for the price of one call
        cost = self.works.get(call)
        if cost is None:
            cost = self.works[call] = work(call)
        return cost

    def price_of(self, node: fx.Node) -> int:
        """Return the cost of computing a call again at the least price."""
        return max(1, self.work(node))

    def recomputed(self, saved: Collection[fx.Node]) -> list[fx.Node]:
        """Return the calls of the forward that the backward runs again if ``saved`` is saved."""
        order = self.parts.backward_order(self.parts.saved(saved))
        return [node for node in order if node in self.parts.forward_set]


def kept_in_forward(node: fx.Node, parts: Parts) -> bool:
    """Return whether the forward alone may compute ``node``."""
    if not again(node).pure or policy_of(node) is CheckpointPolicy.MUST_SAVE:
        return True
    return parts.leaves_region(node)


def _costs_nothing(node: fx.Node, allowed: Callable[[fx.Node], bool]) -> bool:
    """Return whether ``node`` may be computed again for nothing."""
    # an item costs nothing once its call has run
    if is_item(node):
        return True
    if again(node) is Again.HIGH and policy_of(node) in AGAIN:
        return True
    return allowed(node)
