"""Samples that lie in columns, in groups of channels or in weights have the gradients of a
loop, in the context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from runtime.per_sample import per_sample

B = 3
Losses = Callable[[Tensor, Tensor], Tensor]
"""The sum of the losses of some samples, from a parameter and the samples."""


def _factor(p: Tensor) -> Tensor:
    return p.tril() + 3 * torch.eye(len(p), dtype=p.dtype)


def _lu(p: Tensor, x: Tensor, left: bool) -> Tensor:
    factors, pivots = torch.linalg.lu_factor(p)
    solved: Tensor = torch.linalg.lu_solve(factors, pivots, x, left=left)
    return solved


def _reflected(p: Tensor, x: Tensor) -> Tensor:
    vectors, tau = torch.geqrf(torch.full_like(p, 0.5) + torch.eye(len(p), dtype=p.dtype))
    return torch.ormqr(vectors, tau, x * p[0], left=False)


def _modulated(p: Tensor, x: Tensor, transposed: bool) -> Tensor:
    """A convolution whose weights each sample scales in its own way, as one convolution with a
    group for each sample (StyleGAN2)."""
    size, channels = x.shape[:2]
    scales = x.mean((2, 3))
    weights = p.reshape(4, 2, 3, 3) * scales.view(size, 1, channels, 1, 1)
    stacked = x.reshape(1, size * channels, *x.shape[2:])
    if transposed:
        out = conv_transpose2d(
            stacked, weights.transpose(1, 2).reshape(size * channels, 4, 3, 3), groups=size
        )
    else:
        out = conv2d(stacked, weights.reshape(size * 4, channels, 3, 3), groups=size)
    return out.reshape(size, 4, *out.shape[2:])


PROGRAMS: dict[str, tuple[Losses, tuple[int, ...], tuple[int, ...]]] = {
    "rows of a triangular system": (
        lambda p, x: torch.linalg.solve_triangular(_factor(p), x, upper=False, left=False),
        (4, 4),
        (B, 4),
    ),
    "columns of a triangular system": (
        lambda p, x: torch.linalg.solve_triangular(_factor(p), x.mT, upper=False),
        (4, 4),
        (B, 4),
    ),
    "columns of a system": (lambda p, x: torch.linalg.solve(_factor(p), x.mT), (4, 4), (B, 4)),
    "rows of a system": (
        lambda p, x: torch.linalg.solve(_factor(p), x, left=False),
        (4, 4),
        (B, 4),
    ),
    "stacks of systems": (lambda p, x: torch.linalg.solve(_factor(p), x), (4, 4), (B, 4, 2)),
    "columns of a system in a Cholesky factor": (
        lambda p, x: torch.cholesky_solve(x.mT, _factor(p)),
        (4, 4),
        (B, 4),
    ),
    "columns of a system in LU factors": (lambda p, x: _lu(_factor(p), x.mT, True), (4, 4), (B, 4)),
    "rows of a system in LU factors": (lambda p, x: _lu(_factor(p), x, False), (4, 4), (B, 4)),
    "rows times reflections": (_reflected, (4, 4), (B, 4)),
    "cross products": (lambda p, x: torch.linalg.cross(x, p, dim=-1), (1, 3), (B, 3)),
    "weights of output channels": (
        lambda p, x: conv2d(p, x).movedim(1, 0),
        (1, 2, 5, 5),
        (B, 2, 3, 3),
    ),
    "groups of channels": (lambda p, x: _modulated(p, x, False), (4, 18), (B, 2, 5, 5)),
    "groups of channels of a transposed convolution": (
        lambda p, x: _modulated(p, x, True),
        (4, 18),
        (B, 2, 5, 5),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradients_are_those_of_a_loop(name: str) -> None:
    program, shape, batch = PROGRAMS[name]
    torch.manual_seed(0)
    p, x = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True),
        torch.randn(batch, dtype=torch.float64),
    )
    expected = torch.stack(
        [torch.autograd.grad(program(p, one[None]).square().sum(), p)[0] for one in x]
    )
    with per_sample([p]) as grads:
        program(p, grads.batch(x)).square().sum().backward()
    torch.testing.assert_close(grads.materialize()[0], expected)
    torch.testing.assert_close(grads.norms(), expected.flatten(1).norm(dim=1))


@pytest.mark.parametrize(
    "name",
    ["matrices of a system", "cross products along the samples", "one group for two samples"],
)
def test_samples_that_meet_are_refused(name: str) -> None:
    p, x = (
        torch.randn(3, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(3, 3, dtype=torch.float64),
    )

    def program(x: Tensor) -> Any:
        if name == "matrices of a system":
            return torch.linalg.solve(x, p)
        if name == "cross products along the samples":
            return torch.linalg.cross(x, p, dim=0)
        each = x.reshape(1, 9, 1)
        return torch.nn.functional.conv1d(
            each, torch.ones(2, 9, 1, dtype=x.dtype) * p[0, 0], groups=1
        )

    with per_sample([p]) as grads, pytest.raises(RuntimeError, match="mixes samples"):
        program(grads.batch(x)).square().sum().backward()


def test_a_view_by_strides_of_a_transposed_tensor_shows_its_samples() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 4, dtype=torch.float64)
    xs = torch.randn(5, 3, dtype=torch.float64)

    def output(x: Tensor) -> Tensor:
        y: Tensor = layer(x).t().clone().t()  # the samples are the columns of memory
        y.as_strided(y.shape, y.stride()).mul_(2)
        return y.sin()

    with per_sample(layer.parameters()) as grads:
        output(grads.batch(xs)).sum().backward()
    for place, found in enumerate(grads.materialize()):
        each = [torch.autograd.grad(output(x[None]).sum(), list(layer.parameters())) for x in xs]
        torch.testing.assert_close(found, torch.stack([g[place] for g in each]))
