"""Which objects hold values, and what a custom Function sees of its arguments."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

import runtime
from runtime.aot import aot_function, nop


class Asks(runtime.autograd.Function):
    seen: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        Asks.seen.append((x.requires_grad, y.requires_grad))
        return x * 2 if x.requires_grad else x * 3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2, None


def test_a_function_sees_which_of_its_arguments_require_grad_and_no_one_after_it() -> None:
    after: list[Any] = []

    def f(x: Any, y: Any) -> Any:
        z = x.detach()
        made = Asks.apply(x, y)
        after.extend([x.requires_grad, y.requires_grad, z.requires_grad])
        return made

    Asks.seen.clear()
    x = runtime.wrap(torch.ones(1), requires_grad=True)
    assert aot_function(f, nop)(x, torch.ones(1)).item() == 2.0
    assert Asks.seen == [(True, False)] and after == [True, False, False]
    assert aot_function(f, nop)(torch.ones(1), x).item() == 3.0
    assert Asks.seen[1:] == [(False, True)]
