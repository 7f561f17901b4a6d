"""Calls whose results nobody uses, and that raise for some values: their errors come as in eager
mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime import jit
from runtime.func import grad

ROWS = torch.ones(3)
LOGITS = torch.zeros(2, 3)
CALLS: dict[str, Callable[[Tensor], object]] = {
    "index": lambda i: ROWS[i],
    "index_select": lambda i: ROWS.index_select(0, i),
    "gather": lambda i: ROWS.gather(0, i),
    "take": lambda i: ROWS.take(i),
    "scatter": lambda i: ROWS.scatter(0, i, 0.0),
    "index_add": lambda i: ROWS.index_add(0, i, torch.ones(2)),
    "index_put": lambda i: ROWS.index_put((i,), torch.zeros(2)),
    "embedding": lambda i: F.embedding(i, torch.ones(3, 2)),
    "cross_entropy": lambda i: F.cross_entropy(LOGITS, i),
    "integer division": lambda i: 6 // (3 - i),
    "integer remainder": lambda i: 6 % (3 - i),
    "binary_cross_entropy": lambda i: F.binary_cross_entropy(i / 2.9, torch.ones(2)),
    "a gradient": lambda i: grad(lambda w: F.embedding(i, w).sum() * 0 + w.sum())(torch.ones(3, 2)),
}
GOOD, BAD = torch.tensor([0, 2]), torch.tensor([1, 3])


@pytest.mark.parametrize("name", CALLS)
def test_an_unused_call_raises_for_values_that_it_refuses(name: str) -> None:
    def f(i: Tensor) -> Tensor:
        CALLS[name](i)
        return i * 2

    compiled = jit(f)
    assert torch.equal(compiled(GOOD), f(GOOD))
    with pytest.raises((IndexError, RuntimeError)) as eager:
        f(BAD)
    with pytest.raises(eager.type):
        compiled(BAD)
    assert torch.equal(compiled(GOOD), f(GOOD))


def test_an_unused_power_raises_where_python_does() -> None:
    def f(x: Tensor) -> Tensor:
        _ = x.item() ** -1.0
        return x * 2

    compiled = jit(f)
    assert torch.equal(compiled(torch.tensor(0.5)), torch.tensor(1.0))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.tensor(0.0))


@pytest.mark.parametrize("call", [lambda x: x.sin(), lambda x: x @ x, lambda x: x.sum()])
def test_an_unused_call_that_cannot_raise_is_left_out(call: Callable[[Tensor], object]) -> None:
    def f(x: Tensor) -> Tensor:
        call(x)
        return x * 2

    compiled = jit(f)
    compiled(torch.ones(2, 2))
    assert "mul" in jit.source(compiled) and jit.source(compiled).count("torch.ops.aten") == 1
