"""Boxes of a drawn graph stand in layers by depth, near to their neighbours, apart from one
another and with few crossings.

Inside: ``runtime.aot.partition.layout``. A drawing has the boxes of one program; random graphs
show that none overlap and few lines cross."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from runtime.aot.partition.layout import GAP, Edge, _place_without_overlap, layout

BEND = 8.0  # the room that an edge has where it passes a layer


def drawn(seed: int) -> tuple[list[str], list[Edge], dict[str, float]]:
    """A random acyclic graph of 20 boxes."""
    source = random.Random(seed)
    nodes = [f"n{i}" for i in range(20)]
    edges = [
        (nodes[source.randrange(max(0, i - 6), i)], nodes[i])
        for i in range(3, 20)
        for _ in range(source.randint(1, 2))
    ]
    return nodes, edges, {n: source.uniform(30, 120) for n in nodes}


def rows(
    nodes: list[str], edges: list[Edge], widths: dict[str, float]
) -> tuple[list[list[tuple[float, float]]], float]:
    """The (middle, width) of all that stands in each layer, boxes and passing edges, from left to
    right; the width of the whole."""
    found = layout(nodes, edges, widths)
    each: list[list[tuple[float, float]]] = [[] for _ in range(found.depth)]
    for n in nodes:
        each[found.layer[n]].append((found.x[n], widths[n]))
    for bends in found.bends.values():
        for layer, x in bends:
            each[layer].append((x, BEND))
    return [sorted(row) for row in each], found.width


def test_a_graph_without_boxes_has_no_size() -> None:
    found = layout([], [], {})
    assert (found.width, found.depth, found.x, found.layer, found.bends) == (0.0, 0, {}, {}, {})


def test_a_chain_is_one_column() -> None:
    found = layout(["a", "b", "c"], [("a", "b"), ("b", "c")], {"a": 40.0, "b": 60.0, "c": 20.0})
    assert found.layer == {"a": 0, "b": 1, "c": 2}
    assert found.x == pytest.approx({"a": 30.0, "b": 30.0, "c": 30.0})
    assert (found.width, found.depth) == (60.0, 3)
    assert found.bends == {("a", "b"): [], ("b", "c"): []}


def test_boxes_without_edges_stand_side_by_side_from_the_left_border() -> None:
    found = layout(["a", "b", "c"], [], {"a": 40.0, "b": 20.0, "c": 30.0})
    assert found.x == pytest.approx({"a": 20.0, "b": 40 + GAP + 10, "c": 60 + 2 * GAP + 15})
    assert found.width == pytest.approx(90 + 2 * GAP) and found.depth == 1


def test_a_box_stands_in_the_middle_above_its_users_and_below_its_inputs() -> None:
    widths = dict.fromkeys("abcd", 30.0)
    found = layout(list("abcd"), [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], widths)
    assert found.x == pytest.approx({"a": 38.0, "b": 15.0, "c": 61.0, "d": 38.0})
    assert found.width == pytest.approx(76.0)


def test_an_edge_that_is_given_twice_is_one() -> None:
    widths = dict.fromkeys("abcd", 30.0)
    edges = [("a", "c"), ("b", "c"), ("a", "d")]
    once, twice = (
        layout(list("abcd"), edges, widths),
        layout(list("abcd"), [*edges, ("a", "c"), ("a", "c")], widths),
    )
    assert (once.x, once.bends) == (twice.x, twice.bends)


def test_a_long_edge_passes_each_layer_between_its_ends_beside_the_boxes() -> None:
    found = layout(
        list("abcd"),
        [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("b", "d")],
        dict.fromkeys("abcd", 40.0),
    )
    assert [layer for layer, _ in found.bends["a", "d"]] == [1, 2]
    assert [layer for layer, _ in found.bends["b", "d"]] == [2]
    (_, first), (_, second) = found.bends["a", "d"]
    assert abs(first - found.x["b"]) >= (40 + BEND) / 2 + GAP - 1e-9
    assert abs(second - found.x["c"]) >= (40 + BEND) / 2 + GAP - 1e-9
    assert abs(second - found.bends["b", "d"][0][1]) >= BEND + GAP - 1e-9


def test_a_late_box_stands_right_before_its_first_user() -> None:
    nodes = ["early", "late", "idle", "a", "b", "c", "d"]
    edges = [*itertools.pairwise("abcd"), ("late", "c"), ("late", "d"), ("early", "c")]
    found = layout(nodes, edges, dict.fromkeys(nodes, 30.0), late={"late", "idle"})
    assert found.layer == {"early": 0, "late": 1, "idle": 0, "a": 0, "b": 1, "c": 2, "d": 3}
    assert found.bends["late", "d"] and not found.bends["late", "c"]


def test_a_late_box_may_stand_before_another_late_one() -> None:
    found = layout(
        ["v", "w", "a", "b", "c"],
        [("v", "w"), ("w", "c"), ("a", "b"), ("b", "c")],
        dict.fromkeys("vwabc", 30.0),
        {"v", "w"},
    )
    assert (found.layer["v"], found.layer["w"]) == (0, 1)
    longer = [("v", "w"), ("w", "d"), *itertools.pairwise("abcd")]
    found = layout(list("vwabcd"), longer, dict.fromkeys("vwabcd", 30.0), "vw")
    assert (found.layer["v"], found.layer["w"]) == (1, 2)


@pytest.mark.parametrize("seed", range(10))
def test_a_layer_is_the_longest_way_from_an_input(seed: int) -> None:
    nodes, edges, widths = drawn(seed)
    found = layout(nodes, edges, widths)
    for n in nodes:
        before = [found.layer[a] for a, b in edges if b == n]
        assert found.layer[n] == (max(before) + 1 if before else 0)
    assert found.depth == max(found.layer.values()) + 1


@pytest.mark.parametrize("seed", range(10))
def test_what_stands_in_a_layer_is_apart_and_the_whole_is_as_wide_as_it_says(seed: int) -> None:
    each, width = rows(*drawn(seed))
    for row in each:
        for (x, own), (y, other) in itertools.pairwise(row):
            assert y - x >= (own + other) / 2 + GAP - 1e-6
    assert min(x - w / 2 for row in each for x, w in row) == pytest.approx(0)
    assert max(x + w / 2 for row in each for x, w in row) == pytest.approx(width)


def crossings(
    nodes: list[str], edges: list[Edge], place: dict[str, float], layer: dict[str, int]
) -> int:
    short = [(a, b) for a, b in dict.fromkeys(edges) if layer[b] == layer[a] + 1]
    pairs = itertools.combinations(short, 2)
    return sum(
        layer[a] == layer[c] and (place[a] - place[c]) * (place[b] - place[d]) < 0
        for (a, b), (c, d) in pairs
    )


def test_two_edges_that_cross_are_uncrossed() -> None:
    edges = [("a", "d"), ("b", "c")]
    found = layout(list("abcd"), edges, dict.fromkeys("abcd", 30.0))
    assert crossings(list("abcd"), edges, found.x, found.layer) == 0
    assert found.x["a"] == pytest.approx(found.x["d"]) and found.x["b"] == pytest.approx(
        found.x["c"]
    )


def test_few_edges_cross() -> None:
    """In the order of the graph 5 times as many do."""
    before = after = 0
    for seed in range(20):
        nodes, edges, widths = drawn(seed)
        found = layout(nodes, edges, widths)
        before += crossings(nodes, edges, {n: float(i) for i, n in enumerate(nodes)}, found.layer)
        after += crossings(nodes, edges, found.x, found.layer)
    assert 5 * after <= before


@pytest.mark.parametrize("seed", range(10))
def test_boxes_of_a_row_are_as_near_to_where_they_belong_as_their_widths_allow(seed: int) -> None:
    """The places are those of least squares under the gaps, which scipy finds by
    isotonic regression."""
    source = random.Random(seed)
    row = [f"n{i}" for i in range(12)]
    wish: dict[Any, float] = {n: source.uniform(0, 400) for n in row}
    widths = {n: source.uniform(10, 60) for n in row}
    room = np.cumsum(
        [0.0, *((widths[a] + widths[b]) / 2 + GAP for a, b in itertools.pairwise(row))]
    )
    expected = isotonic_regression([wish[n] - r for n, r in zip(row, room, strict=True)]).x + room
    found = _place_without_overlap(row, wish, widths)
    assert [found[n] for n in row] == pytest.approx(list(expected))
