"""Backward graphs without the derivatives of results that take no part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cotangent_has_the_strides_of_the_sum_that_it_stands_for(order: tuple[int, int], dynamic: bool) -> None:
    def f(x: Any) -> Any:
        v = x.view(2, 3)
        return v.sum(0) * 2, v.sin()

    def seen(x: Any, f: Any, grad: Any) -> list[Any]:
        found = []
        for i in order:
            (g,) = grad(f(x)[i].sum().sin(), x, create_graph=True)
            (h,) = grad(g.square().sum(), x)
            found += [runtime.unwrap(g.detach()), runtime.unwrap(h)]
        return found

    expected = seen(torch.arange(6.0).requires_grad_(), f, torch.autograd.grad)
    found = seen(runtime.wrap(torch.arange(6.0), requires_grad=True), aot_function(f, nop, dynamic=dynamic), runtime.autograd.grad)
    torch.testing.assert_close(found, expected)
