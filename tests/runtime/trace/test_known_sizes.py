"""An op whose result has a size that depends on values is captured if the values are made of sizes
alone, and refused otherwise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import jit
from runtime.func import grad, vmap

Function = Callable[[torch.Tensor], Any]


def every_second(x: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0]) % 2 == 0]


def odd_places(x: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, torch.nonzero(torch.arange(x.shape[0]) % 2).squeeze(1))


def upper(x: torch.Tensor) -> torch.Tensor:
    return torch.outer(x, x).masked_select(torch.ones(x.shape[0], x.shape[0]).triu(1).bool())


def slopes_of_pairs(x: torch.Tensor) -> Any:
    return grad(lambda x: torch.combinations(x).prod(1).sum())(x)


@pytest.mark.parametrize(
    "f", [torch.combinations, every_second, odd_places, upper, slopes_of_pairs]
)
def test_values_made_of_sizes_are_the_same_at_each_run(f: Function) -> None:
    jitted = jit(f)
    for size in (4, 4, 5, 6, 4):
        x = torch.arange(1.0, size + 1) * size
        torch.testing.assert_close(jitted(x), f(x))


def test_they_can_be_mapped() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    torch.testing.assert_close(
        jit(vmap(torch.combinations))(x), torch.stack([torch.combinations(row) for row in x])
    )


MASK = torch.tensor([True, False, True, False])


def written_with_a_value(x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(x.shape[0], dtype=torch.bool)
    mask[0] = x[0] > 1
    return x[mask]


def filled_and_added(x: torch.Tensor) -> torch.Tensor:
    counts = torch.zeros(x.shape[0]).fill_(1.0)
    counts.add_(x)
    return torch.nonzero(counts > 2)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[x > 2],
        lambda x: x[MASK],
        lambda x: x[torch.rand(x.shape[0]) > 0.5],
        lambda x: x[torch.zeros_like(x).bernoulli_(0.5).bool()],
        lambda x: torch.nonzero(torch.empty(x.shape[0])),
        written_with_a_value,
        filled_and_added,
    ],
)
def test_other_values_are_refused(f: Function) -> None:
    with pytest.raises(RuntimeError, match=r"the size of what aten.* returns depends on values"):
        jit(f)(torch.arange(4.0))
