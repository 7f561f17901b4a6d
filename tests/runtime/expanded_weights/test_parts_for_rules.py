"""The parts that a rule of a user's own is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import runtime
from runtime.expanded_weights import (
    ExpandedWeight,
    forward_helper,
    set_grad_sample_if_exists,
    standard_kwargs,
    sum_over_all_but_batch_and_last_n,
    unpack_expanded_weight_or_tensor,
)


def expanded(size: int, reduction: str = "sum") -> ExpandedWeight:
    return ExpandedWeight(torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)), size, reduction)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), (("x", "w", 1, 2), {})),
        (("stride",), (("x", "w", 1), {"stride": 2})),
        (("bias", "stride"), (("x", "w"), {"bias": 1, "stride": 2})),
    ],
)
def test_the_last_arguments_are_those_by_name(names: tuple[str, ...], expected: object) -> None:
    assert standard_kwargs(names, ("x", "w", 1, 2)) == expected


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_layer_runs_on_the_plain_tensors(wrapped: bool) -> None:
    x, weight = torch.ones(4, 3), expanded(4)
    out = forward_helper(
        F.linear, (runtime.wrap(x, requires_grad=True) if wrapped else x, weight), {"bias": None}
    )
    assert type(out) is Tensor and not out.requires_grad
    assert torch.equal(out, torch.tensor([3.0, 12.0]).expand(4, 2))


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (
            lambda: torch.ones(0, 3),
            r"0 is not a valid batch size .* an input of shape \[0, 3\] in linear",
        ),
        (
            lambda: torch.tensor(1.0),
            "requires a batch dimension but got an input of size 0 dimensions in linear",
        ),
        (lambda: [1.0], "requires a Tensor as the first input .* got <class 'list'> in linear"),
        (
            lambda: expanded(0),
            "do not support inputs that are also ExpandedWeights. Input of linear must be a Tensor",
        ),
        (lambda: torch.ones(5, 3), "5"),
    ],
)
def test_an_input_without_the_batch_is_refused(x: Callable[[], Any], says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        forward_helper(F.linear, (x(), expanded(4)), {})


@pytest.mark.parametrize(("reduction", "factor"), [("sum", 1), ("mean", 4)])
def test_gradients_belong_to_the_loss_of_each_sample_and_add_up(
    reduction: str, factor: int
) -> None:
    weight = expanded(4, reduction)
    seen: list[Tensor] = []

    def rule(plain: Tensor) -> Tensor:
        seen.append(plain)
        return plain.expand(4, 2, 3)

    for _ in range(2):
        set_grad_sample_if_exists(weight, rule)
    original = unpack_expanded_weight_or_tensor(weight)
    assert all(torch.equal(plain, torch.arange(6.0).reshape(2, 3)) for plain in (*seen, original))
    assert torch.equal(weight.orig_weight.grad_sample, 2 * factor * original.expand(4, 2, 3))


def test_a_tensor_that_is_no_weight_gets_no_gradient() -> None:
    set_grad_sample_if_exists(torch.ones(2), lambda plain: pytest.fail("the rule ran"))


@pytest.mark.parametrize(
    ("kept", "shape"), [(0, (2,)), (1, (2, 5)), (2, (2, 4, 5)), (3, (2, 3, 4, 5))]
)
def test_sums_keep_the_batch_and_the_last_dimensions(kept: int, shape: tuple[int, ...]) -> None:
    x = torch.arange(120.0).reshape(2, 3, 4, 5)
    found = sum_over_all_but_batch_and_last_n(x, kept)
    assert found.shape == shape and torch.equal(found.reshape(2, -1).sum(1), x.flatten(1).sum(1))
