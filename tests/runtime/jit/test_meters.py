"""Numbers of the state beside numbers that a program reads of tensors, as a log has them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import jit


class Meter:
    def __init__(self) -> None:
        self.last = self.sum = self.mean = 0.0
        self.count = 0

    def update(self, value: float, n: int) -> None:
        self.last = value
        self.sum += value * n
        self.count += n
        self.mean = self.sum / self.count


def test_a_meter_of_the_loss_costs_no_program_for_each_call() -> None:
    meter, expected = Meter(), Meter()

    def step(x: Any, meter: Meter) -> Any:
        loss = x.square().mean()
        meter.update(loss.item(), x.shape[0])
        return loss

    f = jit(lambda x: step(x, meter))
    for i in range(12):
        x = torch.full((3,), i / 3)
        assert torch.equal(f(x), step(x, expected))
        assert vars(meter) == vars(expected)
    assert len(f.captured) <= 3


ARITHMETIC: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.pow,
    operator.lt,
    operator.eq,
]


@pytest.mark.parametrize("turned", [False, True], ids=["count first", "number first"])
@pytest.mark.parametrize("compute", ARITHMETIC, ids=lambda f: f.__name__)
def test_a_count_and_a_number_of_a_tensor_compute_as_in_python(compute: Any, turned: bool) -> None:
    def step(x: Any, state: dict[str, Any]) -> Any:
        state["count"] += 1
        operands = [state["count"], x.sum().item()]
        if turned:
            operands.reverse()
        state["result"] = compute(*operands)
        return x * state["result"]

    state, expected = {"count": 0, "result": 0.0}, {"count": 0, "result": 0.0}
    f = jit(lambda x: step(x, state))
    for i in range(1, 7):
        x = torch.full((2,), i / 4)
        assert torch.equal(f(x), step(x, expected)) and state == expected
        assert type(state["result"]) is type(expected["result"])
