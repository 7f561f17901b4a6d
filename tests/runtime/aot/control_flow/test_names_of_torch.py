"""Torch's own names of control flow in programs that are captured, without the drop-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import runtime
from runtime import jit
from runtime.aot import aot_function, make_fx, nop
from runtime.func import grad
from tests.runtime.trace.graphs import close, targets


def _doubled_sine(row: Any, *others: Any) -> Any:
    return row.sin() * 2


HIGHER = torch.ops.higher_order
FLAG = torch.tensor(True)
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "lambdas": lambda x: torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v * 3, (x,)),
    "closed over": lambda x: torch.cond(FLAG, lambda v: v * 2, lambda v: v * 3, (x,)),
    "made inside": lambda x: torch.cond(torch.tensor(True), lambda v: v * 2, lambda v: v * 3, (x,)),
    "size": lambda x: torch.cond(x.shape[0] > 3, torch.sin, torch.cos, (x,)),
    "loop": lambda x: while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * 1.5), (torch.tensor(0), x)
    )[1],
    "map": lambda x: map(_doubled_sine, x),
    "scan": lambda x: scan(lambda c, r: (c + r, c * r), x[0] * 1, x)[1],
}
WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit": jit,
    "jit of any size": lambda f: jit(f, dynamic=True),
    "aot_function": lambda f: aot_function(f, nop),
    "make_fx": lambda f: (
        lambda x: make_fx(f, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
            torch.ones(3, 2)
        )(x)
    ),
}


def numbers(n: int, sign: int) -> torch.Tensor:
    return sign * torch.arange(1.0, 2 * n + 1).reshape(n, 2) / 8


def reference(name: str, x: torch.Tensor) -> torch.Tensor:
    """By loops and branches of Python."""
    if name == "loop":
        return x * 1.5**3
    if name == "map":
        return x.sin() * 2
    if name == "scan":
        return (x[0] + torch.cat([x[:1] * 0, x.cumsum(0)[:-1]])) * x
    if name in ("closed over", "made inside"):
        return x * 2
    chosen = x.shape[0] > 3 if name == "size" else bool(x.sum() > 0)
    if name == "lambdas":
        return x * (2 if chosen else 3)
    return x.sin() if chosen else x.cos()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_captured_program_has_what_torch_calls(name: str, way: str) -> None:
    captured = WAYS[way](PROGRAMS[name])
    for n, sign in ((3, 1), (3, -1), (4, 1), (4, -1)):
        x = numbers(n, sign)
        close(captured(x), reference(name, x))


def test_a_graph_has_both_branches_of_torch_cond() -> None:
    module = make_fx(PROGRAMS["cond"])(torch.ones(3, 2))
    assert HIGHER.cond in targets(module)


def test_torch_cond_is_differentiated_by_the_session_and_by_grad() -> None:
    x = runtime.wrap(torch.tensor([0.5, 1.0]), requires_grad=True)
    PROGRAMS["cond"](x).sum().backward()
    close(x.grad, torch.tensor([0.5, 1.0]).cos())
    close(grad(lambda x: PROGRAMS["cond"](x).sum())(-x.detach()), -torch.tensor([-0.5, -1.0]).sin())
