"""Draws without writes fill a target in the order in which the in-place draws of torch do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot import aot_function, nop
from runtime.func import functionalize
from runtime.functionalize.memory_order import _follows_memory

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


def test_whether_draws_follow_memory_is_what_torch_does() -> None:
    drawn = [
        torch.zeros(7, 5).bernoulli_(0.5, generator=torch.Generator().manual_seed(1)).flatten()
    ]
    drawn.append(
        torch.zeros(5, 7)
        .t()
        .bernoulli_(0.5, generator=torch.Generator().manual_seed(1))
        .t()
        .flatten()
    )
    _follows_memory.cache_clear()
    assert _follows_memory() is torch.equal(*drawn)


def test_asking_whether_draws_follow_memory_takes_no_draw_from_the_user() -> None:
    before = torch.get_rng_state()
    _follows_memory.cache_clear()
    _follows_memory()
    assert torch.equal(torch.get_rng_state(), before)
