"""Errors that a program catches and that sizes decide: those of eager mode, for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit


def _copy(x: Tensor) -> Tensor:
    return torch.zeros(2, 3).copy_(x) * 2


def _first_largest(x: Tensor) -> Tensor:
    return x[2:].argmax(0) * 1.0


def _halves(x: Tensor) -> Tensor:
    return torch.stack(x.split([1, 2])[:1])


def _none(x: Tensor) -> Tensor:
    return torch.stack([row for row in x if len(x) > 2])


def _product(x: Tensor) -> Tensor:
    return torch.einsum("ij,jk->ik", x, torch.ones(3, 2))


def _row(x: Tensor) -> Tensor:
    return x[2]


@pytest.mark.parametrize("call", [_copy, _first_largest, _halves, _none, _product, _row])
def test_errors_of_sizes_are_those_of_eager_mode_for_each_size(
    call: Callable[[Tensor], Tensor],
) -> None:
    def f(x: Tensor) -> tuple[Tensor, str, str]:
        try:
            return call(x), "", ""
        except Exception as error:
            return x * 100, type(error).__name__, str(error)

    compiled = jit(f)
    for size in ((3, 3), (2, 4), (2, 3), (1, 3), (3, 4), (4, 3)):
        x = torch.ones(size)
        result, kind, text = compiled(x)
        expected, its_kind, its_text = f(x)
        assert torch.equal(result, expected) and (kind, text) == (its_kind, its_text)


@pytest.mark.parametrize(
    "call",
    [
        lambda v: torch.histc(torch.ones(2), 2, 1.0, v),
        lambda v: torch.renorm(torch.ones(2, 2), v, 0, 1.0),
    ],
)
def test_a_call_with_an_error_of_a_number_that_was_read_runs_eagerly(
    call: Callable[[float], Tensor],
) -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        try:
            return call(x.item())
        except RuntimeError:
            return x * 100

    with pytest.warns(UserWarning, match=r"the program catches .*test_errors_of_sizes.py"):
        assert f(torch.tensor(0.0)).item() == 0.0


RESIZES = [
    ("nearest", 1, {}),
    ("nearest", 2, {}),
    ("nearest", 3, {}),
    ("nearest-exact", 2, {}),
    ("linear", 1, {}),
    ("bilinear", 2, {"align_corners": True}),
    ("bilinear", 2, {"antialias": True}),
    ("trilinear", 3, {}),
    ("bicubic", 2, {}),
]


@pytest.mark.parametrize("mode, rank, options", RESIZES, ids=str)
def test_an_interpolation_to_no_size_raises_in_a_program_for_any_sizes(
    mode: str, rank: int, options: dict[str, Any]
) -> None:
    def resize(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=0.4, mode=mode, **options)

    f = jit(resize)
    for n in (5, 6, 8, 2, 7, 2, 4):
        x = torch.randn(1, 1, *[n] * rank)
        if n == 2:
            with pytest.raises(RuntimeError, match="sizes should be greater than 0"):
                f(x)
            continue
        torch.testing.assert_close(f(x), resize(x))
    assert len(jit.explain(f).programs) <= 3  # a result of size 1 has one of its own
