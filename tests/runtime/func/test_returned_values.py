"""Values of an inner transform that outlive it and are the result of the function around."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from runtime import func
from runtime.aot import aot_function, make_fx, nop
from runtime.errors import EscapedValue

X = torch.tensor([1.0, 2.0, 3.0])


def keeping(inner: Callable[[Any, list[Tensor]], Any]) -> Callable[[Any], Any]:
    """A function whose result is what ``inner(x, kept)`` puts into ``kept``."""

    def f(x: Any) -> Any:
        kept: list[Tensor] = []
        inner(x, kept)
        return kept[0]

    return f


def after(
    value: Callable[[Any], Any], grad: Callable[..., Any] = func.grad
) -> Callable[[Any, list[Tensor]], Any]:
    """Keeps ``value`` of the argument of a gradient."""

    def inner(x: Any, kept: list[Tensor]) -> Any:
        def total(a: Any) -> Any:
            kept.append(value(a))
            return a.sum()

        return grad(total)(x)

    return inner


constant = keeping(after(lambda a: a.detach() * 2))
of_torch = keeping(after(lambda a: a.detach() * 2, torch.func.grad))
with_history = keeping(after(lambda a: a * 2))

AROUND: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "vmap": lambda f: func.vmap(f)(X[None])[0],
    "jvp": lambda f: func.jvp(f, (X,), (X,))[0],
    "vjp": lambda f: func.vjp(f, X)[0],
    "linearize": lambda f: func.linearize(f, X)[0],
    "functionalize": lambda f: func.functionalize(f)(X),
    "make_fx": lambda f: make_fx(f)(X)(X),
    "aot_function": lambda f: aot_function(f, nop)(X),
    "jit": lambda f: runtime.jit(f)(X),
    "grad's aux": lambda f: func.grad(lambda x: (x.sum(), f(x)), has_aux=True)(X)[1],
    "a tree": lambda f: func.functionalize(lambda x: {"a": [f(x)]})(X)["a"][0],
}


@pytest.mark.parametrize("f", [constant, of_torch], ids=["ours", "torch's"])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
def test_a_constant_of_an_inner_transform_is_a_result_like_any_other(
    f: Callable[..., Any], around: Callable[[Callable[..., Any]], Any]
) -> None:
    assert (around(f) + 0).tolist() == [2.0, 4.0, 6.0]


DERIVATIVES: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "jvp": lambda f: func.jvp(f, (X,), (X,)),
    "vjp": lambda f: func.vjp(f, X),
    "grad": lambda f: func.grad(lambda x: f(x)[0])(X),
    "jacrev": lambda f: func.jacrev(f)(X),
    "jacfwd": lambda f: func.jacfwd(f)(X),
    "linearize": lambda f: func.linearize(f, X),
}


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES.keys())
def test_the_derivative_of_an_escaped_value_is_refused_rather_than_zero(
    derivative: Callable[[Callable[..., Any]], Any],
) -> None:
    with pytest.raises(EscapedValue, match="after the transform has returned"):
        derivative(with_history)
