"""Graphs that are recorded before dispatch: composite ops whole, grad mode and autocast as calls."""

from typing import Any

import pytest
import torch
from torch import nn

from runtime.aot import make_fx
from runtime.func import functionalize, grad, hessian, jacrev, jvp, linearize, vmap
from tests.runtime.func.graphs import Net, close, names, targets

aten = torch.ops.aten


def test_composite_ops_stay_whole_before_dispatch() -> None:
    net = Net().eval()
    x = torch.randn(4, 3)
    module = make_fx(net, pre_dispatch=True)(x)
    calls = [aten.linear.default, aten.relu.default, aten.batch_norm.default, aten.linear.default, aten.add.Tensor]
    assert targets(module) == calls
    close(module(x), net(x))


def test_changes_of_grad_mode_and_autocast_are_calls_before_dispatch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.nn.functional.layer_norm(x, (3,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = y @ y.t()
        return z.float() + x.sum()

    x = torch.randn(4, 3)
    module = make_fx(f, pre_dispatch=True)(x)
    assert [n for n in names(module) if n.startswith("_") or n in ("layer_norm", "matmul", "sum_1")] == [
        "_set_grad_enabled",
        "layer_norm",
        "_set_grad_enabled_1",
        "_enter_autocast",
        "matmul",
        "_exit_autocast",
        "sum_1",
    ]
    close(module(x), f(x))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_modes_at_the_end_of_a_graph_before_dispatch_are_those_at_its_start() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._C._set_grad_enabled(False)
        return x + 1

    with torch.enable_grad():
        module = make_fx(f, pre_dispatch=True)(torch.ones(2))
        torch._C._set_grad_enabled(True)
        module(torch.ones(2))
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "transform",
    [grad, vmap, hessian, jacrev, functionalize, lambda f: lambda x: jvp(f, (x,), (x,))[1], lambda f: lambda x: linearize(f, x)[1](x)],
    ids=["grad", "vmap", "hessian", "jacrev", "functionalize", "jvp", "linearize"],
)
@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_transforms_are_traced_before_dispatch(transform: Any, mode: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone().clamp_(-1, 1) + torch.arange(x.shape[-1])
        return (nn.functional.softmax(y, -1) * torch.ones(x.shape[-1])).sum()

    x = torch.randn(4, 3)
    module = make_fx(transform(f), tracing_mode=mode, pre_dispatch=True)(x)
    close(module(x), transform(f)(x))


def test_a_draw_inside_a_transform_is_one_call_before_dispatch() -> None:
    module = make_fx(grad(lambda x: (x * torch.rand(3)).sum()), pre_dispatch=True)(torch.ones(3))
    assert [t for t in targets(module) if t is aten.rand.default] == [aten.rand.default]


def test_traces_before_dispatch_nest() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        inner = make_fx(lambda y: nn.functional.linear(y, y).sin(), pre_dispatch=True)(x)
        out: torch.Tensor = inner(x) * 2
        return out

    x = torch.randn(3, 3)
    close(make_fx(f, pre_dispatch=True)(x)(x), f(x))


@pytest.mark.parametrize(
    "transform",
    [lambda f: lambda x: jvp(f, (x,), (x,))[1], lambda f: vmap(f, randomness="same"), functionalize],
    ids=["jvp", "vmap", "functionalize"],
)
def test_dropout_inside_a_transform_draws_as_without_a_trace(transform: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.3)

    x = torch.randn(4, 30)
    module = make_fx(transform(f), pre_dispatch=True)(x)
    torch.manual_seed(3)
    expected = transform(f)(x)
    torch.manual_seed(3)
    close(module(x), expected)
