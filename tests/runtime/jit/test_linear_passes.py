"""A capture, a call and a backward pass take as many steps for each further op or parameter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import runtime
import runtime.dropin
from runtime import jit

OPS, PARAMETERS = 100, 30


class Lines:
    """Counts the lines of Python that run. A loop inside of one line counts each round."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, call: Callable[[], object]) -> int:
        before, start = sys.gettrace(), self.count
        sys.settrace(self._entered)
        try:
            call()
        finally:
            sys.settrace(before)
        return self.count - start

    def _entered(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.count += event == "line"
        return self._line


def _curvature(counts: Callable[[int], list[int]], n: int) -> list[int]:
    """Return by how much the second ``n`` further ones take more lines than the first ``n``."""
    counts(3)  # what a process does once
    few, more, most = (counts(times * n) for times in (1, 2, 3))
    return [c - 2 * b + a for a, b, c in zip(few, more, most, strict=True)]


def _lines_of_a_chain(n: int) -> list[int]:
    x, weight = runtime.wrap(torch.randn(4), requires_grad=True), torch.randn(4)

    def chain(x: Any, weight: Any) -> Any:
        for _ in range(n):
            x = (x * weight).sin()
        return x.sum()

    step = jit(chain)

    def call_and_differentiate() -> None:
        step(x, weight).backward()

    return [Lines().of(call_and_differentiate) for _ in range(3)]


def _lines_of_an_optimizer(n: int) -> list[int]:
    with runtime.dropin.installed():
        parameters = [torch.nn.Parameter(torch.randn(4)) for _ in range(n)]
        optimizer = torch.optim.Adam(parameters)
        x = torch.randn(4)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = sum((p * x).sum() for p in parameters)
            loss.backward()
            optimizer.step()
            return loss

        jitted = jit(step)
        return [Lines().of(lambda: jitted(x)) for _ in range(3)]


def _lines_of_results(n: int) -> list[int]:
    tensors = [torch.randn(4) for _ in range(n)]
    step = jit(lambda tensors: [x.reshape(2, 2).reshape(4) + 0 for x in tensors])
    return [Lines().of(lambda: step(tensors)) for _ in range(3)]


@pytest.mark.parametrize(
    ("counts", "n"),
    [
        (_lines_of_a_chain, OPS),
        (_lines_of_an_optimizer, PARAMETERS),
        (_lines_of_results, OPS),
    ],
)
def test_what_comes_later_takes_no_more_steps(counts: Callable[[int], list[int]], n: int) -> None:
    # one step for each pair of ops would be n * n
    assert max(map(abs, _curvature(counts, n))) < n


def test_the_measure_sees_one_step_for_each_pair() -> None:
    def pairs(n: int) -> list[int]:
        return [Lines().of(lambda: [0 for _ in range(n) for _ in range(n)])]

    assert _curvature(pairs, 20)[0] >= 2 * 20 * 20
