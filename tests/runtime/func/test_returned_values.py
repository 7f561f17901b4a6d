"""Values of an inner transform that outlive it and are the result of the function around."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import runtime
from runtime import func
from runtime.aot import aot_function, make_fx, nop
from runtime.errors import EscapedValue, InplaceError

X = torch.tensor([1.0, 2.0, 3.0])


class Pair(NamedTuple):
    first: Any
    second: Any


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

OF_TORCH: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
}


@pytest.mark.parametrize("f", [constant, of_torch], ids=["ours", "torch's"])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
def test_a_constant_of_an_inner_transform_is_a_result_like_any_other(
    f: Callable[..., Any], around: Callable[[Callable[..., Any]], Any]
) -> None:
    assert (around(f) + 0).tolist() == [2.0, 4.0, 6.0]


def sine_kept_by(transform: Callable[[Callable[..., Any], Any], Any]) -> Callable[[Any], Any]:
    """The sine of the argument, which the function of a transform inside keeps."""

    def inner(x: Any, kept: list[Tensor]) -> Any:
        def total(a: Any) -> Any:
            kept.append(a.sin())
            return a.sum()

        return transform(total, x)

    return keeping(inner)


@pytest.mark.parametrize("transform", OF_TORCH.values(), ids=OF_TORCH.keys())
@pytest.mark.parametrize(
    "then",
    [
        lambda y: y,
        lambda y: y * 1,
        lambda y: func.vjp(lambda a: a, y)[0],
        lambda y: {"a": y},
        lambda y: Pair(y, ()),
        lambda y: [(y,), {}],
    ],
    ids=["itself", "in an op", "in a transform", "dictionary", "named tuple", "nested"],
)
def test_a_value_of_torchs_own_inner_transform_has_its_derivative(
    transform: Callable[..., Any], then: Callable[[Any], Any]
) -> None:
    def f(x: Any) -> Any:
        return then(sine_kept_by(transform)(x))

    output, pullback = func.vjp(f, X)
    ones = pytree.tree_map(torch.ones_like, output)
    torch.testing.assert_close(pullback(ones)[0], X.cos())
    (tangent,) = pytree.tree_leaves(func.jvp(f, (X,), (torch.ones(3),))[1])
    torch.testing.assert_close(tangent, X.cos())


def test_a_batch_of_torchs_own_that_outlives_its_vmap_is_refused() -> None:
    def inner(x: Any, kept: list[Tensor]) -> Any:
        def scaled(a: Any) -> Any:
            kept.append(a * x)
            return a

        return torch.vmap(scaled)(x)

    f = keeping(inner)
    with pytest.raises(EscapedValue, match="a transform of torch's own is used"):
        func.vjp(f, X)
    with pytest.raises(EscapedValue, match="a transform of torch's own is used"):
        func.jvp(f, (X,), (X,))


def written(a: Any) -> Tensor:
    return torch.zeros(3).copy_(a)


def written_view(a: Any) -> Tensor:
    b = torch.zeros(3)
    b[1:].add_(a[1:])
    return b


@pytest.mark.parametrize("f", [written, written_view])
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp"])
def test_a_write_to_a_buffer_that_torchs_transform_wraps_is_refused(
    f: Callable[[Any], Tensor], transform: str
) -> None:
    def inner(x: Any, kept: list[Tensor]) -> Any:
        def total(a: Any) -> Any:
            kept.append(f(a))
            return a.sum()

        return OF_TORCH[transform](total, x)

    nested = keeping(inner)
    with pytest.raises(InplaceError, match="cannot take on its history"):
        func.vjp(nested, X)
    with pytest.raises(InplaceError, match="cannot take on its history"):
        func.jvp(nested, (X,), (X,))
    torch.testing.assert_close(func.vjp(f, X)[1](X)[0], torch.func.vjp(f, X)[1](X)[0])


def test_a_write_to_a_buffer_is_recorded_under_torchs_vmap() -> None:
    def f(x: Any) -> Any:
        return torch.vmap(lambda a: a * written(x), in_dims=0)(x)

    torch.testing.assert_close(func.jacrev(f)(X), torch.func.jacrev(f)(X))


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
