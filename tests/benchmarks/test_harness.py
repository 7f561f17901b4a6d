"""The harness of `make bench`, with a fake clock: medians, turns and means are right, and no wrong
answer is timed."""

import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.cells import Cell, difference, run
from benchmarks.programs import programs, trainings
from benchmarks.scaling_chart import chart
from benchmarks.timing import compare, geometric_mean


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, durations: Callable[[int], float]) -> Callable[[], None]:
        count = 0

        def call() -> None:
            nonlocal count
            self.now += durations(count)
            self.log.append(name)
            count += 1

        return call


def test_the_ratio_is_one_of_medians_so_a_slow_round_does_not_count() -> None:
    clock = Clock()
    ours = clock.taking("ours", lambda i: 100.0 if i == 4 else 3.0)
    peer = clock.taking("peer", lambda i: 2.0)
    ratio = compare(ours, peer, seconds=1.0, least_rounds=7, clock=clock)
    assert (ratio.ours, ratio.peer, ratio.value, ratio.rounds) == (3.0, 2.0, 1.5, 7)


def test_the_sides_take_turns_and_turns_at_going_first() -> None:
    clock = Clock()
    compare(
        clock.taking("a", lambda i: 1.0),
        clock.taking("b", lambda i: 1.0),
        seconds=0.0,
        least_rounds=4,
        clock=clock,
    )
    # after a call each to choose the repeats, and a warm-up
    assert clock.log[4:] == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_short_calls_are_repeated_and_times_are_per_call() -> None:
    clock = Clock()
    ratio = compare(
        clock.taking("a", lambda i: 2e-5),
        clock.taking("b", lambda i: 1e-5),
        seconds=0.0,
        least_rounds=5,
        clock=clock,
    )
    assert clock.log.count("a") == 1 + 50 * 6
    assert ratio.ours == pytest.approx(2e-5) and ratio.value == pytest.approx(2.0)


def test_slow_and_fast_cancel_in_the_geometric_mean() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))


def cell(ours: Callable[[], object], peer: Callable[[], object]) -> Cell:
    return Cell("suite", "small", "program", "what", "torch", lambda: (ours, peer))


def test_a_wrong_answer_is_not_timed() -> None:
    outcome = run(cell(lambda: torch.ones(3), lambda: torch.ones(3) + 0.01), seconds=0.0)
    assert outcome.ratio is None and "disagree: result 0 is off by 0.01" in outcome.error


def test_nan_agrees_with_nothing() -> None:
    assert difference(torch.tensor([float("nan")]), torch.tensor([1.0]))


def test_what_a_side_cannot_do_is_named() -> None:
    def refuses() -> object:
        raise NotImplementedError("no such rule")

    assert (
        run(cell(refuses, lambda: 0), seconds=0.0).error
        == "runtime: NotImplementedError: no such rule"
    )
    assert (
        run(cell(lambda: 0, refuses), seconds=0.0).error
        == "torch: NotImplementedError: no such rule"
    )


def test_every_program_takes_a_batch_and_one_of_it() -> None:
    for p in programs(("small",)):
        whole, one = p.outputs(p.x, *p.parameters), p.outputs(p.x[0], *p.parameters)
        assert whole.shape[0] == p.x.shape[0] and one.shape == whole.shape[1:], p.name
        torch.testing.assert_close(whole[0], one, rtol=1e-3, atol=1e-5)
        assert (p.x, *p.parameters)[p.few].numel() <= 10, p.name


def test_every_training_step_has_a_finite_loss() -> None:
    assert all(t.loss(t.x, *t.parameters).isfinite() for t in trainings())


def test_a_line_of_the_chart_of_scaling_rises_as_its_figures_do() -> None:
    rows = [
        (10_000, 0.7, 41.0, 0.7, 41.0, 0.3, 41.0),
        (100_000, 5.9, 72.0, 2.6, 49.0, 0.3, 41.0),
        (1_000_000, 51.3, 73.0, 27.2, 92.0, 0.3, 41.0),
    ]
    lines = [
        line.get("points", "")
        for line in ElementTree.fromstring(chart(rows)).iter("{http://www.w3.org/2000/svg}polyline")
    ]
    heights = [[int(point.partition(",")[2]) for point in line.split()] for line in lines]
    assert len(heights) == 6
    # the coordinator's time; up is less
    assert heights[0] == sorted(heights[0], reverse=True) and len(set(heights[0])) == 3
    assert len(set(heights[2])) == 1  # a worker's does not grow
