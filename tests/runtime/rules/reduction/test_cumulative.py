"""Cumulative ops agree with torch's engine."""

import pytest
import torch

from runtime import func

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_logcumsumexp_of_any_number_of_elements(n: int, dtype: torch.dtype) -> None:
    """Its derivatives are recurrences, which are computed in steps of doubled length."""
    x = torch.randn(2, n, dtype=dtype)
    check_problem(Problem(lambda x: (x.logcumsumexp(1),), (x,), (0,), "logcumsumexp"))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8])
def test_the_derivative_of_logcumsumexp_is_the_transpose_of_its_tangent(n: int) -> None:
    x, tangent, cotangent = (torch.randn(2, n, dtype=torch.float64) for _ in range(3))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.logcumsumexp(1)

    _, pushed = func.jvp(f, (x,), (tangent,))
    (pulled,) = func.vjp(f, x)[1](cotangent)
    torch.testing.assert_close((pushed * cotangent).sum(), (pulled * tangent).sum())
