"""Leaves that a jitted step makes itself have gradients as in an eager one, and what it leaves
changed of torch's modes is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import runtime
from runtime import func, jit
from runtime.extend import Level, Value, transform
from runtime.jit import explain

from .training import Wrap, both, left, linear, normal

LEAVES: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: torch.zeros(3, requires_grad=True),
    "ones_like": lambda x: torch.ones_like(x, requires_grad=True),
    "randn": lambda x: torch.randn(3, requires_grad=True),
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
    "new_ones": lambda x: x.new_ones(3, requires_grad=True),
    "linspace": lambda x: torch.linspace(0, 1, 3, requires_grad=True),
    "a parameter": lambda x: nn.Parameter(x),
    "a detached argument": lambda x: x.detach().requires_grad_(),
    "a layer": lambda x: nn.Linear(3, 1, bias=False).weight,
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_that_the_step_makes_gets_its_gradient(name: str) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            leaf = LEAVES[name](x)
            assert leaf.requires_grad and leaf.is_leaf
            (x * leaf * leaf).sum().backward()
            assert leaf.grad is not None
            return leaf.grad.clone(), leaf.detach()

        run = wrap(f)
        torch.manual_seed(5)
        return [t for i in range(3) for t in run(normal(i, 3))]

    both(program)


def test_a_step_on_tensors_of_the_session_has_one_program_for_any_sizes() -> None:
    """The parameters enter the capture when ``zero_grad`` asks for their gradients, and what makes
    them abstract reads ``.grad`` too."""
    leaf = runtime.wrap(torch.ones(3), True)
    optimizer = torch.optim.SGD([leaf], lr=0.5)

    @jit
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (x * leaf).mean().backward()
        optimizer.step()

    for rows in (2, 2, 4, 6, 2):
        step(torch.full((rows, 3), 6.0))
    assert [p.dynamic for p in explain(step).programs] == [False, True]
    assert leaf.tolist() == [-4.0] * 3 and leaf.grad.tolist() == [2.0] * 3


# of a vector x, such that the derivative of the sum is 3 x²
class OwnValue(Value):
    """A tensor within a transform of a user's."""


class OwnLevel(Level):
    """The level of a transform that changes nothing."""

    what, values = "a transform of a user's", OwnValue


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: func.vmap(lambda a: a**3)(x),
    "vjp": lambda x: func.vjp(lambda a: a**3, x)[0],
    "jvp": lambda x: func.jvp(lambda a: a**3, (x,), (torch.ones_like(x.detach()),))[0],
    "a tangent": lambda x: func.jvp(lambda a: a**3, (x.detach(),), (x,))[1],
    "jacfwd": lambda x: func.jacfwd(lambda a: a**4)(x) / 4,
    "hessian": lambda x: func.hessian(lambda a: (a**5).sum())(x) / 20,
    "a user's transform": lambda x: transform(OwnLevel)(lambda a: a**3)(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_parameter_that_is_given_to_a_transform_gets_its_gradient(name: str) -> None:
    f = TRANSFORMED[name]
    parameter = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    @jit
    def step(x: Tensor) -> None:
        parameter.grad = None
        (f(parameter).sum() * x).backward()

    for k in (1.0, 2.0):
        step(torch.tensor(k))
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, 3 * k * parameter.detach() ** 2)


def of_session() -> Any:
    return runtime.wrap(torch.ones(3), True)


def of_torch() -> Any:
    return nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("by", ["method", "attribute"])
@pytest.mark.parametrize("ends_frozen", [True, False])
@pytest.mark.parametrize("make", [of_session, of_torch])
def test_a_leaf_whose_gradient_is_dropped_while_it_is_frozen(
    make: Callable[[], Any], by: str, ends_frozen: bool
) -> None:
    leaf, other = make(), make()

    def learns(flag: bool) -> None:
        if by == "method":
            leaf.requires_grad_(flag)
        else:
            leaf.requires_grad = flag

    @jit
    def step(x: Tensor) -> None:
        leaf.grad = other.grad = None
        learns(True)
        (x * leaf).sum().backward()
        learns(False)
        (x * x * leaf * other).sum().backward()
        learns(not ends_frozen)

    for factor in (2.0, 3.0):
        step(torch.full((3,), factor))
        assert leaf.grad.tolist() == [factor] * 3 and other.grad.tolist() == [factor**2] * 3
        assert leaf.requires_grad is not ends_frozen and other.requires_grad


def test_a_leaf_that_the_step_makes_and_returns_requires_grad() -> None:
    assert jit(lambda x: torch.zeros(3, requires_grad=True))(torch.ones(3)).requires_grad


def test_a_step_on_perturbed_inputs_has_the_bits_of_eager_steps() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.Adam(model.parameters())
        found: list[Tensor | None] = []

        def step(x: Tensor, y: Tensor) -> None:
            noise = torch.zeros_like(x, requires_grad=True)
            F.mse_loss(model(x + noise), y).backward()
            assert noise.grad is not None
            optimizer.zero_grad()
            F.mse_loss(model(x + 0.1 * noise.grad.sign()), y).backward()
            optimizer.step()

        run = wrap(step)
        for i in range(4):
            run(normal(i, 8, 4), normal(-i, 8, 2))
            found += left(model)
        return found

    both(program)


def test_a_step_may_train_a_layer_of_its_own() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        def f(x: Tensor) -> list[Tensor]:
            layer = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                layer(x).square().mean().backward()
                optimizer.step()
            return [p.detach() for p in layer.parameters()]

        run = wrap(f)
        torch.manual_seed(4)
        return [t for i in range(3) for t in run(normal(i, 8, 4))]

    both(program)


def _without_grad() -> Any:
    torch.set_grad_enabled(False)


def _in_double() -> Any:
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("change", [_without_grad, _in_double])
def test_modes_that_the_program_leaves_changed_are_refused(change: Callable[[], Any]) -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        y = x * 2
        change()
        return y

    try:
        with pytest.raises(RuntimeError, match="Change them in a with statement"):
            f(torch.ones(2))
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)


def test_a_default_dtype_that_the_program_computes_with_is_refused_with_its_line() -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.zeros(2)
        finally:
            torch.set_default_dtype(torch.float32)

    with pytest.raises(RuntimeError, match=r"default dtype that it has set.*test_leaves.py"):
        f(torch.ones(2))
