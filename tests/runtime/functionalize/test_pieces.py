"""Pieces that ATen's kernels take without a history: a write to one is a write to the tensor, also
when nobody reads it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.aot import aot_function, nop
from runtime.func import functionalize

RUNS: dict[str, Callable[[Any], Any]] = {
    "jit": jit,
    "functionalize": functionalize,
    "aot_function": lambda f: aot_function(f, nop),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_write_to_a_piece_of_an_argument_is_carried_out(run: str) -> None:
    def program(x: Tensor) -> Tensor:
        first, second = torch.unsafe_split(x, 2)
        first.add_(5)
        return second * 1

    x = torch.arange(4.0)
    captured = RUNS[run](program)
    for first in (5.0, 10.0):
        assert captured(x).tolist() == [2.0, 3.0] and x.tolist() == [first, first + 1, 2.0, 3.0]


@pytest.mark.parametrize("run", RUNS)
def test_a_write_to_a_piece_of_what_the_program_closes_over_is_carried_out(run: str) -> None:
    closed = torch.arange(4.0)

    def program(x: Tensor) -> Tensor:
        first, _ = torch.unsafe_split(closed, 2)
        first.add_(x)
        return x * 1

    captured = RUNS[run](program)
    for first in (1.0, 2.0):
        captured(torch.ones(2))
        assert closed.tolist() == [first, first + 1, 2.0, 3.0]
