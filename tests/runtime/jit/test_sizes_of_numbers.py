"""A number that is no size decides the size of a range: it is a constant of the program, or
refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.jit import explain

RANGES: dict[str, Callable[[Any], Tensor]] = {
    "end": lambda n: torch.arange(n),
    "start": lambda n: torch.arange(-n, 3.0),
    "step": lambda n: torch.arange(0.0, 5.0, n),
    "dtype": lambda n: torch.arange(n, dtype=torch.float64),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_of_the_state_has_a_range_of_its_size(name: str) -> None:
    t = SimpleNamespace(n=0.5)

    def step(x: Tensor) -> Any:
        t.n += 0.75
        found = RANGES[name](t.n)
        return x * found.numel(), found.mean(), len(found)

    f = jit(step)
    for _ in range(5):
        before = t.n
        expected = step(torch.ones(1))
        t.n = before
        assert repr(f(torch.ones(1))) == repr(expected)


@pytest.mark.parametrize("name", RANGES)
def test_a_number_of_a_tensor_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"a size, asks for the value .*test_sizes_of_numbers"):
        jit(lambda x: RANGES[name](x.sum().item()).mean())(torch.ones(3))


@pytest.mark.parametrize("count", [lambda x: 1, lambda x: x.size(0)], ids=["steps", "samples"])
def test_a_counter_does_not_keep_a_program_from_being_one_for_any_sizes(count: Any) -> None:
    state = SimpleNamespace(seen=0)

    def step(x: Any) -> Any:
        state.seen += count(x)
        return x.sin().sum()

    jitted, expected = jit(step), 0
    for length in range(2, 14):
        x = torch.ones(length)
        assert jitted(x).item() == pytest.approx(x.sin().sum().item())
        expected += count(x)
    assert state.seen == expected
    assert len(explain(jitted).programs) <= 3
