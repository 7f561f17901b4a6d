"""A function behind a cache whose computation changes state, which happens at a miss alone."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from runtime import jit


@pytest.mark.parametrize("is_tensor", [False, True])
def test_a_miss_changes_state_once(is_tensor: bool) -> None:
    log: list[float] = []

    @functools.cache
    def power(exponent: int) -> Any:
        log.append(exponent)
        value = 2.0**exponent
        return torch.tensor(value) if is_tensor else value

    compiled = jit(lambda x, exponent: x * power(exponent))
    found = [compiled(torch.ones(1), n).item() for n in (1, 1, 2, 1, 2, 3, 3)]
    assert found == [2, 2, 4, 2, 4, 8, 8]
    assert log == [1, 2, 3]


def test_a_hit_keeps_the_result_of_an_older_state() -> None:
    class Table:
        factor, misses = 2.0, 0

        @functools.cache  # noqa: B019 the object lives as long as the test
        def scaled(self, n: int) -> float:
            self.misses += 1
            return self.factor * n

    table = Table()
    compiled = jit(lambda x: x * table.scaled(3))
    for factor in (2.0, 5.0, 7.0):
        table.factor = factor
        assert (compiled(torch.ones(1)).item(), table.misses) == (6.0, 1)


def test_a_program_that_counts_beside_a_cache_is_captured_from_its_second_call_on() -> None:
    class Trainer:
        steps = 0

    @functools.cache
    def mask(n: int) -> torch.Tensor:
        return torch.ones(n)

    trainer = Trainer()

    @jit
    def step(x: Any) -> Any:
        trainer.steps += 1
        return x * mask(3) * trainer.steps

    assert [step(torch.ones(3)).sum().item() for _ in range(6)] == [3, 6, 9, 12, 15, 18]
    assert trainer.steps == 6
    assert 1 <= len(jit.explain(step).programs) <= 2
