"""What a joint graph says of its calls, and what a second derivative takes, computes again, draws
and refuses because of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import runtime
from runtime.aot import aot_function, nop


def test_attention_has_a_second_derivative() -> None:
    def attention(x: Any) -> Any:
        y = x.view(1, 1, 2, 3)
        return F.scaled_dot_product_attention(y, y, y).sum()

    def second(f: Callable[..., Any]) -> Any:
        x = runtime.wrap(torch.arange(6.0).view(2, 3) / 6, requires_grad=True)
        (g,) = runtime.autograd.grad(f(x), x, create_graph=True)
        return runtime.unwrap(runtime.autograd.grad(g.square().sum(), x)[0])

    torch.testing.assert_close(second(aot_function(attention, nop)), second(attention))
