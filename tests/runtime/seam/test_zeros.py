"""Zeros without memory inside of levels. Torch's forward mode makes them for tangents that are
zero, and kernels must not read where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import runtime
from programs import flows, transforms
from runtime.aot import aot_function, make_fx, nop
from runtime.func import functionalize, jvp, vjp, vmap

X = torch.tensor([[0.3, -0.4], [0.5, 0.7]])
OUTSIDE = torch._efficientzerotensor((2, 2))

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda z, x: z * x,
    "add": lambda z, x: z + x,
    "sub": lambda z, x: x - z,
    "div": lambda z, x: z / (x + 3),
    "mm": lambda z, x: z @ x,
    "cat": lambda z, x: torch.cat([z, x]),
    "stack": lambda z, x: torch.stack([z, x]),
    "where": lambda z, x: torch.where(x > 0, z, x),
    "cos": lambda z, x: z.cos() + x,
    "sum": lambda z, x: z.sum() + x,
    "view": lambda z, x: z.view(4) + x.view(4),
    "copied": lambda z, x: x.clone().copy_(z),
    "written": lambda z, x: x.clone().add_(z),
}
LEVELS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "functionalize": functionalize,
    "make_fx": lambda f: lambda x: make_fx(f)(x)(x),
    "aot_function": lambda f: aot_function(f, nop),
    "vmap": lambda f: lambda x: vmap(f)(x.expand(3, 2, 2))[0],
    "vjp": lambda f: lambda x: vjp(f, x)[0],
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[0],
    "session": lambda f: lambda x: f(runtime.wrap(x, requires_grad=True)).detach(),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("outside", [False, True])
def test_an_op_takes_zeros_without_memory(outside: bool, op: str, level: str) -> None:
    def f(x: Any) -> Any:
        return OPS[op](OUTSIDE if outside else torch._efficientzerotensor((2, 2)), x)

    found = LEVELS[level](f)(X)
    torch.testing.assert_close(found * 1, OPS[op](torch.zeros(2, 2), X), check_stride=False)


@pytest.mark.parametrize("op", ["mul", "add", "sub", "mm", "where"])
def test_a_tangent_passes_beside_zeros_without_memory(op: str) -> None:
    def tangent(zeros: Any) -> Any:
        return jvp(lambda x: OPS[op](zeros, x), (X,), (X.cos(),))[1]

    torch.testing.assert_close(tangent(OUTSIDE) * 1, tangent(torch.zeros(2, 2)), check_stride=False)


def by_dual_tensors(x: Any) -> Any:
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x.detach(), x.cos())
        pairs = [forward_ad.unpack_dual(y) for y in (d.sin() * x, d @ x, torch.stack([d, x]))]
        return tuple(t for pair in pairs for t in (pair.primal, pair.tangent))


FORWARD: dict[str, Callable[[Any], Any]] = {
    "dual tensors": by_dual_tensors,
    "jvp": lambda x: torch.func.jvp(lambda a: a.sin() * x, (x,), (x.cos(),)),
    "jacfwd": lambda x: torch.func.jacfwd(lambda a: a.sin() @ x)(x),
    "hessian": lambda x: torch.func.hessian(lambda a: (a**3).sum())(x),
    "jacobians_beside_others": transforms.jacobians_beside_others,
    "derivatives_of_branches": flows.derivatives_of_branches,
    "derivatives_of_loops": flows.derivatives_of_loops,
}
SQUARE = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3) + 0.05


@pytest.mark.parametrize("name", FORWARD)
def test_torch_s_forward_mode_runs_inside_of_functionalize(name: str) -> None:
    program = FORWARD[name]
    torch.testing.assert_close(functionalize(program)(SQUARE), program(SQUARE))
