"""Second derivatives of custom Functions whose backward closes over tensors of the program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import dropin, jit
from runtime.aot import aot_function, nop

# (cotangent, saved x, x of the program, its second argument) -> gradient
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
STATE: Any = SimpleNamespace(tensor=None)
RULES: dict[str, Rule] = {
    "a tensor of the state": lambda g, x, outer, t: g * 3 * x**2 * STATE.tensor,
    "the second argument": lambda g, x, outer, t: g * 3 * x**2 * t,
    "the second argument alone": lambda g, x, outer, t: g * t,
    "the argument itself": lambda g, x, outer, t: g * 3 * outer**2,
    "the argument without history": lambda g, x, outer, t: g * 3 * x * outer.detach(),
    "the data of the argument": lambda g, x, outer, t: g * x * outer.data,
    "both": lambda g, x, outer, t: g * outer * t * outer.detach(),
    "a copy that is written to": lambda g, x, outer, t: g * outer.clone().mul_(t),
    "views": lambda g, x, outer, t: g * outer.view(-1) * t[:],
}


def _gradients(compile_: Callable[[Any], Any], rule: Rule, requires_grad: bool) -> list[float]:
    """Return the gradients of a penalty on the gradient for four states, of the argument and of the
    second one, if that has any."""

    def program(outer: Tensor, t: Tensor) -> Any:
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Any:
                (x,) = ctx.saved_tensors
                return rule(g, x, outer, t)

        return Cube.apply(outer) * 1  # type: ignore[no-untyped-call]

    compiled = compile_(program)
    found: list[float] = []
    for value in (2.0, 3.0, 4.0, 5.0):
        STATE.tensor = torch.full((1,), value)
        x = torch.full((1,), 1.5, requires_grad=True)
        t = torch.full((1,), value + 1, requires_grad=requires_grad)
        (g,) = torch.autograd.grad(compiled(x, t).sum(), x, create_graph=True)
        (g**2 + x).sum().backward()
        assert x.grad is not None
        found.append(x.grad.item())
        if t.grad is not None:
            found.append(t.grad.item())
    return found


@pytest.mark.parametrize("compile_", [jit, lambda f: aot_function(f, nop)], ids=["jit", "aot"])
@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "leaf"])
@pytest.mark.parametrize("name", RULES)
def test_a_penalty_differentiates_what_the_backward_closes_over(
    name: str, requires_grad: bool, compile_: Callable[[Any], Any]
) -> None:
    with dropin.installed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of aot_function, which does not follow the state
        expected = _gradients(lambda f: f, RULES[name], requires_grad)
        assert _gradients(compile_, RULES[name], requires_grad) == pytest.approx(expected)
