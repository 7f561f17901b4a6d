"""Custom ops run with the formulas that their authors registered with torch.library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from runtime import func
from runtime.errors import MissingRule


@torch.library.custom_op("runtime_tests::scaled_sin", mutates_args=())
def scaled_sin(x: Tensor, factor: float = 2.0, *, shift: float = 0.0) -> Tensor:
    return factor * torch.sin(x + shift)


def _setup(
    ctx: Any, inputs: tuple[Tensor, float], keyword_only_inputs: dict[str, float], output: Tensor
) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.factor, ctx.shift = inputs[1], keyword_only_inputs["shift"]


def _backward(ctx: Any, g: Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return g * ctx.factor * torch.cos(x + ctx.shift), None


scaled_sin.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("runtime_tests::cubed", mutates_args=())
def cubed(x: Tensor) -> Tensor:
    return x**3


@torch.library.custom_op("runtime_tests::weighed", mutates_args=())
def weighed(x: Tensor, weights: list[Tensor], bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x * weights[0], x + weights[1] if bias is None else x + weights[1] + bias


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], inputs[1][0])
    ctx.with_bias = inputs[2] is not None


def _weighed_backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    assert ctx.needs_input_grad[1] == [True, True]
    return g * weight + h, [g * x, h], h if ctx.with_bias else None


weighed.register_autograd(_weighed_backward, setup_context=_keep)
weighed.register_vmap(lambda info, in_dims, x, weights, bias: (weighed(x, weights, bias), (0, 0)))


@torch.library.custom_op("runtime_tests::tripled_", mutates_args=("x",))
def tripled_(x: Tensor) -> None:
    x.mul_(3)


@torch.library.custom_op("runtime_tests::negated", mutates_args=())
def negated(x: Tensor) -> Tensor:
    return -x


negated.register_autograd(lambda ctx, g: -g)  # which needs nothing from the forward pass


@torch.library.custom_op("runtime_tests::spread", mutates_args=())
def spread(x: Tensor, times: int, *, scale: float = 1.0, offset: float = 0.0) -> Tensor:
    return scale * x[..., None].repeat(*[1] * x.dim(), times) + offset


@spread.register_vmap
def _(
    info: Any, in_dims: Any, x: Tensor, times: int, *, scale: float, offset: float
) -> tuple[Tensor, int]:
    assert len(in_dims) == 2 and in_dims[1] is None
    return spread(x.movedim(in_dims[0], 0), times, scale=scale, offset=offset), 0


batched_calls: list[int] = []


@cubed.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
    batched_calls.append(info.batch_size)
    return cubed(x), in_dims[0]


X = torch.linspace(-1, 1, 5, dtype=torch.float64)


@pytest.mark.parametrize("kwargs", [{}, {"shift": 0.3}])
def test_the_registered_backward_is_the_gradient_at_every_level(kwargs: dict[str, float]) -> None:
    x = runtime.wrap(X, requires_grad=True)
    scaled_sin(x, 3.0, **kwargs).sum().backward()
    slope = 3 * torch.cos(X + kwargs.get("shift", 0.0))
    assert x.grad is not None and torch.equal(runtime.unwrap(x.grad), slope)
    assert torch.equal(func.grad(lambda x: scaled_sin(x, 3.0, **kwargs).sum())(X), slope)


def test_a_backward_may_do_without_a_setup() -> None:
    x = runtime.wrap(X, requires_grad=True)
    (negated(x) * x).sum().backward()
    assert x.grad is not None and torch.equal(runtime.unwrap(x.grad), -2 * X)
    assert torch.equal(func.grad(lambda x: negated(x).sum())(X), -torch.ones_like(X))


@pytest.mark.parametrize(
    "kwargs", [{}, {"scale": 3.0}, {"offset": 5.0}, {"scale": 2.0, "offset": -1.0}], ids=str
)
def test_the_registered_vmap_is_given_what_only_keywords_pass(kwargs: Any) -> None:
    x = torch.stack([X, X + 1], 1)
    expected = torch.stack([spread(x[:, i], 2, **kwargs) for i in range(2)])
    assert torch.equal(func.vmap(lambda x: spread(x, 2, **kwargs), in_dims=1)(x), expected)


def test_it_is_differentiated_again() -> None:
    second = func.grad(lambda x: func.grad(lambda x: scaled_sin(x).sum())(x).sum())(X)
    torch.testing.assert_close(second, -2 * torch.sin(X))


def test_the_registered_vmap_serves_a_whole_batch_at_once() -> None:
    batched_calls.clear()
    assert torch.equal(func.vmap(cubed)(X), X**3)
    assert batched_calls == [5]


def test_an_op_without_a_formula_says_so_by_name() -> None:
    with pytest.raises(MissingRule, match=r"runtime_tests\.cubed\.default has no vjp rule"):
        func.grad(lambda x: cubed(x).sum())(X)


@pytest.mark.parametrize("bias", [None, torch.ones(5, dtype=torch.float64)])
def test_lists_of_tensors_have_a_gradient_each(bias: Tensor | None) -> None:
    def loss(x: Tensor, v: Tensor, w: Tensor) -> Any:
        y, z = weighed(x, [v, w], bias)
        return (y * z).sum()

    args = X, X + 2, X - 3
    expected = torch.func.grad(
        lambda x, v, w: (x * v * (x + w if bias is None else x + w + bias)).sum(), (0, 1, 2)
    )(*args)
    torch.testing.assert_close(func.grad(loss, (0, 1, 2))(*args), expected)
    of_list = tuple(runtime.wrap(a, requires_grad=True) for a in args[1:])
    y, z = weighed(X, list(of_list), bias)
    (y * z).sum().backward()
    torch.testing.assert_close(tuple(runtime.unwrap(t.grad) for t in of_list), expected[1:])
    batch = tuple(torch.stack([a, a + 1]) for a in args)
    rows = [func.grad(loss, (0, 1, 2))(*(b[i] for b in batch)) for i in range(2)]
    stacked = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    torch.testing.assert_close(func.vmap(func.grad(loss, (0, 1, 2)))(*batch), stacked)


@pytest.mark.filterwarnings("ignore:.*has no batch rule")
def test_an_op_that_writes_and_returns_nothing_is_looped_over() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        assert tripled_(y) is None
        return y

    assert torch.equal(func.vmap(f)(X.view(5, 1)), 3 * X.view(5, 1))
