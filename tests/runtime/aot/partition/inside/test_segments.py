"""Where a forward is cut into segments: by the bytes that its calls make, and at the places around
a border that the fewest bytes cross. And which of several measured choices a budget takes.

Inside: ``runtime.aot.partition.budget``. A budget shows the choice that it ends with, but not the
segments and borders that were tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot.partition import budget
from runtime.aot.partition.budget import (
    Choice,
    Line,
    _between,
    _borders,
    _chain,
    _line,
    _other_cuts,
    within,
)
from runtime.aot.partition.memory import Memory
from runtime.aot.partition.network import Network
from runtime.aot.partition.recompute import recomputable
from tests.runtime.aot.partition.by_hand import Joint, region
from tests.runtime.aot.partition.inside.parts_by_hand import parts_of

aten: Any = torch.ops.aten
SIN, VIEW = aten.sin.default, aten.alias.default


class Chain:
    """A forward of calls, each of the result of the one before it, which has so many elements.
    ``extra``: further arguments of the last."""

    def __init__(
        self, *sizes: int, views: tuple[int, ...] = (), skips: tuple[int, ...] = ()
    ) -> None:
        self.joint, self.calls = Joint(), list[fx.Node]()
        last = self.joint.inputs[0]
        for i, size in enumerate(sizes):
            last = self.joint.call(VIEW if i in views else SIN, last, val=torch.zeros(size))
            self.calls.append(last)
        self.results = [
            self.joint.call(
                aten.cat.default, [last, *(self.calls[i] for i in skips)], val=torch.zeros(0)
            )
        ]

    def borders(self, number: int) -> list[int]:
        """The numbers of the calls whose values are at the borders of ``number`` segments."""
        parts = parts_of(
            self.joint,
            self.results,
            [self.joint.call(aten.mul.Tensor, self.joint.inputs[2], self.calls[-1])],
        )
        found = _borders(Network(parts, (), recomputable), Memory(parts), number)
        return sorted(map(self.calls.index, found))


@pytest.mark.parametrize(
    "sizes, number, borders",
    [
        pytest.param([4] * 8, 2, [3], id="two halves"),
        pytest.param([4] * 9, 3, [2, 5], id="three thirds"),
        pytest.param([9, 1, 1, 1, 2, 2, 2], 2, [1], id="halves of bytes and not of calls"),
        pytest.param(
            [4, 4, 4, 4, 4, 4, 3, 1, 4, 4, 4], 2, [7], id="fewer bytes a fifth beyond the middle"
        ),
        pytest.param(
            [4, 4, 4, 4, 4, 4, 4, 1, 3, 4, 4],
            2,
            [4],
            id="fewer bytes more than a fifth beyond the middle",
        ),
        pytest.param(
            [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 40],
            2,
            [9],
            id="of equal bytes the nearest to the middle",
        ),
        pytest.param(
            [4, 4, 3, 1, 4, 4, 4, 4, 4, 4, 4], 2, [3], id="fewer bytes a fifth before the middle"
        ),
        pytest.param([30, 1, 1, 1], 2, [], id="no call ends near the middle"),
        pytest.param([4] * 2, 2, [], id="fewer than two calls for each segment"),
        pytest.param([4] * 4, 3, [], id="less than two calls for each segment, three segments"),
        pytest.param([4] * 5, 3, [1, 2], id="two calls for each segment"),
    ],
)
def test_a_border_is_near_to_where_segments_have_as_many_bytes(
    sizes: list[int], number: int, borders: list[int]
) -> None:
    assert Chain(*sizes).borders(number) == borders


def test_a_view_takes_no_bytes_and_at_a_border_its_base_is_saved() -> None:
    assert Chain(4, 4, 4, 4, 4, 4, 4, 4, views=(2, 3)).borders(2) == [4]
    assert Chain(4, 6, 4, 9, 9, 9, 4, 4, views=(3, 4, 5)).borders(2) == [2]


def test_what_a_later_segment_uses_crosses_a_border_too() -> None:
    assert Chain(*[4] * 8, skips=(0,)).borders(2) == [0, 3]
    assert Chain(*[4] * 8, skips=(3, 6)).borders(2) == [3]


def test_a_value_that_is_used_late_makes_the_places_before_it_cheaper() -> None:
    assert Chain(4, 4, 4, 4, 4, 4, 4, 4, skips=(3,)).borders(2) == [3]
    assert Chain(4, 4, 3, 5, 4, 4, 4, 4, skips=(3,)).borders(2) == [2]


def test_a_view_that_is_used_late_keeps_its_base() -> None:
    assert Chain(4, 4, 3, 5, 5, 4, 4, 4, 4, views=(4,), skips=(4,)).borders(2) == [2]


def test_a_value_inside_of_a_checkpoint_region_is_at_no_border() -> None:
    chain = Chain(*[4] * 8)
    for n in chain.calls[2:5]:
        region(n, 1)
    assert chain.borders(2) == []
    chain = Chain(*[4] * 8)
    for n in chain.calls[2:4]:
        region(n, 1)
    assert chain.borders(2) == [3], "it leaves the region"


def test_a_result_of_the_forward_lies_in_memory_from_then_on() -> None:
    chain = Chain(*[4] * 8)
    with chain.joint.graph.inserting_after(chain.calls[2]):
        chain.results.append(chain.joint.call(SIN, chain.calls[2], val=torch.zeros(4)))
    assert chain.borders(2) == [2]


def choice(peak: int, saved: int, work: int) -> Choice:
    return Choice((), saved, peak, work)


START = choice(100, 50, 0)


@pytest.mark.parametrize(
    "found, chain",
    [
        pytest.param([], [], id="none"),
        pytest.param(
            [(100, 40, 1), (110, 40, 1), (90, 51, 1)],
            [],
            id="none with a smaller peak and no more bytes",
        ),
        pytest.param([(90, 50, 1)], [(90, 50, 1)], id="one with as many bytes"),
        pytest.param([(90, 40, 1), (80, 30, 2)], [(90, 40, 1), (80, 30, 2)], id="two"),
        pytest.param(
            [(80, 30, 2), (90, 40, 1)], [(90, 40, 1), (80, 30, 2)], id="two in another order"
        ),
        pytest.param(
            [(90, 40, 2), (80, 30, 2)], [(80, 30, 2)], id="one that computes as much again"
        ),
        pytest.param(
            [(90, 20, 1), (80, 30, 2)], [(80, 30, 2)], id="one that saves less than the next"
        ),
        pytest.param(
            [(90, 30, 1), (80, 30, 2)],
            [(90, 30, 1), (80, 30, 2)],
            id="one that saves as much as the next",
        ),
        pytest.param(
            [(80, 40, 1), (80, 30, 2)], [(80, 30, 2)], id="of equal peaks the one with fewer bytes"
        ),
        pytest.param(
            [(80, 30, 2), (80, 30, 1)], [(80, 30, 1)], id="of equal bytes the one with less work"
        ),
        pytest.param(
            [(95, 45, 4), (90, 40, 5), (85, 35, 6), (93, 45, 7), (80, 30, 8)],
            [(95, 45, 4), (90, 40, 5), (85, 35, 6), (80, 30, 8)],
            id="the longest of several chains",
        ),
    ],
)
def test_of_all_choices_the_longest_chain_to_the_least_peak_is_kept(
    found: list[Any], chain: list[Any]
) -> None:
    assert _chain(START, [choice(*c) for c in found]) == [START, *(choice(*c) for c in chain)]


@pytest.mark.parametrize("share, taken", [(1.0, 0), (0.99, 1), (0.5, 1), (0.49, 2), (0.0, 2)])
def test_a_budget_is_the_share_of_the_way_from_the_least_peak_to_the_greatest(
    share: float, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [fx.Graph().placeholder(name) for name in "abc"]
    chain = [Choice((n,), 0, peak, 0) for n, peak in zip(values, (100, 60, 20), strict=True)]
    asked: list[Any] = []

    def choices(*args: Any) -> list[Choice]:
        asked.append(args)
        return chain

    monkeypatch.setattr(budget, "choices", choices)
    network: Any = object()
    assert within(share, network, False) == (values[taken],) and asked == [(network, False)]


def test_the_line_of_a_cut_has_the_bytes_saved_and_the_price_of_what_is_computed_again() -> None:
    joint = Joint()
    x, y, t = joint.inputs
    product = joint.call(aten.mm.default, x, y)
    sine = joint.call(aten.sin.default, product)
    parts = parts_of(
        joint,
        [joint.call(aten.sum.default, sine, val=torch.zeros(()))],
        [joint.call(aten.mul.Tensor, t, sine)],
    )
    network = Network(parts, {y}, recomputable)
    assert _line(network, [sine]) == (48, 0) and _line(network, [product]) == (48, 0)
    assert (
        _line(network, [x, y]) == (48, network.price_of(product))
        and network.price_of(product) > 100
    )


class Cuts:
    """A network that has so many cuts, each of so many bytes and so much work. A call
    stands for its work."""

    def __init__(self, *lines: Line) -> None:
        self.lines, self.asked = lines, 0

    def price_of(self, n: int) -> int:
        return n

    def cut(self, price: Any) -> Line:
        self.asked += 1
        return min(self.lines, key=lambda line: line[0] + price(line[1]))


COSTLY, CHEAP = (100, 0), (0, 100)


@pytest.mark.parametrize(
    "left, found",
    [(0, []), (1, [(30, 30)]), (2, [(30, 30), (60, 10)]), (12, [(30, 30), (60, 10), (10, 70)])],
)
def test_between_two_cuts_those_are_found_that_are_the_cheapest_at_some_price(
    left: int, found: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_line", lambda network, cut: cut)
    network: Any = Cuts(COSTLY, (80, 5), (60, 10), (70, 60), (30, 30), (10, 70), CHEAP)
    cuts: Any = list(_between(network, COSTLY, CHEAP, [left]))
    assert cuts == found
    assert network.asked == min(left, 7)


@pytest.mark.parametrize(
    "costly, cheap",
    [((50, 0), (50, 10)), ((40, 0), (50, 10)), ((50, 10), (40, 10)), ((50, 11), (40, 10))],
)
def test_between_cuts_of_which_one_is_the_better_in_every_way_there_is_none(
    costly: Line, cheap: Line
) -> None:
    network: Any = Cuts(costly, cheap)
    assert list(_between(network, costly, cheap, [12])) == [] and not network.asked


@pytest.mark.parametrize("gained, found", [(1, False), (20, True)])
def test_a_cut_that_is_cheaper_by_less_than_a_millionth_is_none(
    gained: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_line", lambda network, cut: cut)
    costly, cheap, line = (10_000_000, 0), (0, 10_000_000), (5_000_000 - gained, 5_000_000)
    network: Any = Cuts(costly, cheap, line)
    cuts: Any = list(_between(network, costly, cheap, [1]))
    assert cuts == [line] * found


SEGMENTS = [2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32]


@pytest.mark.parametrize("anything", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_a_forward_is_cut_into_up_to_32_segments_as_long_as_there_are_borders(
    limit: int, anything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def borders(network: Any, memory: Any, number: int) -> set[int]:
        asked.append(number)
        return {number} if number <= limit else set()

    monkeypatch.setattr(budget, "_borders", borders)
    monkeypatch.setattr(budget, "_line", lambda network, cut: (0, 0))
    network: Any = SimpleNamespace(cut=lambda price=None, fixed=(): (price and price(None), fixed))
    found: Any = list(_other_cuts(network, Any, [], anything))  # type: ignore[arg-type]
    price = 0 if anything else None
    taken = [n for n in SEGMENTS if n <= limit]
    assert found == [*([(0, ())] if anything else []), *((price, {n}) for n in taken)]
    assert asked == SEGMENTS[: len(taken) + 1]
