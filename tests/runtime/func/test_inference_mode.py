"""Transforms of functions in inference mode. Derivatives are those of normal mode, and an op that
returns its argument does so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime import jit
from runtime.aot import aot_function, nop
from runtime.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

Function = Callable[..., Any]


def _written(x: Any) -> Any:
    y = x * 1
    y.view(-1).mul_(x)
    return y.sin().sum()


def _element(x: Any) -> Any:
    y = x.new_zeros(3)
    y[0] = x[1]
    return (y * x).sum()


FUNCTIONS: dict[str, Function] = {
    "a view": lambda x: (x[:2] * 2).square().sum(),
    "a saved argument": lambda x: x.sin().sum(),
    "a saved closed-over tensor": lambda x: (x * x).sum() * 2,
    "a layer": lambda x: F.linear(x, torch.ones(2, 3)).exp().sum(),
    "a write to a view": _written,
    "a write to a new tensor": _element,
    "several views": lambda x: x.unbind(0)[1].exp() * x[0],
    "detach": lambda x: (x.detach() * x * x).sum(),
}
TRANSFORMS: dict[str, Callable[[Function, Any], Any]] = {
    "grad": lambda f, x: grad(f)(x),
    "grad of grad": lambda f, x: grad(lambda x: grad(f)(x).sum())(x),
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones(())),
    "vmap of grad": lambda f, x: vmap(grad(f))(torch.stack([x, x + 1])),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "linearize": lambda f, x: linearize(f, x)[1](x),
    "hessian": lambda f, x: hessian(f)(x),
    "grad, compiled": lambda f, x: aot_function(grad(f), nop)(x),
    "grad, jitted": lambda f, x: jit(grad(f))(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_derivative_in_inference_mode_is_that_of_normal_mode(
    f: Function, transform: Callable[[Function, Any], Any]
) -> None:
    x = torch.tensor([0.3, 1.2, -0.5])
    expected = transform(f, x)
    with torch.inference_mode():
        torch.testing.assert_close(transform(f, x), expected)
        torch.testing.assert_close(transform(f, x * 1), expected)  # an inference tensor


def test_a_tensor_made_in_inference_mode_takes_the_history_of_what_is_written_to_it() -> None:
    def f(x: Any) -> Any:
        y = torch.zeros(3)
        y[0] = x[1]
        return y.square().sum()

    with torch.inference_mode():
        x = torch.tensor([1.0, 2.0])
        torch.testing.assert_close(grad(f)(x), torch.tensor([0.0, 4.0]))
        torch.testing.assert_close(jvp(f, (x,), (torch.ones(2),))[1], torch.tensor(4.0))


def test_a_gradient_by_an_inference_tensor_is_computed_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        w = torch.tensor([2.0, 3.0])
    torch.testing.assert_close(
        grad(lambda x: (x * w).sum())(torch.ones(2)), torch.tensor([2.0, 3.0])
    )
    torch.testing.assert_close(grad(lambda w: (w[:1] * w[1:]).sum())(w), torch.tensor([3.0, 2.0]))


def test_a_write_to_the_argument_of_jvp_in_inference_mode_reaches_the_caller() -> None:
    def f(x: Any) -> Any:
        y = x.sin()
        x.mul_(2)
        return (y * x).sum()

    with torch.inference_mode():
        x = torch.tensor([1.0, 2.0])
        _, slope = jvp(f, (x,), (torch.ones(2),))
        torch.testing.assert_close(x, torch.tensor([2.0, 4.0]))
        half = x / 2
        torch.testing.assert_close(slope, (2 * half * half.cos() + 2 * half.sin()).sum())


def test_a_derivative_in_inference_mode_has_no_history_of_closed_over_parameters() -> None:
    for w in (torch.ones(3, requires_grad=True), runtime.wrap(torch.ones(3), requires_grad=True)):
        with torch.inference_mode():
            found = grad(lambda x, w=w: (x * w).sin().sum())(torch.zeros(3))
            assert torch.is_inference_mode_enabled()
        assert not found.requires_grad
        torch.testing.assert_close(found, torch.ones(3))


THEMSELVES: dict[str, Function] = {
    "atleast_2d": torch.atleast_2d,
    "atleast_2d of several": lambda x: torch.atleast_2d((x, x))[1],
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 3))[0],
    "alpha_dropout in eval": lambda x: F.alpha_dropout(x, 0.5, training=False),
    "dropout in eval": lambda x: F.dropout(x, 0.5, training=False),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "conj_physical": torch.conj_physical,
    "sum_to_size": lambda x: x.sum_to_size(2, 3),
    "to_dense": lambda x: x.to_dense(),
    "contiguous": lambda x: x.contiguous(),
}
RUN: dict[str, Callable[[Function, Any], Any]] = {
    "session": lambda f, x: f(runtime.wrap(x)),
    "vmap": lambda f, x: vmap(f)(torch.stack([x, x])),
    "functionalize": lambda f, x: functionalize(f)(x),
    "compiled": lambda f, x: aot_function(f, nop)(x),
    "compiled for any size": lambda f, x: aot_function(f, nop, dynamic=True)(x),
}


@pytest.mark.parametrize("run", RUN.values(), ids=RUN.keys())
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("f", THEMSELVES.values(), ids=THEMSELVES.keys())
def test_an_op_that_returns_its_argument_returns_the_same_object(
    f: Function, inference: bool, run: Callable[[Function, Any], Any]
) -> None:
    seen = []

    def program(x: Any) -> Any:
        y = f(x)
        seen.append(y is x)
        return y * 2

    with torch.inference_mode(inference):
        x = torch.arange(6.0).reshape(2, 3)
        assert f(x) is x
        run(program, x)
    assert set(seen) == {True}
