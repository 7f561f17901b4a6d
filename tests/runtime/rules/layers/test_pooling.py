"""Pooling of every kind."""

from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import autograd
from tests.runtime.rules.agreement import check

OPS = (
    "nn.functional.avg_pool1d",
    "nn.functional.avg_pool2d",
    "nn.functional.avg_pool3d",
    "nn.functional.max_pool1d",
    "nn.functional.max_pool2d",
    "nn.functional.max_pool3d",
    "nn.functional.adaptive_avg_pool1d",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.adaptive_avg_pool3d",
    "nn.functional.adaptive_max_pool1d",
    "nn.functional.adaptive_max_pool2d",
    "nn.functional.adaptive_max_pool3d",
    "nn.functional.max_unpool1d",
    "nn.functional.max_unpool2d",
    "nn.functional.max_unpool3d",
)


@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str) -> None:
    check(name, torch.float64, limit=2)


@pytest.mark.parametrize(
    "pool", [nn.functional.max_pool2d, nn.functional.avg_pool2d, nn.functional.adaptive_avg_pool2d]
)
def test_the_second_derivative_of_a_sum_is_zeros_and_not_none(pool: Any) -> None:
    x = runtime.wrap(torch.randn(1, 2, 4, 4), requires_grad=True)
    weight = runtime.wrap(torch.randn(1, 2, 2, 2), requires_grad=True)
    (slope,) = autograd.grad((pool(x, 2) * weight).sum(), x, create_graph=True)
    (again,) = autograd.grad(slope.sum(), x)
    assert torch.equal(runtime.unwrap(again), torch.zeros(1, 2, 4, 4))
