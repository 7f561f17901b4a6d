"""A transform that runs a function several times writes to tensors from outside once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.errors import InplaceError
from runtime.func import functionalize, grad, jacfwd, jvp, linearize, vmap

Body = Callable[[Any], Any]
EYE = torch.eye(3)


class World:
    """What the functions of this module write to."""

    def __init__(self) -> None:
        self.x = torch.tensor([0.1, 0.2, 0.3])
        self.total = torch.tensor([1.0, 2.0, 3.0])
        self.leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        self.norm = torch.nn.BatchNorm1d(3)

    def state(self) -> list[torch.Tensor]:
        tensors = [self.x, self.total, self.leaf.detach(), *self.norm.buffers()]
        return [t.clone() for t in tensors]


def _to_a_tensor(world: World, y: Any) -> Any:
    world.total.mul_(2)
    return world.total * y * y


def _after_its_use(world: World, y: Any) -> Any:
    out = world.total * y * y
    world.total.add_(1)
    return out


def _to_a_view(world: World, y: Any) -> Any:
    world.total[:2].mul_(2)
    return world.total * y * y


def _of_the_input(world: World, y: Any) -> Any:
    world.total.mul_(y)
    return world.total * y


def _to_the_input(world: World, y: Any) -> Any:
    y.mul_(2)
    return y * y


def _to_a_leaf(world: World, y: Any) -> Any:
    with torch.no_grad():
        world.leaf.mul_(2)
    return world.leaf.detach() * y * y


def _to_running_statistics(world: World, y: Any) -> Any:
    return world.norm(y * torch.tensor([[1.0], [3.0]]))


def _to_a_tensor_of_its_own(world: World, y: Any) -> Any:
    made = torch.zeros(3)
    made.add_(1)
    return y.clone().mul_(made).sin_()


def _nothing(world: World, y: Any) -> Any:
    y = y * 2
    y.detach_()
    return y * world.total


BODIES = {
    f.__name__.strip("_"): f
    for f in (
        _to_a_tensor,
        _after_its_use,
        _to_a_view,
        _of_the_input,
        _to_the_input,
        _to_a_leaf,
        _to_running_statistics,
        _to_a_tensor_of_its_own,
        _nothing,
    )
}


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
@pytest.mark.parametrize("chunk_size", [1, 2, 3])
@pytest.mark.parametrize("body", BODIES)
def test_a_jacobian_in_chunks_is_that_of_one_run(
    body: str, chunk_size: int, randomness: str
) -> None:
    whole, parts = World(), World()
    expected = jacfwd(lambda y: BODIES[body](whole, y))(whole.x)
    try:
        found = jacfwd(
            lambda y: BODIES[body](parts, y), randomness=randomness, chunk_size=chunk_size
        )(parts.x)
    except InplaceError as error:
        # a plain tensor that has become a value of the run has its history
        assert body == "of_the_input" and "world.total.mul_(y)" in str(error)
        return
    torch.testing.assert_close(found, expected)
    assert all(map(torch.equal, parts.state(), whole.state()))


@pytest.mark.parametrize("body", BODIES)
def test_linearize_writes_once(body: str) -> None:
    whole, other = World(), World()
    expected = jvp(lambda y: BODIES[body](whole, y), (whole.x,), (torch.ones(3),))
    value, push = linearize(lambda y: BODIES[body](other, y), other.x)
    assert all(map(torch.equal, other.state(), whole.state()))
    torch.testing.assert_close((value, push(torch.ones(3))), expected)


@pytest.mark.parametrize(
    "around",
    [
        lambda f: functionalize(f)(torch.ones(3)),
        lambda f: vmap(f)(torch.ones(1, 3)),
        lambda f: grad(lambda x: f(x).sum())(torch.ones(3)),
    ],
    ids=["functionalize", "vmap", "grad"],
)
def test_a_write_that_cannot_be_undone_is_refused_before_the_second_run(around: Any) -> None:
    def columns(x: Any) -> Any:
        outer = x * 2

        def body(y: Any) -> Any:
            outer.mul_(2)  # a history at the outer level
            return outer * y

        return jacfwd(body, chunk_size=1)(torch.ones(3))

    with pytest.raises(InplaceError, match=r"several times.*outer\.mul_\(2\)"):
        around(columns)


class Passing(TorchDispatchMode):
    """Calls every op again, as the modes of users do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _detaching(y: Any) -> Any:
    z = y * 2
    z.detach_()
    return (z * y).sum()


def test_detach_reaches_its_level_under_a_mode() -> None:
    x = torch.tensor([0.1, 0.2, 0.3])
    with Passing():  # type: ignore[no-untyped-call]
        assert torch.equal(grad(_detaching)(x), 2 * x)
        assert torch.equal(jvp(_detaching, (x,), (torch.ones(3),))[1], (2 * x).sum())
    assert torch.equal(vmap(grad(_detaching), randomness="different")(x[None]), 2 * x[None])
