"""Histograms, counts and ramps under vmap equal a loop over the batch, without being one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from runtime.errors import BatchingError
from runtime.func import vmap

from ..agreement import strict

D = torch.float64


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(0))


def same_as_loop(
    f: Callable[..., Any], *args: torch.Tensor, in_dims: tuple[int | None, ...] | None = None
) -> None:
    dims = in_dims or (0,) * len(args)
    with strict():
        found = pytree.tree_leaves(vmap(f, dims)(*args))
    size = next(a.shape[0] for a, d in zip(args, dims, strict=True) if d is not None)
    rows = [
        [a if d is None else a[i] for a, d in zip(args, dims, strict=True)] for i in range(size)
    ]
    for i, each in enumerate(zip(*(pytree.tree_leaves(f(*row)) for row in rows), strict=True)):
        torch.testing.assert_close(found[i], torch.stack(each))


@pytest.mark.parametrize("options", [{}, {"min": -1, "max": 1}, {"bins": 7}])
def test_histc(options: Any) -> None:
    same_as_loop(lambda x: torch.histc(x, **options), values(4, 60))
    same_as_loop(lambda x: torch.histc(x, **options), torch.ones(4, 5))
    # on the edges of the bins
    same_as_loop(lambda x: torch.histc(x, **options), torch.randint(-9, 9, (4, 60)).float())


@pytest.mark.parametrize("options", [{}, {"range": (-1.0, 2.0), "density": True}])
def test_histogram(options: Any) -> None:
    x, weight = values(4, 50), values(4, 50).abs()
    same_as_loop(lambda x: torch.histogram(x, 7, **options), x)
    same_as_loop(lambda x, w: torch.histogram(x, 7, weight=w, **options), x, weight)
    same_as_loop(
        lambda x, w: torch.histogram(x, 7, weight=w, **options), x, weight[0], in_dims=(0, None)
    )
    same_as_loop(
        lambda x, w: torch.histogram(x, 7, weight=w, **options), x[0], weight, in_dims=(None, 0)
    )


def test_histogram_between_batched_edges() -> None:
    same_as_loop(torch.histogram, values(4, 50), values(4, 6).sort()[0])


@pytest.mark.parametrize("options", [{}, {"range": [-1.0, 1.0, -2.0, 2.0]}, {"density": True}])
def test_histogramdd(options: Any) -> None:
    same_as_loop(lambda x: torch.histogramdd(x, [3, 4], **options), values(4, 30, 2))
    same_as_loop(
        lambda x, w: torch.histogramdd(x, [3, 4], weight=w, **options),
        values(4, 30, 2),
        values(4, 30).abs(),
    )


def test_bincount() -> None:
    x = torch.randint(0, 5, (4, 20))
    x[:, 0] = 4
    weights = values(4, 20)
    same_as_loop(torch.bincount, x)
    same_as_loop(torch.bincount, x, weights)
    same_as_loop(torch.bincount, x[0], weights, in_dims=(None, 0))
    same_as_loop(lambda x: torch.bincount(x, minlength=200), x.to(torch.uint8))
    same_as_loop(lambda x: torch.bincount(x, minlength=3), x[:, :0])
    same_as_loop(vmap(torch.bincount), x.reshape(2, 2, 20))


def test_bincount_refuses_results_of_several_lengths_and_negative_numbers() -> None:
    with pytest.raises(
        BatchingError, match="lengths differ between the elements of the batch; pass a minlength"
    ):
        vmap(torch.bincount)(torch.tensor([[0, 1], [2, 3]]))
    with pytest.raises(RuntimeError, match="non-negative"):
        vmap(torch.bincount)(torch.tensor([[0, -1], [1, 1]]))


@pytest.mark.parametrize("size", [0, 1, 4, 30])
def test_nonzero_static(size: int) -> None:
    same_as_loop(
        lambda x: torch.nonzero_static(x, size=size, fill_value=-7), (values(4, 3, 5) > 0.5)
    )
    same_as_loop(lambda x: torch.nonzero_static(x, size=size), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("steps", [0, 1, 2, 50])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int32, torch.uint8, torch.complex64])
def test_ramps_between_tensors(dtype: torch.dtype | None, steps: int) -> None:
    start, end = torch.tensor([1.0, 3.0, 2.5]), torch.tensor([9.0, 4.0, 2.5])
    for ramp in (torch.linspace, torch.logspace):
        options: dict[str, Any] = {"base": 2} if ramp is torch.logspace else {}
        same_as_loop(
            lambda a, b, r=ramp, o=options: r(a, b, steps, dtype=dtype, **o), start, end / 2
        )
        same_as_loop(lambda a, r=ramp, o=options: r(a, 4, steps, dtype=dtype, **o), start)
        same_as_loop(lambda b, r=ramp, o=options: r(2, b, steps, dtype=dtype, **o), end / 2)
