"""Large pieces of a concatenation are put in their places as they are computed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from runtime import jit

from .random_graphs import bits
from .rewritten_graphs import calls

ROWS = 200  # with 100 columns of float32: 80 kB


def _halves(x: Tensor) -> Tensor:
    return torch.cat([x[:ROWS].sin(), x[ROWS:].cos()])


X = torch.randn(2 * ROWS, 100)


def test_each_piece_is_copied_as_soon_as_it_is_computed() -> None:
    names = calls(_halves, X)
    assert "cat" not in names
    assert names.index("sin") < names.index("copy_") < names.index("cos")
    assert names.count("empty") == 1 and names.count("copy_") == 2


@pytest.mark.parametrize("seed", range(30))
def test_the_result_is_that_of_cat(seed: int) -> None:
    draw = random.Random(seed)
    dim, rank = draw.randint(-3, 2), 3
    sizes = [draw.randint(0, 60) for _ in range(draw.randint(2, 5))]
    dtype = draw.choice((torch.float32, torch.float64, torch.complex64, torch.int64))
    shape = [40, 60, 70]
    shape[dim % rank] = sum(sizes)
    shuffled = draw.sample(range(rank), rank)
    x = (torch.randn(shape) * 8).to(dtype).permute(shuffled).contiguous().permute([shuffled.index(d) for d in range(rank)])

    def f(x: Tensor) -> Tensor:
        pieces = [part + 1 if i % 2 else part.conj() for i, part in enumerate(x.split(sizes, dim))]
        return torch.cat(pieces, dim) * 2

    run, expected = jit(f), f(x)
    for _ in range(3):
        assert torch.equal(bits(run(x).resolve_conj()), bits(expected)) and run(x).stride() == expected.stride()


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x: torch.cat([x[:8].sin(), x[8:16].cos()]), id="small pieces"),
        pytest.param(lambda x: torch.cat([x, x]), id="arguments"),
        pytest.param(lambda x: (torch.cat([y := x.sin(), x.cos()]), y), id="a piece that is returned"),
        pytest.param(lambda x: torch.cat([y := x.sin(), y]), id="one piece twice"),
        pytest.param(lambda x: torch.cat([x.sin(), x.double()]), id="two dtypes"),
        pytest.param(lambda x: torch.cat([x[:ROWS].sin(), (x @ x.T @ x)[ROWS:].cos()]), id="pieces with large results between them"),
        pytest.param(lambda x: torch.cat([(y := x.view(4, 10, 10, 100).permute(0, 3, 1, 2)).sin(), y.cos()]), id="channels last"),
    ],
)
def test_others_stay(f: Callable[[Tensor], object]) -> None:
    names = calls(f, X)
    assert "cat" in names and "copy_" not in names
