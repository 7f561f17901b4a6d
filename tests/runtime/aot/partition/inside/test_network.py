"""Networks of graphs by hand, and cuts of random networks.

Inside: ``runtime.aot.partition.network``. A cut of a program shows neither the capacities of its
network nor that it is as cheap as the one that networkx finds."""

from __future__ import annotations

import operator
import random
from typing import Any

import networkx as nx
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from runtime.aot.partition.network import INFINITE, Network, min_cut
from runtime.aot.partition.recompute import recomputable
from tests.runtime.aot.partition.by_hand import Joint, X, region
from tests.runtime.aot.partition.inside.parts_by_hand import parts_of

aten: Any = torch.ops.aten


def test_what_it_costs_to_save_a_value(joint: Joint) -> None:
    x, y, t = joint.inputs
    view = joint.call(aten.t.default, x)
    sin = joint.call(aten.sin.default, x)
    inner_view = joint.call(aten.t.default, sin)
    behind = joint.call(aten.cos.default, y)
    several = joint.call(aten.sort.default, x, val=(X, X.long()))
    item = joint.call(operator.getitem, several, 1, val=X.long())
    size = joint.call(operator.add, 1, 2, val=3)
    empty = joint.call(aten.clone.default, x, val=X[:0])
    inner = region(joint.call(aten.exp.default, x), 1)
    forward = joint.call(aten.cat.default, [view, sin, inner_view, item, empty, inner], size)
    region(forward, 1)
    grad = joint.call(aten.addcmul.default, t, behind, sin)
    parts = parts_of(joint, [forward], [grad])
    network = Network(parts, {y}, recomputable)
    bytes_of = {n.name: network._price_of_saving(n) for n in parts.candidates}
    assert bytes_of == {
        "primals_1": 48,
        "primals_2": 0,
        "t": 48 + 1,
        "sin": 48,
        "t_1": 48,
        "cos": 48 + 1,
        "sort": INFINITE,
        "getitem": 96,
        "add": 8,
        "clone": 1,
        "exp": INFINITE,
        "cat": 48,
    }
    assert network.inside(inner) and not network.inside(sin)


def test_a_price_is_that_of_the_call_and_at_least_one(joint: Joint) -> None:
    x, _, t = joint.inputs
    several = joint.call(aten.sort.default, x, val=(X, X.long()))
    item = joint.call(operator.getitem, several, 1, val=X.long())
    grad = joint.call(aten.gather.default, t, 0, item)
    network = Network(parts_of(joint, [item], [grad]), (), recomputable)
    assert network.work(item) == network.work(several) == network.price_of(item) > 48 + 48 + 96
    assert (network.work(x), network.price_of(x)) == (0, 1)


def test_sizes_of_any_program_are_weighed_as_they_were() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    joint = Joint()
    x, _, t = joint.inputs
    x.meta["val"] = mode.from_tensor(torch.ones(5, 7))
    parts = parts_of(
        joint,
        [joint.call(aten.sin.default, x, val=x.meta["val"])],
        [joint.call(aten.mul.Tensor, t, x)],
    )
    assert Network(parts, (), recomputable)._price_of_saving(x) == 5 * 7 * 4


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
