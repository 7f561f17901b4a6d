"""Cumulative ops agree with torch's engine."""

import pytest
import torch

from runtime import func
from runtime.rules.elementwise.overflow_safe import recurrence, reversed_recurrence

from ..agreement import Problem, check, check_problem


@pytest.mark.parametrize(
    "name", ["cumsum", "cumprod", "cummax", "cummin", "cumulative_trapezoid", "trapezoid", "diff"]
)
def test_real(name: str) -> None:
    check(name, limit=6)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cumulative_trapezoid", "trapezoid", "diff"])
def test_complex(name: str) -> None:
    check(name, torch.complex128, limit=6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_logcumsumexp(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, dtype=dtype)
    check_problem(Problem(lambda x: (x.logcumsumexp(1),), (x,), (0,), "logcumsumexp"))


def test_logcumsumexp_of_large_and_infinite_elements_is_finite() -> None:
    x = torch.tensor([float("-inf"), 1e4, -1e4, 1e4], dtype=torch.float64)
    one = torch.ones(4, dtype=torch.float64)
    tangent = func.jvp(lambda x: x.logcumsumexp(0), (x,), (one,))[1]
    torch.testing.assert_close(tangent[1:], one[1:])
    (g,) = func.vjp(lambda x: x.logcumsumexp(0), x)[1](one)
    torch.testing.assert_close(g, torch.tensor([0.0, 2.5, 0.0, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8])
def test_recurrence_is_its_loop(n: int) -> None:
    a, b, c = (torch.randn(2, n, dtype=torch.float64) for _ in range(3))
    forward, backward = torch.zeros_like(b), torch.zeros_like(b)
    for i in range(n):
        forward[:, i] = b[:, i] + (a[:, i] * forward[:, i - 1] if i else 0)
    for i in reversed(range(n)):
        backward[:, i] = c[:, i] + (a[:, i + 1] * backward[:, i + 1] if i + 1 < n else 0)
    torch.testing.assert_close(recurrence(a, b, 1), forward)
    torch.testing.assert_close(reversed_recurrence(a, c, 1), backward)
    torch.testing.assert_close(
        (forward * c).sum(), (backward * b).sum(), msg="one is the other's transpose"
    )
