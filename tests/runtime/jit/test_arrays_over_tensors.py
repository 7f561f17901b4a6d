"""An array over the memory of a tensor: a program that changes one of them and comes to the other
one is refused, and one that only reads both is not."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from runtime import jit

Pair = tuple[Any, torch.Tensor]


def _of_tensor() -> Pair:
    t = torch.zeros(4)
    return t.numpy(), t


def _of_array() -> Pair:
    n = np.zeros(4, dtype=np.float32)
    return n, torch.from_numpy(n)


def _of_a_part() -> Pair:
    n = np.zeros(4, dtype=np.float32)
    return n[::-1], torch.from_numpy(n[2:])


def _of_bytes() -> Pair:
    b = bytearray(4)
    return b, torch.frombuffer(b, dtype=torch.uint8)


def _of_numbers() -> Pair:
    b = array.array("f", [0, 0, 0, 0])
    return b, torch.frombuffer(b, dtype=torch.float32)


def _of_a_view() -> Pair:
    b = bytearray(4)
    return memoryview(b), torch.frombuffer(b, dtype=torch.uint8)


PAIRS: list[Callable[[], Pair]] = [
    *(_of_tensor, _of_array, _of_a_part, _of_bytes, _of_numbers, _of_a_view),
]
SAME_MEMORY = r"has the same memory(.|\n)*It happened at .*test_arrays_over_tensors"


@pytest.mark.parametrize("make", PAIRS)
def test_a_write_to_the_tensor_is_refused_with_the_line(make: Callable[[], Pair]) -> None:
    memory, t = make()

    def program(x: Any) -> Any:
        t.add_(1)
        return x * float(memory[0])

    with pytest.raises(RuntimeError, match=SAME_MEMORY):
        jit(program)(torch.ones(2))
    assert not t.any()


@pytest.mark.parametrize("make", PAIRS)
def test_a_change_of_the_array_is_refused_with_the_line(make: Callable[[], Pair]) -> None:
    memory, t = make()

    def program(x: Any) -> Any:
        memory[0] += 1
        return x + t[0]

    with pytest.raises(RuntimeError, match=SAME_MEMORY):
        jit(program)(torch.ones(2))
    assert not t.any()


@pytest.mark.parametrize("make", PAIRS)
def test_arguments_are_refused_as_well(make: Callable[[], Pair]) -> None:
    def program(memory: Any, t: Any) -> Any:
        t.add_(1)
        return t * float(memory[0])

    with pytest.raises(RuntimeError, match=SAME_MEMORY):
        jit(program)(*make())


@pytest.mark.parametrize("make", PAIRS)
def test_a_program_that_reads_both_is_captured(make: Callable[[], Pair]) -> None:
    memory, t = make()
    run = jit(lambda x: x * float(memory[0]) + t[0])
    for value in (1, 2, 2):
        t[0] = value
        if make is not _of_a_part:
            assert run(torch.ones(2)).tolist() == [value * 2.0] * 2


def test_an_array_beside_the_tensor_does_not_matter() -> None:
    n = np.ones(4, dtype=np.float32)
    t = torch.zeros(4)

    def program(x: Any) -> Any:
        t.add_(1)
        return x * float(n[0])

    run = jit(program)
    for _ in range(3):
        assert run(torch.ones(1)).item() == 1.0
    assert t.tolist() == [3.0] * 4
