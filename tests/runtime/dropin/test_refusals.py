"""What torch's transforms refuse is refused under the drop-in, or gives the value of eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtime.dropin.compare import both


def begun(y: Any) -> Any:
    return (y * y.requires_grad_()).sum()


def begun_of_a_result(y: Any) -> Any:
    return (y * 2).requires_grad_().sum()


def begun_of_a_constant(y: Any) -> Any:
    return (y * y.detach().requires_grad_()).sum()


def begun_of_a_factory(y: Any) -> Any:
    return (y * torch.ones(3).requires_grad_()).sum()


def ended(y: Any) -> Any:
    return y.requires_grad_(False).sum()


def retained(y: Any) -> Any:
    z = y * 2
    z.retain_grad()
    return z.sum()


def back(y: Any) -> Any:
    z = y.sin().sum()
    z.backward()
    return z


def hooked(y: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return y.sin().sum()


def saved_on_cpu(y: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return y.sin().sum()


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: torch.func.grad(f)(torch.ones(3)),
    "vjp": lambda f: torch.func.vjp(f, torch.ones(3))[0],
    "jacrev": lambda f: torch.func.jacrev(f)(torch.ones(3)),
    "hessian": lambda f: torch.func.hessian(f)(torch.ones(3)),
    "grad of grad": lambda f: torch.func.grad(lambda y: torch.func.grad(f)(y).sum())(torch.ones(3)),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f))(torch.ones(2, 3)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "body",
    [
        begun,
        begun_of_a_result,
        begun_of_a_constant,
        begun_of_a_factory,
        ended,
        retained,
        back,
        hooked,
        saved_on_cpu,
    ],
    ids=lambda f: f.__name__,
)
def test_a_transform_has_its_own_leaves_and_saved_tensors(body: Any, transform: str) -> None:
    found, expected = both(lambda: TRANSFORMS[transform](body))
    assert expected[0][0] == found[0][0] == "RuntimeError"


@pytest.mark.parametrize("transform", ["grad", "vjp", "jacrev", "vmap of grad"])
def test_the_flag_may_be_set_where_a_tensor_has_it(transform: str) -> None:
    def body(y: Any) -> Any:
        y.requires_grad = True
        return y.sin().sum()

    found, expected = both(lambda: TRANSFORMS[transform](body))
    assert found == expected and "Error" not in str(expected)


AUX: dict[str, Callable[[Any], Any]] = {
    "a number": lambda y: 1.0,
    "None": lambda y: None,
    "text": lambda y: "text",
    "a pair with a number": lambda y: (y, 1),
    "a list of numbers": lambda y: [1, 2],
    "an object": lambda y: object(),
    "tensors": lambda y: {"a": y, "b": [y * 2, (y,)]},
    "nothing": lambda y: [],
}
WITH_AUX: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, x: torch.func.grad(f, has_aux=True)(x),
    "grad_and_value": lambda f, x: torch.func.grad_and_value(f, has_aux=True)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x, has_aux=True)[2],  # type: ignore[misc]
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,), has_aux=True),
    "jacrev": lambda f, x: torch.func.jacrev(f, has_aux=True)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f, has_aux=True)(x),
}


@pytest.mark.parametrize("way", WITH_AUX)
@pytest.mark.parametrize("aux", AUX)
def test_aux_is_made_of_tensors(aux: str, way: str) -> None:
    found, expected = both(
        lambda: WITH_AUX[way](lambda y: (y.sin().sum(), AUX[aux](y)), torch.ones(3))
    )
    refused = aux not in ("tensors", "nothing")
    assert ("RuntimeError" in str(expected)) is refused
    assert "RuntimeError" in str(found) if refused else found == expected


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


OUTER: list[Any] = []


def adding_to_an_outer_tensor(y: Any) -> Any:
    OUTER[-1].add_(1.0)
    return (OUTER[-1] * y).sum()


# docs/parity.md says why these are answered
@pytest.mark.parametrize(
    ("body", "transform", "value"),
    [
        (adding_to_an_outer_tensor, "grad", torch.ones(3)),
        (adding_to_an_outer_tensor, "jacrev", torch.ones(3)),
        (lambda y: Doubled.apply(y).sum(), "functionalize", torch.tensor(6.0)),  # type: ignore[no-untyped-call]
    ],
    ids=["a write", "a write, jacrev", "a Function"],
)
def test_what_torch_cannot_do_has_the_value_of_eager_code(
    body: Any, transform: str, value: torch.Tensor
) -> None:
    def program() -> Any:
        OUTER.append(torch.zeros(3))
        if transform == "functionalize":
            return torch.func.functionalize(body)(torch.ones(3)).tolist()
        return TRANSFORMS[transform](body).tolist(), OUTER[-1].tolist()

    found, expected = both(program)
    assert expected[0][0] == "RuntimeError"
    if transform == "functionalize":
        assert found[0] == value.tolist()
        return
    assert found[0][0] == value.tolist()
    assert found[0][1] == [float(body is adding_to_an_outer_tensor)] * 3
