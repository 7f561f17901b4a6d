"""Elementwise arithmetic that random samples do not reach."""

from typing import Any

import pytest
import torch

import runtime
from runtime import autograd


@pytest.mark.parametrize(
    "base", (-1, -2.5, 2, 1 + 2j, torch.tensor([-2.0, 3.0], dtype=torch.float64))
)
def test_a_real_base_to_a_complex_power_has_the_derivatives_that_differences_show(
    base: Any,
) -> None:
    exponent = runtime.wrap(torch.tensor([0.3 - 0.2j, -0.5 + 0.7j], dtype=torch.complex128), True)
    assert autograd.gradcheck(lambda e: torch.pow(base, e), (exponent,))
    assert autograd.gradgradcheck(lambda e: torch.pow(base, e), (exponent,))


def test_a_power_can_be_differentiated_once_more_than_its_exponent_says() -> None:
    """A product ``x * x`` cannot: its second derivative is a constant without history."""
    x = runtime.tensor([3.0], requires_grad=True)
    found = [x**2]
    for _ in range(3):
        found += autograd.grad(found[-1], x, create_graph=True)
    assert [t.item() for t in found] == [9.0, 6.0, 2.0, 0.0]


@pytest.mark.parametrize("name", ["asin", "acos", "atanh"])
def test_at_the_ends_of_the_domain_second_and_third_derivatives_are_those_of_torch(
    name: str,
) -> None:
    def derivatives(leaf: Any, grad: Any) -> list[Any]:
        found = [getattr(torch, name)(leaf)]
        for k in range(3):
            found += grad(found[-1].sum(), leaf, create_graph=k < 2)
        return [t.detach().tolist() for t in found]

    points = torch.tensor([1.0, -1.0, 0.5, -0.25, 0.0], dtype=torch.float64)
    expected = derivatives(points.clone().requires_grad_(), torch.autograd.grad)
    found = derivatives(runtime.wrap(points.clone(), requires_grad=True), autograd.grad)
    torch.testing.assert_close(
        torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=1e-12, equal_nan=True
    )
    assert float("inf") in expected[2]


@pytest.mark.parametrize("name", ["asin", "atanh"])
def test_near_one_the_derivatives_keep_the_digits_that_a_difference_of_squares_loses(
    name: str,
) -> None:
    points = torch.tensor([1 - 1e-7, 0.51, 0.3, -1 + 1e-6], dtype=torch.float32)
    exact = points.double().requires_grad_()
    (first,) = torch.autograd.grad(getattr(torch, name)(exact).sum(), exact, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), exact)
    x = runtime.wrap(points, requires_grad=True)
    (found,) = autograd.grad(getattr(torch, name)(x).sum(), x, create_graph=True)
    (again,) = autograd.grad(found.sum(), x)
    torch.testing.assert_close(
        runtime.unwrap(found.detach()).double(), first.detach(), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(runtime.unwrap(again).double(), second, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "op",
    [
        torch.copysign,
        torch.nextafter,
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ],
)
def test_a_gradient_that_is_zero_everywhere_is_zeros_and_not_none(op: Any) -> None:
    """An optimizer leaves a parameter without a gradient as it is. One with a gradient of
    zeros still decays."""
    given = torch.tensor([2.0, -3.0]), torch.tensor([[1.5], [0.5]])
    mine = [runtime.wrap(t.clone(), requires_grad=True) for t in given]
    theirs = [t.clone().requires_grad_() for t in given]
    autograd.backward(op(*mine).sum())
    try:
        op(*theirs).sum().backward()
    except NotImplementedError:  # torch 2.12 has no derivative of nextafter
        assert op is torch.nextafter
        (theirs[0] + 0 * theirs[1]).sum().backward()
    for x, y in zip(mine, theirs, strict=True):
        assert (
            x.grad is not None
            and y.grad is not None
            and torch.equal(runtime.unwrap(x.grad), y.grad)
        )
