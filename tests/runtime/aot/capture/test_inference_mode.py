"""Programs that compute in inference mode or under no_grad, in part or as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime

from .boundary_helpers import compiled

F = torch.nn.functional
COMPOSITE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: F.linear(x, x),
    "outer": lambda x: torch.outer(x.flatten(), x[0]),
    "einsum": lambda x: torch.einsum("ij,ij->i", x.view_as(x), x),
    "rrelu": lambda x: F.rrelu(x.as_strided((2,), (1,)) * 1),
    "matmul of a stack": lambda x: torch.matmul(x.expand(2, 2, 3), x.t()),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(
        x[None], x[None], x[None]
    ),
}
"""Ops that ATen makes of others, which take views."""


@pytest.mark.parametrize("f", COMPOSITE.values(), ids=COMPOSITE.keys())
def test_composite_ops_run_in_inference_mode(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def inside(x: Any) -> Any:
        with torch.inference_mode():
            y = f(x)
        return x * 2, y.clone()

    x = torch.arange(6.0).reshape(2, 3) / 4
    expected = f(x)
    torch.testing.assert_close(compiled(inside)(x), (x * 2, expected))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(f)(x), expected)
        torch.testing.assert_close(compiled(f)(x * 1), expected)  # an inference tensor


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2.5


def tripled(x: Any) -> Any:
    return Tripled.apply(x)  # type: ignore[no-untyped-call]


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "a leaf": lambda leaf: leaf,
    "an intermediate": lambda leaf: leaf * 1,
    "a view": lambda leaf: (leaf * 1).view(-1),
    "a constant": lambda leaf: leaf.detach(),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS.keys())
@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.view(-1)[1:]], ids=["itself", "a view of it"]
)
def test_a_function_that_writes_without_grad_mode_returns_what_it_does_in_torch(
    view: Any, argument: Any, whole: bool, mode: Any
) -> None:
    def f(x: Any) -> Any:
        with mode():
            v = view(x)
            y = tripled(v)
        return v, y, y

    def seen(leaf: Any, wrapped: Callable[[Any], Any]) -> Any:
        x = argument(leaf)
        with mode() if whole else torch.enable_grad():
            v, y, again = wrapped(f)(x)
        flags = [(t.requires_grad, t.is_leaf) for t in (x, y)]
        return (
            v is x,
            y is x,
            y is v,
            y is again,
            flags,
            x.detach().tolist(),
            y.data_ptr() - x.data_ptr(),
        )

    expected = seen(torch.ones(2, 3, requires_grad=True), lambda f: f)
    for wrapped in (lambda f: f, compiled):
        assert seen(runtime.wrap(torch.ones(2, 3), requires_grad=True), wrapped) == expected


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_function_that_writes_to_shared_memory_leaves_no_value_of_the_trace(
    requires_grad: bool, mode: Any
) -> None:
    def f(x: Any, y: Any) -> Any:
        v = tripled(x)
        return torch.full_like(v, 2), v * y, v

    x = runtime.wrap(torch.ones(2, 3), requires_grad=requires_grad) * 1
    part = x[::2]
    with mode():
        found = compiled(f)(x, part)
    assert [runtime.unwrap(t).tolist() for t in found] == [
        [[2.0] * 3] * 2,
        [[9.0] * 3] * 2,
        [[3.0] * 3] * 2,
    ]
    assert all(type(runtime.unwrap(t)) is torch.Tensor for t in found)


def test_geometry_changes_in_place_without_grad_mode() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            x.t_()
        return x * 2

    def seen(leaf: Any, start: Callable[[Any], Any], f: Any, grad: Any) -> Any:
        x = start(leaf)
        y = f(x)
        return x.shape, y.shape, runtime.unwrap(grad(y.sin().sum(), leaf)[0])

    row = torch.tensor([0.5, 1.5])
    # t_() of a row leaves it as it is
    expected = seen(row.clone().requires_grad_(), lambda t: t, f, torch.autograd.grad)
    assert str(
        seen(
            runtime.wrap(row.clone(), requires_grad=True),
            lambda t: t,
            compiled(f),
            runtime.autograd.grad,
        )
    ) == str(expected)
    with pytest.raises(
        RuntimeError, match=r"the argument is a leaf\. Its gradient would have those from before"
    ):
        compiled(f)(runtime.wrap(torch.ones(2, 3), requires_grad=True))
    found = seen(
        runtime.wrap(torch.ones(2, 3), requires_grad=True),
        lambda t: t * 1,
        compiled(f),
        runtime.autograd.grad,
    )
    assert found[:2] == ((3, 2), (3, 2)) and found[2].shape == (2, 3)


@pytest.mark.parametrize("around", [torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("removed", [True, False])
def test_a_hook_that_the_program_registers_on_an_argument_is_registered_by_every_call(
    around: Any, removed: bool
) -> None:
    def f(x: Any) -> Any:
        handle = x.register_hook(lambda g: g * 2)
        if removed:
            handle.remove()
        return x.detach() * 3

    def seen(leaf: Any, f: Any, grad: Any) -> Any:
        x = leaf * 1
        for _ in range(2):
            with around():
                f(x)
        return runtime.unwrap(grad(x.sum(), leaf)[0]).tolist()

    expected = seen(torch.ones(2, requires_grad=True), f, torch.autograd.grad)
    assert (
        seen(runtime.wrap(torch.ones(2), requires_grad=True), compiled(f), runtime.autograd.grad)
        == expected
    )


@pytest.mark.parametrize(
    "f",
    [torch.atleast_2d, torch.Tensor.contiguous, torch.Tensor.resolve_conj],
    ids=["2d", "contiguous", "conj"],
)
def test_an_op_that_returns_its_argument_returns_the_callers_tensor_in_inference_mode(
    f: Callable[[Any], Any],
) -> None:
    for x in (
        torch.ones(2, 2),
        torch.ones(2, 2, requires_grad=True) * 1,
        runtime.wrap(torch.ones(2, 2), True) * 1,
    ):
        with torch.inference_mode():
            assert f(x) is x
            assert compiled(f)(x) is x


TRANSFORMED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "grad beside an op": lambda func, x: (func.grad(lambda t: (t * x).sin().sum())(x), x.sin()),
    "a view of a gradient": lambda func, x: func.grad(lambda t: t.sin().sum())(x).unsqueeze(0),
    "vjp after a write": lambda func, x: func.vjp(torch.sin, x.mul_(2))[1](x),
    "a gradient that is written to": lambda func, x: func.grad(lambda t: t.sin().sum())(x).mul_(2),
    "jvp": lambda func, x: func.jvp(torch.sin, (x,), (x,)),
    "vmap": lambda func, x: func.vmap(torch.sin)(x),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "inference", [False, True], ids=["an ordinary argument", "an inference tensor"]
)
@pytest.mark.parametrize("f", TRANSFORMED.values(), ids=TRANSFORMED.keys())
def test_results_that_a_transform_makes_in_inference_mode_are_ordinary_tensors(
    f: Any, inference: bool, dynamic: bool
) -> None:
    def seen(func: Any, wrapped: Callable[[Any], Any]) -> Any:
        with torch.inference_mode(inference):
            x = torch.arange(6.0).reshape(2, 3)
        with torch.inference_mode():
            found = wrapped(lambda x: f(func, x))(x)
        found = found if isinstance(found, tuple) else (found,)
        return x.tolist(), [
            (t.is_inference(), [round(v, 4) for v in t.flatten().tolist()]) for t in found
        ]

    expected = seen(torch.func, lambda f: f)
    assert seen(runtime.func, lambda f: compiled(f, dynamic=dynamic)) == expected
