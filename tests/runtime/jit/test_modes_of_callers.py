"""A mode over torch's functions that a caller enters around a call, or around its backward pass."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

import runtime
from runtime.aot import aot_function, nop

DOORS = [runtime.jit, lambda f, **options: aot_function(f, nop, **options)]
door = pytest.mark.parametrize("door", DOORS, ids=["jit", "aot_function"])


class Scaled(TorchFunctionMode):
    """Multiplies each sine and each product, and lists what it sees."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", ""))
        result = func(*args, **kwargs or {})
        if func in (torch.sin, torch.cos, torch.mul):
            return result * self.factor
        return result


def _under(factor: float) -> AbstractContextManager[object]:
    """Return a mode with ``factor``, or no mode for 0."""
    return Scaled(factor) if factor else nullcontext()


@door
@pytest.mark.parametrize("order", [(0, 0, 2, 0, 2, 2, 0), (3, 0, 0, 3, 2, 3, 0), (2, 2, 2, 0, 0)])
def test_each_call_does_what_its_mode_does_once(door: Any, order: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    run, x = door(program), torch.ones(2)
    for factor in order:
        with _under(factor):
            result = run(x)
        assert torch.equal(result, x.sin() * (factor or 1) + 1)


@door
def test_a_mode_sees_each_call(door: Any) -> None:
    run = door(lambda x: torch.sin(x).tanh())
    run(torch.ones(2))
    for _ in range(3):
        with Scaled(1.0) as mode:
            run(torch.ones(2))
        assert mode.seen.count("sin") == mode.seen.count("tanh") == 1


@door
def test_a_default_device_is_no_reason_to_run_a_program_as_it_is(door: Any) -> None:
    runs: list[torch.device] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        made = torch.ones(2)
        runs.append(made.device)
        return x.to(made.device) + made

    run = door(program, ignore=[runs])
    for device in ("cpu", "meta", "cpu", "meta", "cpu", "meta"):
        with torch.device(device):
            assert run(torch.ones(2, device="cpu")).device.type == device
    # one capture for each device
    assert len(set(runs)) == len(runs) == 2


@door
@pytest.mark.parametrize("second", [False, True])
def test_a_mode_sees_no_formula_of_a_backward_pass(door: Any, second: bool) -> None:
    run = door(lambda x: x.sin() * x)
    for _ in range(3):
        x: Any = runtime.tensor([1.0, 2.0], requires_grad=True)
        y = run(x).sum()
        with Scaled(3.0):
            (g,) = runtime.autograd.grad(y, x, create_graph=second)
            if second:
                (g,) = runtime.autograd.grad(g.sum(), x)
        x = x.detach()
        expected = 2 * x.cos() - x * x.sin() if second else x.cos() * x + x.sin()
        torch.testing.assert_close(g, expected)


@door
def test_a_mode_that_would_see_a_hook_in_a_pass_is_refused_with_the_line(door: Any) -> None:
    def hooked(x: Any) -> Any:
        y = x * 3
        y.register_hook(lambda g: torch.mul(g, 3))  # the line
        return y.sin()

    run = door(hooked)
    for _ in range(2):
        x = runtime.tensor([1.0], requires_grad=True)
        y = run(x)
        with Scaled(2.0), pytest.raises(RuntimeError, match=r"Scaled, is on .* # the line"):
            runtime.autograd.grad(y, x)
        # and is none without the mode
        (g,) = runtime.autograd.grad(y, x)
        torch.testing.assert_close(g, 9 * (3 * x.detach()).cos())


class Doubled(torch.nn.Parameter):
    """A parameter whose sines are doubled."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return result * 2 if func is torch.sin else result


@door
@pytest.mark.parametrize(
    "order", [(False, False, True, False, True), (True, True, False, True, False)]
)
def test_a_call_that_classes_do_not_see_is_of_another_kind(
    door: Callable[..., Any], order: tuple[bool, ...]
) -> None:
    weight = Doubled(torch.ones(2), requires_grad=False)
    run = door(lambda x: torch.sin(weight) * x)
    for unseen in order:
        with torch._C.DisableTorchFunctionSubclass() if unseen else nullcontext():
            result = run(torch.ones(2))
        assert torch.equal(result, torch.ones(2).sin() * (1 if unseen else 2))


@door
@pytest.mark.parametrize("flag", [False, True])
def test_a_class_does_to_each_call_what_it_does_once(door: Any, flag: bool) -> None:
    weight = Doubled(torch.ones(2), requires_grad=flag)

    run = door(lambda x: torch.sin(weight) * x * weight)
    for count in range(4):
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        y = run(x)
        (g,) = runtime.autograd.grad(y.sum(), x)
        plain = weight.detach().as_subclass(torch.Tensor)
        torch.testing.assert_close(g, plain.sin() * 2 * plain)
        torch.testing.assert_close(y.detach(), g * x.detach())
        # the alias that the graph gets has the new elements
        with torch.no_grad():
            weight.fill_(0.5 + count)


class Twice(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


def _parametrized() -> Any:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    return parametrize.register_parametrization(layer, "weight", Twice())


@door
@pytest.mark.parametrize("first", [False, True])
def test_a_call_takes_the_weights_that_the_caller_lets_torch_keep(door: Any, first: bool) -> None:
    layer, one = _parametrized(), torch.ones(1, 1)
    compiled = door(lambda x: layer(x))
    if first:
        assert compiled(one) == 2
    with parametrize.cached():
        for _ in range(3):
            assert compiled(one) == layer(one) == 2
            with torch.no_grad():
                layer.parametrizations.weight.original.mul_(3)
    assert compiled(one) == layer(one) == 54


def test_a_program_may_let_torch_keep_weights() -> None:
    layer, one = _parametrized(), torch.ones(1, 1)

    @runtime.jit
    def program(x: torch.Tensor) -> Any:
        with parametrize.cached():
            return layer(x) + layer(x)

    for number in (1, 3):
        with torch.no_grad():
            layer.parametrizations.weight.original.fill_(number)
        assert program(one) == 4 * number
    assert len(runtime.jit.explain(program).programs) == 1
