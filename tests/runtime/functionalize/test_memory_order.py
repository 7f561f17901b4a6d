"""Draws without writes fill a target in the order in which the in-place draws of torch do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot import aot_function, nop
from runtime.func import functionalize

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.t(),
    "every second column, transposed": lambda x: x[:, ::2].t(),
    "permuted": lambda x: x.reshape(3, 2, 4).permute(2, 0, 1),
    "permuted, with a dimension of size 1": lambda x: x.reshape(3, 2, 4).permute(2, 0, 1)[
        1:, :, :1
    ],
    "channels last": lambda x: x.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "as_strided": lambda x: x.as_strided((2, 3, 2), (12, 1, 5)),
}
DRAWS: dict[str, Callable[[Any], Any]] = {
    "bernoulli_()": lambda t: t.bernoulli_(),
    "bernoulli_(0.3)": lambda t: t.bernoulli_(0.3),
    "bernoulli_(p)": lambda t: t.bernoulli_(torch.full(t.shape, 0.4)),
    "bernoulli(out=)": lambda t: torch.bernoulli(torch.full(t.shape, 0.5), out=t),
    "dropout(inplace=True)": lambda t: torch.nn.functional.dropout(t, 0.5, inplace=True),
    "normal_": lambda t: t.normal_(),
    "uniform_": lambda t: t.uniform_(),
    "random_": lambda t: t.random_(100),
    "exponential_": lambda t: t.exponential_(),
    "geometric_": lambda t: t.geometric_(0.3),
    "cauchy_": lambda t: t.cauchy_(),
    "log_normal_": lambda t: t.log_normal_(),
}
ENGINES: dict[str, Callable[[Any], Any]] = {
    "functionalize": functionalize,
    "aot_function": lambda f: aot_function(f, nop),
    "aot_function(dynamic=True)": lambda f: aot_function(f, nop, dynamic=True),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_draw_into_a_view_gives_the_elements_that_it_gives_in_torch(
    layout: str, draw: str, engine: str
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        t: torch.Tensor = LAYOUTS[layout](x)
        DRAWS[draw](t)
        return t * 1

    def run(g: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        x = torch.arange(1.0, 25.0).reshape(3, 8)
        return g(x), x, torch.rand(3)

    for expected, found in zip(run(f), run(ENGINES[engine](f)), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(
    "where", ["an argument", "a view of an argument", "a view of an intermediate"]
)
def test_a_long_draw_into_gaps_gives_the_elements_that_it_gives_in_torch(
    where: str, draw: str, engine: str
) -> None:
    """``normal_`` on the CPU draws 16 and more elements in another way where there are no
    gaps between them."""

    def f(x: torch.Tensor) -> torch.Tensor:
        t = (
            x
            if where == "an argument"
            else (x if where == "a view of an argument" else x * 1)[:, 1::2]
        )
        DRAWS[draw](t)
        return t * 1

    def run(g: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        x = torch.arange(1.0, 145.0).reshape(3, 48)
        return g(x[:, ::2] if where == "an argument" else x), x, torch.rand(3)

    for expected, found in zip(run(f), run(ENGINES[engine](f)), strict=True):
        assert torch.equal(expected, found)


FIRST_DRAW = """
import sys, torch
from runtime.func import functionalize

def f(x):
    return x.t().bernoulli_(0.5) * 1

torch.manual_seed(0)
drawn = (functionalize(f) if sys.argv[1] == "ours" else f)(torch.zeros(5, 7))
print(drawn.tolist(), torch.rand(3).tolist())
"""


def test_the_first_draw_of_a_process_is_torchs_too_and_so_is_the_next_one() -> None:
    """Once in a process it is asked how torch draws, which takes no draw from the user."""
    ours, theirs = (
        subprocess.run(
            [sys.executable, "-c", FIRST_DRAW, whose],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for whose in ("ours", "theirs")
    )
    assert ours == theirs != ""
