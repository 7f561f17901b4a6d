"""Views of views are one view or none, and pointwise calls compute what they are given
in its own shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import aot

from .rewritten_graphs import calls, runs

X, BIAS, W = torch.randn(8, 6), torch.randn(6), torch.randn(6, 6)


def test_views_that_undo_each_other_are_not_taken() -> None:
    assert calls(lambda x: x.t().t() * 2, X) == ["mul"]
    assert calls(lambda x: x.view(8, 1, 6).view(8, 6) * 2, X) == ["mul"]
    assert calls(lambda x: x.unsqueeze(0).squeeze(0) * 2, X) == ["mul"]
    assert calls(lambda x: x.expand(8, 6).detach() * 2, X) == ["mul"]
    assert calls(lambda x: x.permute(1, 0).transpose(-1, -2).sum(0), X) == ["sum"]


def test_a_view_of_a_view_is_taken_of_what_both_show() -> None:
    assert calls(lambda x: x.view(2, 4, 6).view(4, 12).sum(0), X) == ["view", "sum"]


def test_equal_views_are_one() -> None:
    assert (
        calls(
            lambda x: x.view(2, 24).sum(0) * x.view(8, 6).view(2, 24).sum(1, keepdim=True), X
        ).count("view")
        == 1
    )


def test_a_bias_is_added_in_the_shape_of_the_product() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = (x.view(8, 1, 6).view(8, 6) @ w).view(8, 1, 6) + bias
        return (y.view(8, 6).tanh().view(8, 1, 6).view(8, 6) @ w).view(8, 1, 6)

    assert calls(f, X, W, BIAS) == ["mm", "add_", "tanh_", "mm", "view"]


def test_operands_that_meet_other_elements_keep_their_shape() -> None:
    other = torch.randn(8, 1)
    assert calls(lambda x, y: ((x * 2).view(8, 1, 6) + y).sum(0), X, other).count("view") == 1
    calls(lambda x, y: ((x * 2).view(6, 8) + y).sum(0), X, torch.randn(8))
    calls(lambda x, y: ((x * 2).view(2, 4, 6) + y.view(4, 1)).view(8, 6).sum(0), X, torch.randn(4))
    calls(lambda x: ((x * 2).view(48) * torch.arange(48.0)).view(8, 6).sum(0), X)
    calls(lambda x: ((x * 2).t().reshape(8, 6) + x).sum(0), X)
    for f in (lambda x: ((x * 2).view(48) > 0).sum(), lambda x: ((x * 2).view(48) * 0.5).sum()):
        assert calls(f, torch.arange(48).view(8, 6)).count("view") == 1  # of another dtype


def test_a_result_that_is_a_view_of_a_view_is_a_tensor_of_its_own() -> None:
    compiled = aot.aot_function(lambda x: ((u := x * 2), u.t().t(), u.view(8, 6)), aot.nop)
    u, v, w = compiled(X)
    assert (
        u is not v
        and v is not w
        and u.data_ptr() == v.data_ptr() == w.data_ptr()
        and torch.equal(u, X * 2)
    )


def test_arguments_may_begin_anywhere_in_their_memory() -> None:
    compiled = aot.aot_function(lambda x: x[1:].view(-1)[6:].view(6, 6).sin(), aot.nop)
    base = torch.randn(100)
    for start in (0, 7, 40):
        x = base[start : start + 48].view(8, 6)
        assert torch.equal(compiled(x), x[2:].sin())


def test_lazy_bits_are_kept() -> None:
    z = torch.randn(4, 3, dtype=torch.complex64)
    assert torch.equal(aot.aot_function(lambda z: z.conj().t().t() * 2, aot.nop)(z), z.conj() * 2)
    real = torch.view_as_real(z).view(12, 2).sum(0)
    assert torch.equal(
        aot.aot_function(lambda z: torch.view_as_real(z).view(12, 2).sum(0), aot.nop)(z), real
    )


def test_views_of_any_size_are_taken() -> None:
    compiled = aot.aot_function(
        lambda x: (x.t().t() * 2, x.unsqueeze(0)[:, 1:, :1].squeeze(0) + 1, x[1:2, -1:].sin()),
        aot.nop,
        dynamic=True,
    )
    for sizes in ((8, 6), (5, 7), (2, 2)):
        x = torch.randn(sizes)
        assert all(
            torch.equal(a, b)
            for a, b in zip(compiled(x), (x * 2, x[1:, :1] + 1, x[1:2, -1:].sin()), strict=True)
        )


def test_a_view_and_a_bias_which_is_a_view_too_are_added_in_the_shape_of_the_first() -> None:
    def f(x: Tensor, bias: Tensor) -> Tensor:
        return ((x * 2).view(2, 4, 6) + (bias * 2).view(6)).view(8, 6).sum(0)

    assert calls(f, X, BIAS.view(1, 6)) == ["mul", "mul", "view", "add_", "sum"]


@pytest.mark.parametrize(
    "f, called",
    [
        pytest.param(lambda x: [(x * 2).t().t()], ["mul"], id="of a new value"),
        pytest.param(lambda x: [x.t().t()], ["t", "t"], id="of an argument"),
        pytest.param(
            lambda x: [(u := x * 2).t().t(), u], ["mul", "t", "t"], id="of another result"
        ),
    ],
)
def test_a_result_that_shows_the_whole_of_a_value_is_the_value_if_nobody_else_has_it(
    f: Any, called: list[str]
) -> None:
    assert runs(f, (4, 3)) == called


def test_other_calls_than_pointwise_ones_compute_in_the_shape_that_they_are_given() -> None:
    calls(lambda x: (x * 2).view(48).cumsum(0) + 1, X)
    calls(lambda x: (x * 2).view(2, 4, 6).softmax(1) + 1, X)
    calls(lambda x: (x * 2).view(48).sort()[0] + 1, X)
