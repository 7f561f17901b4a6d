"""What a custom Function does in a jitted step happens as often as in eager mode."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit

CALLS: Counter[str] = Counter()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, rate: float) -> Any:
        CALLS["forward"] += 1
        return x * rate

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        CALLS["setup_context"] += 1
        ctx.save_for_backward(output)
        ctx.rate = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        CALLS["backward"] += 1
        return g * ctx.rate + 0 * ctx.saved_tensors[0], None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Any:
        CALLS["forward"] += 1
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        CALLS["setup_context"] += 1
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        CALLS["backward"] += 1
        return g * 2


def _scale(x: Tensor) -> Any:
    return Scaled.apply(x, 3.0)  # type: ignore[no-untyped-call]


def _double(x: Tensor) -> Any:
    return Doubled.apply(x * 1)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("apply", [_scale, _double])
def test_each_method_is_called_as_often_as_in_eager_mode(apply: Any) -> None:
    weight = nn.Parameter(torch.ones(3))

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        apply(weight * x).sum().backward()
        gradient: Any = weight.grad
        return torch.clone(gradient)

    CALLS.clear()
    expected, eager, compiled = step(torch.ones(3)), Counter(CALLS), jit(step)
    CALLS.clear()
    for calls in range(1, 4):
        assert torch.equal(compiled(torch.ones(3)), expected)
        assert {name: eager[name] * calls for name in eager} == CALLS


class Counted(nn.Parameter):
    """Count the functions of torch that get one of these."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        CALLS[f"{func.__name__} of {getattr(func, '__self__', None)}"] += 1
        own: Any = super()
        return own.__torch_function__(func, types, args, kwargs or {})


def _train(weight: Tensor, x: Tensor) -> Tensor:
    weight.grad = None
    (weight * x).sin().sum().backward()
    gradient: Any = weight.grad
    [again] = torch.autograd.grad((weight * weight).sum(), weight)
    with torch.no_grad():
        weight.sub_(gradient * 0.1)
    return torch.clone(gradient) + again


def _evaluate(weight: Tensor, x: Tensor) -> Tensor:
    return (weight.detach() * x).sum()


@pytest.mark.parametrize("program", [_train, _evaluate])
def test_a_class_of_parameters_sees_what_it_sees_in_eager_mode(program: Any) -> None:
    def run(wrap: Any) -> list[tuple[list[float], Counter[str]]]:
        weight, seen = Counted(torch.ones(3)), []
        step = wrap(lambda x: program(weight, x))
        for call in range(4):
            CALLS.clear()
            result = step(torch.full((3,), 1.0 + call))
            seen.append((result.tolist(), Counter(CALLS)))
        return seen

    assert run(jit) == run(lambda f: f)
