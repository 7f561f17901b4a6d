"""Writes with and without grad mode, through names with and without a history, in any order.
Torch's engine is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop
from runtime.func import functionalize, grad, jvp, vmap

Step = Callable[[Any], Any]


def _without_grad(step: Step) -> Step:
    return torch.no_grad()(step)


STEPS: dict[str, Step] = {
    "a factor": lambda y: y.mul_(3),
    "a factor of a part": lambda y: y[1:].mul_(5),
    "a sum without grad mode": _without_grad(lambda y: y.add_(1)),
    "a part without grad mode": _without_grad(lambda y: y[:1].mul_(7)),
    "a detached name": lambda y: y.detach().mul_(2),
    "a read without grad mode": _without_grad(lambda y: y.sum()),
}
ORDERS = [(a, b) for a, b in permutations(STEPS, 2)] + [
    ("a factor", "a detached name", "a read without grad mode"),
    ("a detached name", "a read without grad mode", "a factor"),
    ("a sum without grad mode", "a factor", "a sum without grad mode"),
    ("a factor of a part", "a part without grad mode", "a read without grad mode"),
]
X = torch.arange(1.0, 4.0, dtype=torch.float64)


def _written(order: tuple[str, ...]) -> Callable[[Any], Any]:
    def write(y: Any) -> None:
        for name in order:
            STEPS[name](y)

    return write


def _expected(f: Callable[[Any], Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x = X.clone().requires_grad_()
    out = f(x)
    return out.detach(), torch.autograd.grad(out.square().sum(), x)[0]


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_a_tensor_of_the_program_has_torchs_value_and_gradient(order: tuple[str, ...]) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        _written(order)(y)
        return y

    value, gradient = _expected(f)
    assert torch.equal(functionalize(f)(X), value)
    torch.testing.assert_close(grad(lambda x: functionalize(f)(x).square().sum())(X), gradient)
    torch.testing.assert_close(
        vmap(grad(lambda x: functionalize(f)(x).square().sum()))(X[None])[0], gradient
    )


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_an_argument_has_torchs_value_and_gradient_afterwards(order: tuple[str, ...]) -> None:
    """What the program wrote is copied to the argument at the end: with a history if one of
    the writes had one."""

    def f(x: Any) -> Any:
        y = x * 2
        _written(order)(y)
        return y

    def ours(x: Any) -> Any:
        y = x * 2
        functionalize(_written(order))(y)
        return y

    value, gradient = _expected(f)
    assert torch.equal(ours(X), value)
    torch.testing.assert_close(grad(lambda x: ours(x).square().sum())(X), gradient)


@pytest.mark.parametrize(
    "engine", [lambda f: f, lambda f: aot_function(f, nop)], ids=["eager", "compiled"]
)
@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_the_session_has_torchs_value_and_gradient(order: tuple[str, ...], engine: Any) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        _written(order)(y)
        return y * 1

    value, gradient = _expected(f)
    x = runtime.wrap(X.clone(), requires_grad=True)
    out = engine(f)(x)
    assert torch.equal(runtime.unwrap(out), value)
    (found,) = runtime.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(runtime.unwrap(found), gradient)


@pytest.mark.parametrize("order", [o for o in ORDERS if "a detached name" not in o], ids=", ".join)
def test_a_tangent_is_that_of_the_numbers(order: tuple[str, ...]) -> None:
    """Forward mode is on without grad mode as well, so every write has its tangent."""

    def f(x: Any) -> Any:
        y = x * 2
        _written(order)(y)
        return y

    eps = 2.0**-20
    _, found = jvp(f, (X,), (torch.ones_like(X),))
    torch.testing.assert_close(found, (f(X + eps) - f(X - eps)) / (2 * eps))
    _, functional = jvp(functionalize(f), (X,), (torch.ones_like(X),))
    torch.testing.assert_close(functional, found)


LAZY: dict[str, Callable[[torch.Tensor], Any]] = {
    "conjugated, with gaps": lambda z: z.conj()[:, ::2],
    "negated, with gaps": lambda z: torch._neg_view(z)[:, ::2],
    "both": lambda z: torch._neg_view(z.conj()),
    "both, with gaps": lambda z: torch._neg_view(z.conj())[::2].t(),
    "a conjugate transpose": lambda z: z.mH,
}


@pytest.mark.parametrize(
    "engine", [functionalize, lambda f: aot_function(f, nop)], ids=["functionalize", "compiled"]
)
@pytest.mark.parametrize("name", LAZY)
def test_a_write_to_what_is_conjugated_or_negated_lazily_leaves_it_so(
    name: str, engine: Any
) -> None:
    def f(x: Any) -> Any:
        x.cumsum_(0)
        x.addmm_(torch.eye(x.shape[0], dtype=x.dtype), torch.ones(x.shape, dtype=x.dtype))
        return x.imag * 1, x.real * 1, x.resolve_conj().resolve_neg() * 2

    given = [
        LAZY[name](torch.complex(torch.arange(12.0), -torch.arange(12.0)).view(3, 4).clone())
        for _ in range(2)
    ]
    expected, found = f(given[0]), engine(f)(given[1])
    assert all(map(torch.equal, found, expected)) and torch.equal(*given)
