"""A program that makes a tensor over the memory of an array, and lets it out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from runtime import jit

ARRAY = np.zeros(4, dtype=np.float32)
BYTES = bytearray(16)


class Holder:
    """Has a place for a tensor."""

    tensor: Any = None


HOLDER = Holder()


def _assigned(x: torch.Tensor) -> torch.Tensor:
    HOLDER.tensor = torch.from_numpy(ARRAY)[1:]
    return x + 1


LETTING_OUT: list[Callable[[torch.Tensor], Any]] = [
    lambda x: torch.from_numpy(ARRAY),
    lambda x: torch.from_numpy(ARRAY[1:]),
    lambda x: torch.from_numpy(ARRAY)[1:],
    lambda x: (torch.from_numpy(ARRAY)[1:], torch.from_numpy(ARRAY).view(2, 2)),
    lambda x: torch.as_tensor(ARRAY),
    lambda x: torch.asarray(ARRAY),
    lambda x: [torch.from_numpy(ARRAY), x],
    lambda x: torch.frombuffer(bytearray(16), dtype=torch.float32),
    _assigned,
]


@pytest.mark.parametrize("program", LETTING_OUT)
@pytest.mark.parametrize("flag", [False, True])
def test_a_result_over_an_array_is_refused_with_the_line(program: Any, flag: bool) -> None:
    x = torch.ones(4, requires_grad=flag)
    with pytest.raises(RuntimeError, match=r"memory of an array(.|\n)*test_results_over_arrays.py"):
        jit(program)(x)


@pytest.mark.parametrize("make", [torch.from_numpy, torch.as_tensor])
def test_a_result_over_an_array_that_is_given_is_refused(make: Any) -> None:
    with pytest.raises(RuntimeError, match="memory of an array"):
        jit(lambda a: make(a)[:2])(np.zeros(4, dtype=np.float32))


def test_a_result_over_a_buffer_of_the_state_has_its_memory() -> None:
    run = jit(lambda: torch.frombuffer(BYTES, dtype=torch.float32))
    for count in range(3):
        run().add_(1)
        assert np.frombuffer(BYTES, np.float32).tolist() == [count + 1.0] * 4


COMPUTING: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.from_numpy(ARRAY) * x,
    lambda x: x.clone().copy_(torch.from_numpy(ARRAY)),
    lambda x: torch.tensor(ARRAY) + torch.as_tensor(ARRAY).clone(),
    lambda x: torch.from_numpy(ARRAY).clone(),
    lambda x: torch.from_numpy(np.ones(4, dtype=np.float32)),
    lambda x: torch.as_tensor([1.0, 2.0, 3.0, 4.0]),
]


@pytest.mark.parametrize("program", COMPUTING)
def test_what_is_computed_of_an_array_is_a_new_tensor(program: Any) -> None:
    run = jit(program)
    for count in range(4):
        ARRAY[...] = count
        first, expected = run(torch.ones(4)), program(torch.ones(4))
        assert torch.equal(first, expected)
        # of each call
        first.add_(1)
        assert torch.equal(run(torch.ones(4)), expected)
        assert ARRAY.tolist() == [count] * 4
