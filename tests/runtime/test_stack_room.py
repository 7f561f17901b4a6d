"""A captured program has room on Python's stack: its calls ask the system for no memory."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.aot import make_fx

CALLS = 500


def leaf() -> None:
    pass


def faults_of_calls(depth: int) -> int:
    """How many pages the system gives the process while a function is called some hundred times, so
    many frames deep."""
    if depth:
        return faults_of_calls(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_at_some_depth_each_call_takes_memory_from_the_system() -> None:
    assert max(map(faults_of_calls, range(200))) >= CALLS


@pytest.mark.parametrize("options", [{}, {"tracing_mode": "symbolic"}, {"pre_dispatch": True}])
def test_in_a_trace_no_call_does_at_any_depth(options: dict[str, Any]) -> None:
    faults: list[int] = []

    def program(x: Tensor) -> Tensor:
        faults.extend(map(faults_of_calls, range(600)))
        return x * 2

    make_fx(program, **options)(torch.ones(2))
    assert len(faults) == 600
    assert max(faults) < CALLS / 10
