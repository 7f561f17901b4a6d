"""Softmax and its kin agree with torch's engine."""

import pytest
import torch

from ..agreement import Problem, check, check_problem


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("softmax", ""),
        ("softmax", "with_dtype"),
        ("log_softmax", ""),
        ("log_softmax", "with_dtype"),
        ("nn.functional.softmin", ""),
        ("_softmax_backward_data", ""),
        ("torch.ops.aten._safe_softmax.default", ""),
        ("masked.softmax", ""),
        ("masked.log_softmax", ""),
    ],
)
def test_agrees(name: str, variant: str) -> None:
    check(name, variant=variant)


@pytest.mark.parametrize("op", [torch.softmax, torch.log_softmax])
def test_third_derivative(op: object) -> None:
    """The backward op's own rules: the gradient of a gradient, differentiated again."""

    def f(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = op(x, 1)  # type: ignore[operator]
        backward = (
            torch.ops.aten._softmax_backward_data
            if op is torch.softmax
            else torch.ops.aten._log_softmax_backward_data
        )
        return (backward(g, y, 1, x.dtype),)

    inputs = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    check_problem(Problem(f, inputs, (0, 1), str(op)))
