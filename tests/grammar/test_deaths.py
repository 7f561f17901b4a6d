"""Programs that kill their process: told from others, and made small."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gen.grammar import LEVELS, Call, Input, Level, Program, Statement, death_of, small_death

FIRST = Call("first", (Input("a", "fresh", "plain", "numbers(2, 3, seed=1)"),))
AGAIN = Call("again", (Input("a", "fresh", "plain", "numbers(2, 3, seed=2)"),))
PROGRAM = Program(
    (
        Statement("sine", "p = a.sin()"),
        Statement("rest", "q = p[1:]"),
        Statement("total", "r = q.sum()"),
        Statement("clone", "s = p.clone()"),
    ),
    (Statement("value", "r"), Statement("value", "s")),
    (FIRST, AGAIN),
)


def killing(signal_number: int) -> Level:
    """Return a level that ends the process where a result has no dimensions."""

    def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: torch.Tensor) -> Any:
            results = f(*args)
            if any(x.dim() == 0 for x in results):
                os.kill(os.getpid(), signal_number)
            return results

        return call

    return Level("planted", compiled, LEVELS["eager"]().gradients)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT"])
def test_a_program_that_kills_its_process_is_made_small(name: str) -> None:
    level = killing(signal.Signals[name])
    finding = small_death(PROGRAM, level, number=5, until=time.monotonic() + 60)
    assert finding is not None
    assert finding.difference.message == f"killed by {name}"
    assert finding.difference.severity.word == "crash"
    assert len(finding.program.statements) <= 2
    assert len(finding.program.calls) == 1
    assert len(finding.program.results) == 1


def test_a_process_that_does_not_end_is_told() -> None:
    def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: torch.Tensor) -> Any:
            time.sleep(60)

        return call

    level = Level("planted", compiled, LEVELS["eager"]().gradients)
    assert death_of(PROGRAM, level, patience=0.5) == "it does not end"


def test_a_program_that_ends_or_raises_kills_nothing() -> None:
    def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
        raise RuntimeError("refused")

    refusing = Level("planted", compiled, LEVELS["eager"]().gradients)
    for level in (LEVELS["eager"](), refusing):
        assert small_death(PROGRAM, level, number=5, until=time.monotonic() + 60) is None
