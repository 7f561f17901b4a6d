"""The order of walks over graphs, and that they visit each node once.

Inside: ``runtime.seam.graph_walks``. A program shows the order of a walk only where a graph has
several paths to one node, and never how often a node was visited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import pytest
import torch
from torch import fx

from runtime.seam.graph_walks import (
    inputs_of,
    last_users,
    nodes_among,
    nodes_before,
    results_of,
    users_of,
    walk,
    walk_postorder,
)

# two paths lead from the loss to x, of different lengths
EDGES = {"loss": ["mul"], "mul": ["w", "x"], "w": ["x", "y"], "x": ["z"], "y": [], "z": []}


def after(name: str) -> Iterable[str]:
    return EDGES[name]


def test_a_walk_goes_depth_first_and_to_the_last_edge_first() -> None:
    assert list(walk(["loss"], after)) == ["loss", "mul", "x", "z", "w", "y"]


def test_a_walk_breadth_first_comes_to_the_nearest_nodes_first() -> None:
    order = list(walk(["loss"], after, breadth_first=True))
    assert order == ["loss", "mul", "w", "x", "y", "z"]


def test_a_walk_asks_about_no_node_that_nobody_needs() -> None:
    assert list(islice(walk(["y", "unknown"], after), 1)) == ["unknown"]


def test_in_postorder_a_node_comes_after_all_that_it_leads_to() -> None:
    assert list(walk_postorder(["loss"], after)) == ["z", "x", "y", "w", "mul", "loss"]


def test_starts_of_a_walk_in_postorder_come_in_their_order() -> None:
    assert list(walk_postorder(["z", "w", "x"], after)) == ["z", "y", "x", "w"]


@pytest.mark.parametrize("walking", [walk, walk_postorder])
def test_no_walk_is_recursive(
    walking: Callable[[list[int], Callable[[int], Iterable[int]]], Iterable[int]],
) -> None:
    n = 100_000
    order = walking([n], lambda i: range(max(i - 1, 0), i))
    assert sorted(order) == list(range(n + 1))


def test_the_nodes_before_an_end_are_those_with_a_path_to_it() -> None:
    assert nodes_before(["w"], EDGES, after) == {"loss", "mul"}
    assert nodes_before(["w", "x"], EDGES, after) == {"loss", "mul", "w"}
    assert nodes_before(["unknown"], EDGES, after) == set()


def test_walks_of_an_fx_graph_follow_inputs_or_users() -> None:
    graph = fx.Graph()
    x, unused = graph.placeholder("x"), graph.placeholder("unused")
    y = graph.call_function(torch.sin, (x,))
    z = graph.call_function(torch.mul, (x, y))
    output = graph.output(z)
    assert set(walk([output], inputs_of)) == {output, z, y, x}
    assert set(walk([y], users_of)) == {y, z, output}
    assert last_users(graph) == {x: z, y: z, z: output}
    assert unused not in last_users(graph)
    assert nodes_among([x, None, 2.0, y]) == [x, y]
    assert results_of(graph) is z
