"""Tensors of a user's class that a program makes inside of a transform, of values of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.func import functionalize, jvp, linearize, vjp, vmap

Tensor = torch.Tensor
X = torch.tensor([[0.1, -0.7], [1.3, 0.4]], dtype=torch.float64)
ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "first": lambda x, two: x * two,
    "last": lambda x, two: two * x,
}


def product(x: Tensor, order: Callable[[Any, Any], Any]) -> tuple[Tensor, Tensor]:
    both = order(x, TwoTensor(x, x.cos())) * 2
    return both.a, both.b


def of_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * x * 2, x * x.cos() * 2


WAYS: dict[str, Callable[[Any], Any]] = {
    "functionalize": lambda f: functionalize(f)(X),
    "vmap": lambda f: vmap(f)(X),
    "jvp": lambda f: jvp(f, (X,), (X,))[1],
    "vjp": lambda f: vjp(f, X)[1]((X, X)),
    "linearize": lambda f: linearize(f, X)[1](X),
    "jvp of functionalize": lambda f: jvp(functionalize(f), (X,), (X,))[1],
    "functionalize of jvp": lambda f: functionalize(lambda x: jvp(f, (x,), (x,))[1])(X),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", WAYS)
def test_the_class_handles_a_call_with_a_value_beside_it(way: str, order: str) -> None:
    """Whichever comes first: torch asks the class of the first argument first."""
    found = WAYS[way](lambda x: product(x, ORDERS[order]))
    torch.testing.assert_close(found, WAYS[way](of_parts))


def test_a_write_to_it_is_a_write_to_its_parts() -> None:
    def written(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1
        two = TwoTensor(y, y.cos())
        two.mul_(2)
        two[0].add_(1)
        return two.a, two.b, y

    torch.testing.assert_close(functionalize(written)(X), written(X))


@pytest.mark.parametrize("transform", [functionalize, vmap])
def test_one_from_outside_beside_one_made_inside_is_refused(transform: Any) -> None:
    def sum_of_both(x: Tensor, two: Any) -> Any:
        return two + TwoTensor(x, x)

    with pytest.raises(RuntimeError, match=r"(?s)a TwoTensor that comes from .*test_user_classes"):
        transform(sum_of_both)(X, TwoTensor(X, X))


def test_tensors_of_the_session_inside_of_one_have_their_gradients() -> None:
    leaf: Any = runtime.wrap(X, True)
    a, b = product(leaf, ORDERS["last"])
    (a.sum() + b.sum()).backward()
    (expected,) = vjp(of_parts, X)[1]((torch.ones_like(X), torch.ones_like(X)))
    torch.testing.assert_close(runtime.unwrap(leaf.grad), expected)
