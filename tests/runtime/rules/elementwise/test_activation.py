"""Activations whose backward kernels have records of their own."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime import func
from runtime.aot import aot_function, nop

from ..agreement import check


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_bounded(name: str, dtype: torch.dtype) -> None:
    check(name, dtype)


@pytest.mark.parametrize("name", ["nn.functional.silu", "nn.functional.gelu"])
def test_gated(name: str) -> None:
    check(name, limit=8)


@pytest.mark.parametrize(
    "f",
    [torch.tanh, torch.sigmoid, F.silu, F.gelu, F.mish, lambda x: F.gelu(x, approximate="tanh")],
    ids=["tanh", "sigmoid", "silu", "gelu", "mish", "gelu_tanh"],
)
def test_second_and_third_derivatives_are_the_slopes_of_those_below(
    f: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.linspace(-2.5, 2.5, 9, dtype=torch.float64)
    order: Callable[[torch.Tensor], torch.Tensor] = f
    for _ in range(3):
        derivative = func.grad(lambda x, below=order: below(x).sum())
        slope = (order(x + 1e-5) - order(x - 1e-5)) / 2e-5
        torch.testing.assert_close(derivative(x), slope, rtol=1e-6, atol=1e-8)
        pushed = func.jvp(order, (x,), (torch.ones_like(x),))[1]
        torch.testing.assert_close(pushed, slope, rtol=1e-6, atol=1e-8)
        order = derivative


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("f", [F.silu, F.mish, F.gelu, torch.tanh, F.softplus, F.hardswish])
def test_first_derivatives_have_the_bits_of_torchs_kernels_also_in_a_graph(
    f: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    x, g = torch.linspace(-4, 4, 301).to(dtype), torch.linspace(0.5, 2, 301).to(dtype)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(leaf), leaf, g)
    of_session, of_graph = (
        runtime.wrap(x.clone(), requires_grad=True),
        runtime.wrap(x.clone(), requires_grad=True),
    )
    assert torch.equal(
        runtime.unwrap(runtime.autograd.grad(f(of_session), of_session, g)[0]), expected
    )
    assert torch.equal(
        runtime.unwrap(runtime.autograd.grad(aot_function(f, nop)(of_graph), of_graph, g)[0]),
        expected,
    )
    assert torch.equal(func.vjp(f, x)[1](g)[0], expected)


@pytest.mark.parametrize(
    "f", [F.elu, F.elu_, F.celu, F.celu_, F.selu, F.selu_, lambda x: F.elu(x, 2.0)]
)
def test_at_the_kink_of_elu_the_derivatives_are_those_of_torch(
    f: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def derivatives(
        leaf: torch.Tensor, grad: Callable[..., tuple[torch.Tensor, ...]]
    ) -> list[torch.Tensor]:
        (g,) = grad(f(leaf * 1).sum(), leaf, create_graph=True)
        return [runtime.unwrap(t.detach()) for t in (g, *grad(g.sin().sum() + leaf.sum(), leaf))]

    x = torch.tensor([-1.0, 0.0, -0.0, 1.0])
    found = derivatives(runtime.wrap(x.clone(), requires_grad=True), runtime.autograd.grad)
    torch.testing.assert_close(found, derivatives(x.clone().requires_grad_(), torch.autograd.grad))


@pytest.mark.parametrize(
    ("name", "value"), [("silu", -38 * math.exp(-40)), ("mish", -78 * 4 * math.exp(-80))]
)
def test_second_derivatives_are_right_in_the_tail(name: str, value: float) -> None:
    """At 40 they are the first term of their series to all digits. `1 - sigmoid` and
    `1 - tanh²` are 0 there."""
    x = torch.tensor(40.0, dtype=torch.float64)
    f = getattr(torch.nn.functional, name)
    torch.testing.assert_close(
        runtime.func.grad(runtime.func.grad(f))(x).item(), value, rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("end", [-3.0, 3.0])
def test_hardswish_has_the_slope_of_its_kernel_at_the_ends_of_its_middle(end: float) -> None:
    x = torch.tensor(end, dtype=torch.float64)
    slope = float(end > 0)
    assert func.grad(F.hardswish)(x).item() == slope
    assert func.grad(func.grad(F.hardswish))(x).item() == 0.0
    assert func.jvp(F.hardswish, (x,), (torch.ones_like(x),))[1].item() == slope
