"""Writes into a plain tensor, made inside a transform without the drop-in, through a view that
shows it in another dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.errors import InplaceError
from runtime.func import grad, jacfwd, jvp

X = torch.tensor([0.5, -1.5, 2.0, 0.25])
T = torch.tensor([1.0, -2.0, 0.5, 3.0])


def real_part(x: Tensor) -> Tensor:
    c = torch.zeros(4, dtype=torch.complex64)
    c.real.copy_(x)
    return (c.abs() * c.real * x[0]).sum()


def imaginary_part(x: Tensor) -> Tensor:
    c = torch.ones(4, dtype=torch.complex64)
    c.imag.mul_(2).add_(x)
    return (c.abs() * c.imag * x[0]).sum()


def pairs_of_numbers(x: Tensor) -> Tensor:
    c = torch.zeros(2, dtype=torch.complex64)
    pairs = torch.view_as_real(c)
    pairs.copy_(x.view(2, 2))
    c.mul_(x[0])
    return (pairs[:, 1] * c.abs()).sum()


def complex_numbers(x: Tensor) -> Tensor:
    c = torch.zeros(2, 2)
    torch.view_as_complex(c).copy_(torch.complex(x[:2], x[2:]))
    return (c * c * x[0]).sum() + c[1, 0]


def after_another_write(x: Tensor) -> Tensor:
    c = torch.zeros(4, dtype=torch.complex64)
    c.imag.add_(x)
    c.mul_(x)
    c.real.sub_(x.sin())
    return (c.abs() * c.real).sum()


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    f.__name__: f
    for f in (real_part, imaginary_part, pairs_of_numbers, complex_numbers, after_another_write)
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_through_a_view_of_another_dtype_has_the_derivatives_of_torch(name: str) -> None:
    f = PROGRAMS[name]
    torch.testing.assert_close(grad(f)(X), torch.func.grad(f)(X))
    torch.testing.assert_close(jvp(f, (X,), (T,)), torch.func.jvp(f, (X,), (T,)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_such_a_write_has_second_derivatives(name: str) -> None:
    f = PROGRAMS[name]

    def of_derivative(g: Any) -> Callable[[Tensor], Tensor]:
        return lambda x: (g(lambda y: f(y) * f(x))(x) * x).sum()

    expected = torch.func.grad(of_derivative(torch.func.grad))(X)
    torch.testing.assert_close(grad(of_derivative(grad))(X), expected)
    torch.testing.assert_close(grad(of_derivative(jacfwd))(X), expected)


def test_a_write_from_an_outer_transform_through_such_a_view_is_followed() -> None:
    def inner(x: Tensor, g: Any) -> Any:
        def f(y: Tensor) -> Tensor:
            c = torch.zeros(4, dtype=torch.complex64)
            c.real.copy_(x * x)
            c.imag.copy_(x)
            return (c.abs() * y).sum()

        return (g(f)(x) * x).sum()

    torch.testing.assert_close(
        grad(lambda x: inner(x, grad))(X), torch.func.grad(lambda x: inner(x, torch.func.grad))(X)
    )


def test_a_view_of_memory_that_starts_late_has_the_derivatives_of_torch_or_is_refused() -> None:
    def program(x: Tensor, g: Any) -> Any:
        def f(y: Tensor) -> Tensor:
            late = torch.zeros(7)[2:].data
            part = late[1:]
            part.copy_(y * x)
            return (late[1:] * late[:4] * y).sum()

        return g(f)(x).sum()

    with pytest.raises(InplaceError, match="captured Tensor"):
        grad(lambda x: program(x, grad))(X)
