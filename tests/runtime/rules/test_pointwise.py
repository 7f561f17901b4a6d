"""Elementwise arithmetic that random samples do not reach."""

from typing import Any

import pytest
import torch

import runtime
from runtime import autograd


@pytest.mark.parametrize("base", (-1, -2.5, 2, 1 + 2j, torch.tensor([-2.0, 3.0], dtype=torch.float64)))
def test_a_real_base_to_a_complex_power_has_the_derivatives_that_differences_show(base: Any) -> None:
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
