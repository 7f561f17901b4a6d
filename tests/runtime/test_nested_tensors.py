"""Nested tensors have no sizes, which everything here is built on: wherever one comes in, an error says what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

import runtime
from runtime import func, wrap
from runtime.dropin import installed
from runtime.errors import NestedTensor

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
LAYOUTS = pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
REFUSED = pytest.raises(NestedTensor, match=r"torch\.stack")


def parts() -> list[torch.Tensor]:
    return [torch.ones(2, 3), torch.ones(1, 3)]


def nested(layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor(parts(), layout=layout)


def leaf(*shape: int) -> Any:
    return wrap(torch.ones(shape), requires_grad=True)


@pytest.fixture
def routed() -> Iterator[None]:
    with installed():
        yield


@LAYOUTS
def test_a_nested_tensor_cannot_be_wrapped(layout: torch.layout) -> None:
    with REFUSED:
        wrap(nested(layout))


@LAYOUTS
@pytest.mark.parametrize("make", [torch.nested.nested_tensor, torch.nested.as_nested_tensor])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_runtime_tensors_do_not_become_a_nested_one(make: Callable[..., Any], layout: torch.layout, requires_grad: bool) -> None:
    with REFUSED:
        make([wrap(p, requires_grad) for p in parts()], layout=layout)


@pytest.mark.parametrize(
    "call",
    [
        lambda n: torch.nn.functional.linear(n, leaf(3, 3)),
        lambda n: n * leaf(3),
        lambda n: leaf(3, 3).mul(2).add_(n),
        lambda n: leaf(3).detach().copy_(n),
        lambda n: leaf(3).sin().backward(n),
        lambda n: runtime.autograd.grad(leaf(3).sin(), leaf(3), n),
    ],
    ids=["linear", "mul", "add_", "copy_", "backward", "grad"],
)
def test_a_nested_tensor_does_not_meet_runtime_tensors_in_an_op(call: Callable[[Any], Any]) -> None:
    with REFUSED:
        call(nested())


@pytest.mark.parametrize(
    "transform",
    [
        lambda n: func.vmap(torch.sin)(n),
        lambda n: func.grad(lambda x: x.sum())(n),
        lambda n: func.vjp(torch.sin, n),
        lambda n: func.jvp(torch.sin, (n,), (n,)),
        lambda n: func.vmap(lambda x: x * n)(torch.ones(2)),
    ],
    ids=["vmap", "grad", "vjp", "jvp", "captured"],
)
def test_a_nested_tensor_cannot_be_transformed(transform: Callable[[Any], Any]) -> None:
    with REFUSED:
        transform(nested())


@pytest.mark.usefixtures("routed")
@LAYOUTS
@pytest.mark.parametrize(
    "make",
    [
        lambda layout: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout),
        lambda layout: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout, requires_grad=True),
        lambda layout: torch.nested.nested_tensor([[1.0, 2.0], [3.0]], layout=layout, requires_grad=True),
        lambda layout: torch.nested.as_nested_tensor([torch.ones(2, requires_grad=True), torch.ones(3)], layout=layout),
    ],
    ids=["tensors", "tensors that require grad", "numbers", "a tensor that requires grad"],
)
def test_under_the_drop_in_no_nested_tensor_is_made(make: Callable[[torch.layout], Any], layout: torch.layout) -> None:
    with REFUSED:
        make(layout)


@LAYOUTS
def test_a_nested_tensor_from_before_cannot_require_grad_under_the_drop_in(layout: torch.layout) -> None:
    n = nested(layout)
    with installed(), REFUSED:
        n.requires_grad_()
    with installed(), REFUSED:
        n.requires_grad = True


def test_the_advice_works() -> None:
    first, second = leaf(2), leaf(1)
    padded = torch.stack([pad(p, (0, 2 - len(p))) for p in (first, second)])
    mask = torch.tensor([[True, True], [True, False]])
    (padded.exp() * mask).sum().backward()
    assert torch.equal(first.grad, torch.ones(2).exp()) and torch.equal(second.grad, torch.ones(1).exp())
