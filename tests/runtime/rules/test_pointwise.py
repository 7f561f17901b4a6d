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
