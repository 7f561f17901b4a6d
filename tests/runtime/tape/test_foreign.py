"""Tensors of the session combined with plain tensors that require grad: no gradient of torch's own
engine is lost silently."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime


def ours() -> Any:
    return runtime.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)


def plain() -> torch.Tensor:
    return torch.tensor([[3.0, 4.0], [5.0, 6.0]], requires_grad=True)


class Square(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g * ctx.saved_tensors[0]


def _written(x: Any, value: Any) -> Any:
    y = x * 1
    y[0] = value[1]
    return y


MEETINGS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda x, w: x * w,
    "the other way": lambda x, w: w @ x,
    "cat": lambda x, w: torch.cat([x, w]),
    "where": lambda x, w: torch.where(x > 1, w, x),
    "in place": lambda x, w: (x * 1).mul_(w),
    "linear": lambda x, w: F.linear(x, w),
    "through linear": lambda x, w: F.linear(x * w, ours(), ours()[0]),
    "through layer_norm": lambda x, w: F.layer_norm(x * w, (2,), torch.tensor([1.0, 2.0])),
    "through matmul": lambda x, w: torch.stack([x * w, x]) @ ours(),
    "through a view": lambda x, w: (x * w).t()[0].clone(),
    "through a write": lambda x, w: _written(x, x * w),
    "through a write of what only torch records": lambda x, w: _written(x, x.detach() * w) * x,
    "through an in-place method": lambda x, w: x.detach().clone().mul_(x.detach() * w) * x,
    "through a Function": lambda x, w: Square.apply(x * w) + x,
    "recorded by torch": lambda x, w: x * (w * 2),
    "grad": lambda x, w: runtime.func.grad(lambda x: (x * x * w).sum())(x),
    "the value beside grad": lambda x, w: runtime.func.grad_and_value(lambda x: (x * x * w).sum())(
        x
    )[1],
    "vjp": lambda x, w: runtime.func.vjp(lambda x: x * w, x)[0],
    "its pullback": lambda x, w: runtime.func.vjp(lambda y: y * y * w, x)[1](x)[0],
    "jvp": lambda x, w: runtime.func.jvp(lambda y: y * y * w, (x,), (x,))[0],
    "its tangent": lambda x, w: runtime.func.jvp(lambda y: y * y * w, (x,), (x,))[1],
    "vmap": lambda x, w: runtime.func.vmap(lambda y: y * w)(x),
    "nested": lambda x, w: runtime.func.vmap(runtime.func.grad(lambda y: (y * y * w).sum()))(x),
}
everywhere = pytest.mark.parametrize("meet", list(MEETINGS.values()), ids=list(MEETINGS))


@everywhere
def test_a_pass_for_all_leaves_refuses_to_lose_the_gradient_of_a_plain_one(meet: Any) -> None:
    x, w = ours(), plain()
    with pytest.raises(RuntimeError, match=r"plain torch tensor that requires grad.*runtime\.wrap"):
        meet(x, w).sum().backward()
    assert x.grad is None and w.grad is None


@everywhere
def test_what_is_asked_for_by_name_is_given(meet: Any) -> None:
    x, w = ours(), plain()
    torch.manual_seed(0)
    (found,) = runtime.autograd.grad(meet(x, w).sum(), x)
    torch.manual_seed(0)
    meet(x, w).sum().backward(inputs=[x])
    assert torch.equal(x.grad, found) and found.abs().sum() > 0


@everywhere
def test_detached_or_wrapped_it_is_no_obstacle(meet: Any) -> None:
    x, w = ours(), plain()
    meet(x, w.detach()).sum().backward()
    assert w.grad is None
    wrapped = runtime.wrap(w, requires_grad=True)
    meet(x, wrapped).sum().backward()
    assert wrapped.grad is not None
    with torch.no_grad():
        y = meet(x, w)
    (y + x.sum()).sum().backward()


def test_a_module_of_plain_parameters_is_refused_too() -> None:
    module, x = torch.nn.Linear(2, 2), ours()
    with pytest.raises(RuntimeError, match="plain torch tensor that requires grad"):
        module(x).sum().backward()
    module(x).sum().backward(inputs=[x])
    torch.testing.assert_close(
        x.grad, module.weight.sum(0).detach().expand(2, 2), check_dtype=False
    )
    module.requires_grad_(False)(x).sum().backward()


def test_a_leaf_that_only_torch_knows_is_named_as_such() -> None:
    with pytest.raises(RuntimeError, match="plain torch tensor that requires grad"):
        (runtime.tensor([1.0, 2.0]) * plain()).sum().backward()


def test_a_function_hands_the_gradient_to_a_plain_leaf() -> None:
    w = plain()
    Square.apply(w).sum().backward()
    assert torch.equal(w.grad, 2 * w.detach())  # type: ignore[arg-type]


def test_transforms_close_over_modules_without_noise() -> None:
    module = torch.nn.Linear(2, 1)
    x = torch.ones(2)
    slope = runtime.func.grad(lambda x: module(x).sum())(x)
    assert torch.equal(slope, module.weight[0].detach()) and not slope.requires_grad


def test_torchs_engine_says_that_it_does_not_know_the_result_of_a_transform() -> None:
    w = plain()
    slope = runtime.func.grad(lambda x: (x * w).sum())(torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(slope.sum(), w)


def test_a_plain_input_of_a_pass_is_named_as_such() -> None:
    x, w = ours(), plain()
    with pytest.raises(RuntimeError, match="input 1 is a plain torch tensor that requires grad"):
        runtime.autograd.grad((x * w).sum(), [x, w])
    with pytest.raises(RuntimeError, match="input 0 is a plain torch tensor that requires grad"):
        (x * w).sum().backward(inputs=[w])
