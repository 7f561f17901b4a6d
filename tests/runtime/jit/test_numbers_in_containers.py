"""A number that is an argument of a program is a number for NumPy, as a key and in a slice."""

from __future__ import annotations

import collections
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runtime import jit

ARRAYS: dict[str, Callable[[Any], Any]] = {
    "append": lambda o: np.append(o.array, o.steps),
    "array": lambda o: np.array([o.steps, 1.5]),
    "array of a float": lambda o: np.array([o.rate]),
    "product": lambda o: o.array * o.steps,
    "product with a float": lambda o: o.array * o.rate,
    "power": lambda o: o.array**o.steps,
    "full": lambda o: np.full(3, o.steps),
    "clip": lambda o: np.clip(o.array, 0, o.steps),
    "maximum": lambda o: np.maximum(o.steps, 2),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_takes_a_number_of_the_state_for_its_value(name: str) -> None:
    compute = ARRAYS[name]
    states = [SimpleNamespace(steps=0, rate=0.0, array=np.arange(1.0, 4.0)) for _ in range(2)]

    def step(state: Any, x: Any) -> Any:
        state.steps += 1
        state.rate += 0.5
        state.found = compute(state)
        return x * 2

    eager, own = states
    jitted = jit(lambda x: step(own, x))
    for _ in range(4):
        jitted(torch.ones(1))
        step(eager, torch.ones(1))
        assert type(own.found) is type(eager.found) and own.found.dtype == eager.found.dtype
        assert np.array_equal(own.found, eager.found)


def test_numpy_is_refused_a_number_that_the_program_reads_from_a_tensor() -> None:
    @jit
    def f(x: Any) -> Any:
        return x * float(np.array([x.sum().item()])[0])

    with pytest.raises(RuntimeError, match=r"test_numbers_in_containers\.py:\d+"):
        for i in range(3):
            f(torch.ones(1) * i)


class Cache(collections.OrderedDict[Any, Any]):
    pass


@pytest.mark.parametrize("kind", [collections.OrderedDict, Cache, dict])
def test_a_number_of_the_state_may_be_a_key(kind: Any) -> None:
    state = SimpleNamespace(items=kind(), steps=1)

    def step(x: Any) -> Any:
        state.items[state.steps] = 1
        return x * state.steps

    jitted = jit(step, limit=20)
    for i in range(6):
        state.steps = i % 3 + 1
        assert jitted(torch.ones(1)).item() == state.steps
    assert list(state.items) == [1, 2, 3]


@pytest.mark.parametrize("kind", [collections.OrderedDict, dict])
def test_a_cache_by_length_has_numbers_for_keys(kind: Any) -> None:
    masks = kind()

    @jit
    def f(x: Any) -> Any:
        length = x.shape[0]
        if length not in masks:
            masks[length] = torch.arange(length) * 1.0
        return (x * masks[length]).sum()

    assert [f(torch.ones(length)).item() for length in (2, 3, 4, 2)] == [1.0, 3.0, 6.0, 1.0]
    assert list(masks) == [2, 3, 4] and all(type(key) is int for key in masks)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, 1), lambda x: [x]])
def test_a_slice_that_is_assigned_has_the_numbers_of_each_call(wrap: Any) -> None:
    state = SimpleNamespace(start=0, window=None)

    @jit
    def f(x: Any) -> Any:
        state.window = wrap(slice(state.start, state.start + 4))
        return x * 1

    for start in range(1, 6):
        state.start = start
        f(torch.ones(1))
        assert state.window == wrap(slice(start, start + 4))
