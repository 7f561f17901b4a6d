"""Arguments that share memory may be views of a tensor that does not start at the
start of its storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop


def whole(a: Any, b: Any) -> Any:
    a.mul_(3)
    return (b * b).sum()


def twice(a: Any, b: Any) -> Any:
    a.mul_(2)
    b.mul_(a.detach().sum())
    return (a * 2).sum()


VIEWS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "whole and rows": lambda x: (x, x[1:]),
    "two parts": lambda x: (x[:2], x[1:]),
    "columns": lambda x: (x[:, 1:], x[:, :2]),
    "whole and transpose": lambda x: (x, x.t()),
}


@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("program", [whole, twice])
def test_writes_to_views_of_a_base_with_an_offset_have_torchs_gradients(
    program: Callable[..., Any], views: str
) -> None:
    def seen(f: Callable[..., Any], leaf: Any, grad: Callable[..., Any]) -> tuple[Any, ...]:
        x = (leaf * 1).unsafe_chunk(2)[1]  # no view for autograd
        assert x._base is None and x.storage_offset() == 12
        out = f(*VIEWS[views](x))
        (gradient,) = grad(out + (x * x).sum(), leaf)
        return out.detach(), x.detach(), gradient

    start = torch.arange(24.0).view(8, 3) / 10
    expected = seen(program, start.clone().requires_grad_(), torch.autograd.grad)
    found = seen(aot_function(program, nop), runtime.wrap(start, True), runtime.autograd.grad)
    for a, b in zip(expected, found, strict=True):
        assert torch.allclose(a, runtime.session.unwrap(b))
