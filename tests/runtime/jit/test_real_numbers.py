"""Numbers that a program computes of sizes, arguments and state: Python's own, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit

EXPRESSIONS: dict[str, Callable[[Any], object]] = {
    "(n * .1) * 10": lambda n: (n * 0.1) * 10,
    ".1 + n + .2": lambda n: 0.1 + n + 0.2,
    "(n + 1e16) - 1e16": lambda n: (n + 1e16) - 1e16,
    "n * 1e308 * 10": lambda n: n * 1e308 * 10,
    "(n - .1) - .2": lambda n: (n - 0.1) - 0.2,
    "0. - n": lambda n: 0.0 - n,
    "n + -0.": lambda n: n + -0.0,
    "n * 0.": lambda n: n * 0.0,
    "(n + 1) * .1": lambda n: (n + 1) * 0.1,
    "n * .1 * n": lambda n: n * 0.1 * n,
    "n * .1 + n * .2": lambda n: n * 0.1 + n * 0.2,
    ".1 * (1 - n / 100)": lambda n: 0.1 * (1 - n / 100),
    "512 ** -.5 * min(...)": lambda n: 512**-0.5 * min((n + 1) ** -0.5, n * 4000**-1.5),
    "n * .1 * 3 > 2.1": lambda n: n * 0.1 * 3 > 2.1,
    "(n * .1) * 10 == n": lambda n: (n * 0.1) * 10 == n,
    "int(n * .7)": lambda n: int(n * 0.7),
    "round(n * .7 * .7)": lambda n: round(n * 0.7 * 0.7),
    "math.floor(n * .1 * 10)": lambda n: math.floor(n * 0.1 * 10),
    "-(n * .1) * 3": lambda n: -(n * 0.1) * 3,
    "n // .1": lambda n: n // 0.1,
    "7 // (n + .1)": lambda n: 7 // (n + 0.1),
    "n % .3": lambda n: n % 0.3,
    "abs(n * .1 - 1) * .3": lambda n: abs(n * 0.1 - 1) * 0.3,
}
NUMBERS = (5, 6, 7, 8, 9, 3, 0, 11, 2, 30)


def _shown(value: object) -> tuple[type, str]:
    """Return what tells a number from another one, ``-0.0`` from ``0.0`` as well."""
    return type(value), repr(value)


def _of_state(expression: Callable[[Any], object], numbers: Sequence[int]) -> list[object]:
    t = SimpleNamespace(n=0)
    f = jit(lambda x: (x + 1, expression(t.n)))
    found: list[object] = []
    for t.n in numbers:
        found.append(f(torch.ones(2))[1])
    return found


def _of_arguments(expression: Callable[[Any], object], numbers: Sequence[int]) -> list[object]:
    f = jit(lambda x, n: (x + 1, expression(n)))
    return [f(torch.ones(2), n)[1] for n in numbers]


def _of_sizes(expression: Callable[[Any], object], numbers: Sequence[int]) -> list[object]:
    f = jit(lambda x: (x + 1, expression(x.shape[0])))
    return [f(torch.ones(n))[1] for n in numbers]


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("numbers_of", [_of_state, _of_arguments, _of_sizes])
def test_a_number_is_rounded_where_python_rounds_it(
    numbers_of: Callable[..., list[object]], name: str
) -> None:
    expression = EXPRESSIONS[name]
    found = numbers_of(expression, NUMBERS)
    assert [_shown(x) for x in found] == [_shown(expression(n)) for n in NUMBERS]


def test_a_schedule_of_a_counter_has_eager_bits() -> None:
    t = SimpleNamespace(epoch=0)

    def step(weight: Tensor, x: Tensor) -> Tensor:
        rate: float = 0.1 * (0.5 + 0.3 * t.epoch) * 0.7
        return weight - rate * x

    weight, x = torch.ones(3, dtype=torch.float64), torch.full((3,), 0.3, dtype=torch.float64)
    compiled = jit(step)
    for t.epoch in range(12):
        assert torch.equal(compiled(weight, x), step(weight, x))
    assert len(jit.explain(compiled).programs) <= 4
