"""Draws of integers between bounds, and draws into gaps, give the numbers that torch gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime.aot import aot_function, make_fx, nop
from runtime.func import functionalize

RANGES: list[tuple[int, int | None]] = [(0, 7), (2, 9), (-5, 5), (3, None)]


@pytest.mark.parametrize("bounds", RANGES, ids=str)
def test_integers_between_bounds_are_drawn_without_a_write_as_in_torch(
    bounds: tuple[int, int | None],
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.clone().random_(*bounds)

    torch.manual_seed(3)
    expected = f(torch.zeros(20)), torch.rand(1)
    torch.manual_seed(3)
    found = functionalize(f)(torch.zeros(20)), torch.rand(1)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "given", [False, True], ids=["the default generator", "a generator of the caller"]
)
@pytest.mark.parametrize("bounds", RANGES[:3], ids=str)
def test_a_graph_draws_integers_between_bounds_as_torch(
    bounds: tuple[int, int], given: bool
) -> None:
    generator = torch.Generator() if given else torch.default_generator

    def f(x: torch.Tensor) -> Any:
        return x.clone().random_(*bounds, generator=generator if given else None)

    generator.manual_seed(4)
    graph = make_fx(f)(torch.zeros(20))
    generator.manual_seed(5)
    found = graph(torch.zeros(20))
    generator.manual_seed(5)
    assert torch.equal(found, f(torch.zeros(20)))


def test_a_graph_cannot_draw_without_an_upper_bound() -> None:
    with pytest.raises(RuntimeError, match="no upper end"):
        make_fx(lambda x: x.clone().random_(3, None))(torch.zeros(2))


def test_a_compiled_program_draws_sixteen_numbers_with_gaps_as_torch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[:, ::2].normal_() * 1

    torch.manual_seed(1)
    expected = f(torch.zeros(4, 8))
    torch.manual_seed(1)
    assert torch.equal(aot_function(f, nop)(torch.zeros(4, 8)), expected)
