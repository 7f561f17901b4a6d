"""The cut found through scipy is as cheap as networkx's, and separates.

Inside: ``min_cut`` of ``runtime.aot.partition.network``, which is compared with networkx on
random networks. A program's network has one shape."""

import random

import networkx as nx
import pytest

from runtime.aot.partition.network import INFINITE, min_cut


def drawn(seed: int, largest: int) -> tuple[int, list[tuple[int, int, int]]]:
    source = random.Random(seed)
    n = source.randint(4, 40)
    edges = []
    for _ in range(source.randint(n, 4 * n)):
        # acyclic, as joint graphs are; 0 is the source, n - 1 the sink
        a, b = sorted(source.sample(range(n), 2))
        free = source.random() < 0.2 and not (a == 0 and b == n - 1)
        edges.append((a, b, INFINITE if free and b != n - 1 else source.randint(0, largest)))
    return n, edges


@pytest.mark.parametrize("seed", range(40))
def test_its_value_is_networkx_s(seed: int) -> None:
    n, edges = drawn(seed, 1000)
    oracle = nx.DiGraph()
    oracle.add_nodes_from(range(n))
    for a, b, c in edges:
        if oracle.has_edge(a, b):
            old = oracle[a][b].get("capacity")
            if old is None or c == INFINITE:
                oracle[a][b].pop("capacity", None)
            else:
                oracle[a][b]["capacity"] = old + c
        elif c == INFINITE:
            oracle.add_edge(a, b)
        else:
            oracle.add_edge(a, b, capacity=c)
    expected, _ = nx.minimum_cut(oracle, 0, n - 1)
    value, side = min_cut(n, edges, 0, n - 1)
    assert value == expected
    assert side[n - 1]
    assert not side[0]


@pytest.mark.parametrize("seed", range(10))
def test_capacities_beyond_32_bits_are_scaled_without_harm(seed: int) -> None:
    n, edges = drawn(seed, 100)
    small, _ = min_cut(n, edges, 0, n - 1)
    large, _ = min_cut(n, [(a, b, c if c == INFINITE else c << 40) for a, b, c in edges], 0, n - 1)
    assert large == small << 40


def test_of_equal_cuts_it_takes_the_one_nearest_to_the_sink() -> None:
    _, side = min_cut(4, [(0, 1, 5), (1, 2, 5), (2, 3, 5)], 0, 3)
    assert list(side) == [False, False, False, True]


def test_an_uncuttable_path_is_an_error() -> None:
    with pytest.raises(ValueError, match="infinite capacity"):
        min_cut(3, [(0, 1, INFINITE), (1, 2, INFINITE)], 0, 2)


def test_the_value_of_a_cut_is_that_of_its_edges_and_parallel_edges_add_up() -> None:
    assert min_cut(3, [(0, 1, 5), (0, 1, 2), (1, 2, 9)], 0, 2)[0] == 7
    assert min_cut(3, [(0, 1, INFINITE), (0, 1, INFINITE), (1, 2, 9)], 0, 2)[0] == 9
    assert (
        min_cut(3, [(0, 1, INFINITE), (1, 2, 9)], 0, 2)[0]
        == min_cut(3, [(0, 1, 9), (1, 2, INFINITE)], 0, 2)[0]
        == 9
    )
    assert min_cut(4, [(0, 1, 5), (2, 3, 1), (0, 3, 0)], 0, 3)[0] == 0
    assert min_cut(2, [(0, 1, 0)], 0, 1)[0] == 0
    large = 2**31
    value, side = min_cut(3, [(0, 1, large), (1, 2, large - 1), (0, 2, 3)], 0, 2)
    assert value == large + 2 and list(side) == [False, False, True]


def test_an_edge_of_no_bytes_is_cut_for_nothing() -> None:
    value, side = min_cut(3, [(0, 1, 0), (1, 2, 5)], 0, 2)
    assert value == 0 and list(side) == [False, True, True]
