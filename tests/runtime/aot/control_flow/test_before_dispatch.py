"""Control flow in traces before dispatch: a call of an operator, with what its functions close
over, in the grad mode of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot import aot_export_module, cond, make_fx, map, scan, while_loop

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

torch.manual_seed(0)
X, Y, W = torch.rand(2, 3), torch.rand(3), torch.rand(3, 3)


def branches(x: Any, y: Any, w: Any) -> Any:
    return cond(
        x.sum() > 0,
        lambda x: torch.nn.functional.linear(x, w, y).sin(),
        lambda x: x.cos() + y,
        (x,),
    )


def loop(x: Any, y: Any, w: Any) -> Any:
    return while_loop(
        lambda i, z: i < 3, lambda i, z: (i + 1, z @ w + y), (torch.zeros((), dtype=torch.int64), x)
    )[1]


def along(x: Any, y: Any, w: Any) -> Any:
    carry, ys = scan(lambda c, r: (c * y, (c + r) @ w), y, x, unroll=False)
    return carry * ys


def each(x: Any, y: Any, w: Any) -> Any:
    return map(lambda r: (r @ w).sin() * y, x, unroll=False)


PROGRAMS = {"cond": branches, "while_loop": loop, "scan": along, "map_impl": each}


def calls(module: Any, operator: str) -> int:
    return sum(n.target is getattr(torch.ops.higher_order, operator) for n in module.graph.nodes)


def gradients(f: Callable[..., Any], *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in args]
    return torch.autograd.grad(f(*leaves).square().sum(), leaves)


@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("operator", PROGRAMS)
def test_what_a_function_closes_over_is_an_argument_of_the_call(operator: str, mode: str) -> None:
    f = PROGRAMS[operator]
    module = make_fx(f, tracing_mode=mode, pre_dispatch=True)(X, Y, W)
    assert calls(module, operator) == 1
    for args in ((X, Y, W), (-X, Y * 2, W + 1)):
        torch.testing.assert_close(module(*args), f(*args))


@pytest.mark.parametrize("operator", PROGRAMS)
def test_an_exported_module_takes_other_values_of_what_is_closed_over(operator: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any, y: Any, w: Any) -> Any:
            return (PROGRAMS[operator](x, y, w),)

    module, _ = aot_export_module(Module(), (X, Y, W), trace_joint=False, pre_dispatch=True)
    assert calls(module, operator) == 1
    torch.testing.assert_close(
        module(X + 1, Y - 1, W * 2)[0], PROGRAMS[operator](X + 1, Y - 1, W * 2)
    )


@pytest.mark.parametrize("operator", ["cond", "scan", "map_impl"])
def test_the_graph_has_the_derivative_of_the_program(operator: str) -> None:
    f = PROGRAMS[operator]
    module = make_fx(f, pre_dispatch=True)(X, Y, W)
    torch.testing.assert_close(gradients(module, X, Y, W), gradients(f, X, Y, W))


def test_a_call_under_no_grad_has_no_history_and_the_next_one_has() -> None:
    """The calls are the first of their regions: no other call writes the switch of
    the grad mode down."""

    def f(x: Any, y: Any) -> Any:
        positive = x.sum() > 0
        with torch.no_grad():
            a = cond(positive, lambda x: x.sin() * y, lambda x: x.cos() + y, (x,))
        b = cond(positive, lambda x: x.sin() * y, lambda x: x.cos() + y, (x,))
        return a * b

    module = make_fx(f, pre_dispatch=True)(X, Y)
    assert calls(module, "cond") == 2
    torch.testing.assert_close(gradients(module, X, Y), gradients(f, X, Y))
