"""Programs that compute in inference mode or under no_grad, in part or as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime

from .boundary_helpers import compiled

F = torch.nn.functional
COMPOSITE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: F.linear(x, x),
    "outer": lambda x: torch.outer(x.flatten(), x[0]),
    "einsum": lambda x: torch.einsum("ij,ij->i", x.view_as(x), x),
    "rrelu": lambda x: F.rrelu(x.as_strided((2,), (1,)) * 1),
    "matmul of a stack": lambda x: torch.matmul(x.expand(2, 2, 3), x.t()),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}
"""Ops that ATen makes of others, which take views."""


@pytest.mark.parametrize("f", COMPOSITE.values(), ids=COMPOSITE.keys())
def test_composite_ops_run_in_inference_mode(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def inside(x: Any) -> Any:
        with torch.inference_mode():
            y = f(x)
        return x * 2, y.clone()

    x = torch.arange(6.0).reshape(2, 3) / 4
    expected = f(x)
    torch.testing.assert_close(compiled(inside)(x), (x * 2, expected))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(f)(x), expected)
        torch.testing.assert_close(compiled(f)(x * 1), expected)  # an inference tensor


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2.5


def tripled(x: Any) -> Any:
    return Tripled.apply(x)  # type: ignore[no-untyped-call]


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "a leaf": lambda leaf: leaf,
    "an intermediate": lambda leaf: leaf * 1,
    "a view": lambda leaf: (leaf * 1).view(-1),
    "a constant": lambda leaf: leaf.detach(),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS.keys())
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view(-1)[1:]], ids=["itself", "a view of it"])
def test_a_function_that_writes_without_grad_mode_returns_what_it_does_in_torch(view: Any, argument: Any, whole: bool, mode: Any) -> None:
    def f(x: Any) -> Any:
        with mode():
            v = view(x)
            y = tripled(v)
        return v, y, y

    def seen(leaf: Any, wrapped: Callable[[Any], Any]) -> Any:
        x = argument(leaf)
        with mode() if whole else torch.enable_grad():
            v, y, again = wrapped(f)(x)
        flags = [(t.requires_grad, t.is_leaf) for t in (x, y)]
        return v is x, y is x, y is v, y is again, flags, x.detach().tolist(), y.data_ptr() - x.data_ptr()

    expected = seen(torch.ones(2, 3, requires_grad=True), lambda f: f)
    for wrapped in (lambda f: f, compiled):
        assert seen(runtime.wrap(torch.ones(2, 3), requires_grad=True), wrapped) == expected
