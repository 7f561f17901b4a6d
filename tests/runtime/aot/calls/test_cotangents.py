"""Cotangents that lie in memory otherwise than the trace took them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop

LAZY: dict[str, Callable[[torch.Tensor], Any]] = {
    "plain": lambda g: g,
    "conjugated": lambda g: g.conj(),
    "transposed": lambda g: g.t().contiguous().t(),
    "both": lambda g: g.mH.contiguous().mH,
}

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a conjugate": lambda x: torch.complex(x, x).conj(),
    "a complex": lambda x: torch.complex(x, 2 * x),
    "a product": lambda x: (x * 1j).conj() * x,
    "a view": lambda x: (x.view(-1).sin() * 1j).view(2, 2),
}


@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("lazy", LAZY.values(), ids=LAZY.keys())
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cotangent_may_be_conjugated_lazily_or_transposed(
    f: Any, lazy: Any, dynamic: bool
) -> None:
    cotangent = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, 2.0]])

    def seen(x: Any, f: Any, grad: Any) -> list[Any]:
        first = grad(f(x), x, lazy(cotangent))[0]
        (again,) = grad(f(x), x, lazy(cotangent), create_graph=True)
        second = (
            grad(again.square().sum(), x, allow_unused=True)[0] if again.requires_grad else None
        )
        return [None if t is None else runtime.unwrap(t) for t in (first, again.detach(), second)]

    x = torch.arange(4.0).reshape(2, 2)
    expected = seen(x.clone().requires_grad_(), f, torch.autograd.grad)
    found = seen(
        runtime.wrap(x, requires_grad=True),
        aot_function(f, nop, dynamic=dynamic),
        runtime.autograd.grad,
    )
    assert (found[2] is None) or expected[2] is not None or not found[2].any()
    torch.testing.assert_close(
        found[: 2 + (expected[2] is not None)], expected[: 2 + (expected[2] is not None)]
    )
