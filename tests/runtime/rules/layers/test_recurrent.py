"""The fused LSTM layer: its kernels in float32 agree with plain ops in float64 under
every transform."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from runtime import func

ALL = tuple(range(9))


def scalar(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Uses the outputs, the hidden and the cell states of one bidirectional layer."""
    start = torch.zeros(2, x.shape[1], 5, dtype=x.dtype)
    out, h, c = torch._VF.lstm(x, (start, start), list(weights), True, 1, 0.0, True, True, False)
    return out.sin().sum() + (h * c).sum()


@pytest.fixture
def primals() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    layer = nn.LSTM(3, 5, bidirectional=True)
    return (torch.randn(7, 2, 3), *(p.detach().clone() for p in layer.parameters()))


def wide(tensors: Any) -> tuple[torch.Tensor, ...]:
    return tuple(t.double() for t in tensors)


def test_gradients_are_those_of_torchs_engine(primals: Any) -> None:
    expected = torch.func.grad(scalar, argnums=ALL)(*primals)
    torch.testing.assert_close(func.grad(scalar, argnums=ALL)(*primals), expected)


def test_the_tangent_is_that_of_plain_ops(primals: Any) -> None:
    tangents = tuple(torch.randn_like(p) for p in primals)
    value, tangent = func.jvp(scalar, primals, tangents)
    gradients = torch.func.grad(scalar, argnums=ALL)(*wide(primals))
    expected = sum((g * t).sum() for g, t in zip(gradients, wide(tangents), strict=True))
    torch.testing.assert_close(tangent, expected.float())
    torch.testing.assert_close(value, scalar(*primals))


def test_second_derivatives_are_those_of_plain_ops(primals: Any) -> None:
    def sum_of_gradients(*args: torch.Tensor) -> Any:
        return sum((g * g).sum() for g in func.grad(scalar, argnums=ALL)(*args))

    got = func.grad(sum_of_gradients, argnums=ALL)(*primals)
    expected = func.grad(sum_of_gradients, argnums=ALL)(*wide(primals))
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e.float(), rtol=1e-4, atol=1e-5)


def test_a_batch_is_a_loop(primals: Any) -> None:
    x, *weights = primals
    xs = torch.stack([x, 2 * x, -x])
    got = func.vmap(func.grad(scalar), in_dims=(0, *[None] * 8))(xs, *weights)
    torch.testing.assert_close(got, torch.stack([torch.func.grad(scalar)(x, *weights) for x in xs]))


@pytest.mark.parametrize("width", [5, 3])
def test_a_layer_without_biases_has_none_under_any_transform(width: int) -> None:
    """ATen passes the weights in place of the biases. With as many inputs as hidden units they have
    the shape of each other."""
    lstm = torch.nn.LSTM(width, 3, bias=False)
    params = {name: p.detach() for name, p in lstm.named_parameters()}
    x = torch.randn(4, 6, width)

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = func.functional_call(lstm, params, (x,))[0]
        return out.pow(2).sum()

    each = [
        torch.autograd.grad(lstm(x[:, i : i + 1])[0].pow(2).sum(), list(lstm.parameters()))
        for i in range(6)
    ]
    found = func.vmap(func.grad(loss), (None, 1))(params, x.unsqueeze(2))
    for got, wanted in zip(found.values(), zip(*each, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(wanted))
    _, slope = func.jvp(lambda params: loss(params, x), (params,), (params,))
    total: list[Any] = [sum(gs) for gs in zip(*each, strict=True)]
    torch.testing.assert_close(
        slope, sum((g * p).sum() for g, p in zip(total, params.values(), strict=True))
    )
