"""View ops, their copies and their scatters agree with torch's engine under every transform and
pair of transforms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import func, jit
from tests.runtime.rules.agreement import check

OPS = (
    "view",
    "reshape",
    "expand",
    "permute",
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
    "split",
    "split_with_sizes",
    "unbind",
    "diagonal",
    "diagonal_copy",
    "unfold",
    "unfold_copy",
    "expand_copy",
    "narrow_copy",
    "real",
    "conj",
    "diagonal_scatter",
    "movedim",
    "__getitem__",
)


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128))
@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, limit=3)


@pytest.mark.parametrize(
    "name, dtype",
    (
        ("imag", torch.complex128),
        ("view_as_real", torch.complex128),
        ("view_as_complex", torch.float64),
    ),
)
def test_views_between_real_and_complex(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, limit=3)


@pytest.mark.parametrize("name", ("select_scatter", "slice_scatter"))
def test_scatters_that_torch_differentiates_for_real_numbers_only(name: str) -> None:
    check(name, torch.float64, limit=3)


def test_the_real_part_of_a_lazy_conjugate_under_two_levels() -> None:
    """What a value holds may be lazily conjugated though the value does not show it."""
    x = torch.randn(3, dtype=torch.complex128)
    gradient, tangent = func.jvp(
        func.grad(lambda x: torch.real(x.conj()).square().sum()), (x,), (x,)
    )
    torch.testing.assert_close(
        gradient, torch.complex(2 * x.real, torch.zeros(3, dtype=torch.float64))
    )
    torch.testing.assert_close(tangent, gradient)


def test_split_into_listed_sizes() -> None:
    check("split", torch.float64, "list_args")


def test_as_strided_of_an_overlapping_input_shares_the_gradient() -> None:
    """Elements that lie on the same memory each get an equal part of its sum, as torch
    documents for as_strided."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (
            x.as_strided((2, 3), (3, 1), 0) * torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
        ).sum(0)

    for x in (
        torch.randn(2, 3, dtype=torch.float64),
        torch.randn(1, 3, dtype=torch.float64).repeat(2, 1).t().contiguous().t(),
    ):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        (expected,) = torch.autograd.grad(f(leaf).sum(), leaf)
        torch.testing.assert_close(func.grad(lambda t: f(t).sum())(x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("size", [2, 3])
def test_as_strided_of_a_view_that_shows_elements_several_times_counts_each_once(
    size: int, dtype: torch.dtype
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (
            x.to(dtype).unfold(0, size, 1).as_strided((4,), (1,)).real
            * torch.arange(1.0, 5.0, dtype=torch.float64)
        ).sum()

    x = torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(func.grad(f)(x), torch.arange(1.0, 5.0, dtype=torch.float64))
    torch.testing.assert_close(
        func.grad(lambda x: func.grad(f)(x).square().sum())(x), torch.zeros(4, dtype=torch.float64)
    )


def test_as_strided_scatter_overwrites_what_its_source_covers() -> None:
    x, src = torch.randn(5, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    out, pullback = func.vjp(lambda x, src: torch.as_strided_scatter(x, src, (2,), (2,), 1), x, src)
    g = torch.randn(5, dtype=torch.float64)
    by_x, by_src = pullback(g)
    torch.testing.assert_close(out[1::2], src)
    torch.testing.assert_close(by_x, g * torch.tensor([1.0, 0, 1, 0, 1], dtype=torch.float64))
    torch.testing.assert_close(by_src, g[1::2])


def test_a_batched_as_strided_counts_its_offset_from_the_element() -> None:
    x = torch.randn(3, 6)
    out = func.vmap(lambda row: row.as_strided((2, 2), (3, 1), 1))(x)
    torch.testing.assert_close(
        out, torch.stack([row.clone().as_strided((2, 2), (3, 1), 1) for row in x])
    )


@pytest.mark.parametrize("offset", [None, 5])
def test_as_strided_of_a_tangent_that_lies_otherwise_in_memory(offset: int | None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((5, 2), (1, 5), offset)

    x, t = torch.randn(6, 5), torch.randn(5, 6).t()
    torch.testing.assert_close(func.jvp(f, (x,), (t,))[1], f(t.contiguous()))
    many = torch.randn(6, 5, 3)
    pushed = func.vmap(lambda t: func.jvp(f, (x,), (t,))[1], -1)(many)
    torch.testing.assert_close(
        pushed, torch.stack([f(many[..., i].contiguous()) for i in range(3)])
    )


@pytest.mark.parametrize(
    "transform", (func.functionalize, jit, lambda f: lambda x: func.vmap(f)(x[None])[0])
)
def test_view_copy_takes_strides_that_allow_no_view(transform: Callable[..., Any]) -> None:
    for x in (torch.randn(3, 4).t(), torch.randn(3, 1).expand(3, 4)):
        assert torch.equal(transform(lambda x: torch.view_copy(x, (12,)))(x), x.reshape(12))
        (gradient,) = transform(
            lambda x: func.vjp(lambda x: torch.view_copy(x, (12,)), x)[1](torch.arange(12.0))
        )(x)
        assert torch.equal(gradient, torch.arange(12.0).view(x.shape))
