"""``make_fx`` of programs that ask for gradients: the graph has the calls of the backward pass, and
gives for other numbers what the program gives for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime.aot import make_fx
from tests.runtime.trace.graphs import close, targets

MODES = ["real", "fake", "symbolic"]
W = nn.Parameter(torch.tensor([[0.5, -1.0], [2.0, 0.25]]))


def leaf(*rows: list[float]) -> Any:
    return torch.tensor(rows, requires_grad=True)


X, OTHER = ([0.3, -0.7], [1.5, 0.2]), ([-1.1, 0.4], [0.6, 2.0])


def of_an_argument(x: Any) -> Any:
    (x**3).sum().backward()
    return x.grad


def twice_into_grad(x: Any) -> Any:
    (x**2).sum().backward()
    x.sin().sum().backward()
    return x.grad


def after_zeroing(x: Any) -> Any:
    (x**2).sum().backward()
    x.grad = None
    x.sin().sum().backward()
    return x.grad


def retained(x: Any) -> Any:
    y = (x**2).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


def of_a_gradient(x: Any) -> Any:
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return torch.autograd.grad((g**2).sum(), x)[0]


def of_what_is_closed_over(x: Any) -> Any:
    return torch.autograd.grad((x @ W).sin().sum(), [x, W])


def of_several_outputs(x: Any) -> Any:
    y, z = x.sin(), x.exp()
    return torch.autograd.grad([y, z], x, [torch.ones_like(y), z])[0]


def of_a_leaf_inside(x: Any) -> Any:
    z = x.detach().requires_grad_()
    (z**3).sum().backward()
    return z.grad


def of_a_factory(x: Any) -> Any:
    z = torch.full((2, 2), 3.0, requires_grad=True)
    (z * x.detach()).sum().backward()
    return z.grad


def by_hooks(x: Any) -> Any:
    y = x.sin()
    y.register_hook(lambda g: g * 3)
    y.retain_grad()
    y.sum().backward()
    return x.grad, y.grad


def by_a_hook_for_the_whole(x: Any) -> Any:
    seen: list[Any] = []
    z = x.detach().requires_grad_()
    z.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad * 2))
    (z**2).sum().backward()
    return seen[0]


def by_a_written_view(x: Any) -> Any:
    y = x.clone()
    y[0].mul_(x[1])
    return torch.autograd.grad((y**2).sum(), x)[0]


def by_what_is_asked(x: Any) -> Any:
    flags = x.requires_grad, (x @ W).requires_grad, x.is_leaf, (x + 1).grad_fn is not None
    return x * sum(2**i * flag for i, flag in enumerate(flags))


def by_a_step(x: Any) -> Any:
    (g,) = torch.autograd.grad((x @ W).sin().sum(), W)
    return W - 0.1 * g


PROGRAMS: list[Callable[[Any], Any]] = [
    of_an_argument,
    twice_into_grad,
    after_zeroing,
    retained,
    of_a_gradient,
    of_what_is_closed_over,
    of_several_outputs,
    of_a_leaf_inside,
    of_a_factory,
    by_hooks,
    by_a_hook_for_the_whole,
    by_a_written_view,
    by_what_is_asked,
    by_a_step,
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_graph_has_the_backward_pass_of_its_program(
    program: Callable[[Any], Any], mode: str
) -> None:
    expected = program(leaf(*OTHER))  # by torch's engine
    module = make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True)(leaf(*X))
    close(module(leaf(*OTHER)), expected)
    assert not any("autograd" in str(target) for target in targets(module))


@pytest.mark.parametrize("mode", MODES)
def test_tensors_of_the_session_are_leaves_too(mode: str) -> None:
    w = runtime.wrap(torch.tensor([2.0, -3.0]), requires_grad=True)

    def program(x: Any) -> Any:
        (x * x * w).sum().backward()
        return x.grad, w.grad

    x = runtime.wrap(torch.tensor([1.0, 4.0]), requires_grad=True)
    module = make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    # 2 x w, and x squared
    close(
        module(torch.tensor([5.0, 0.5])), (torch.tensor([20.0, -3.0]), torch.tensor([25.0, 0.25]))
    )
    assert x.grad is None and w.grad is None


def test_a_trace_leaves_gradients_as_they_are_and_a_replay_adds_to_them() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.full((2,), 10.0)

    def program(x: Any) -> Any:
        (p * x).sum().backward()
        assert p.grad is not None
        return p.grad * 1

    module = make_fx(program)(torch.tensor([1.0, 2.0]))
    close(p.grad, torch.full((2,), 10.0))
    close(module(torch.tensor([3.0, 4.0])), torch.tensor([13.0, 14.0]))
    close(p.grad, torch.tensor([13.0, 14.0]))


def test_hooks_that_an_argument_has_are_in_the_graph() -> None:
    x = leaf([1.0, 2.0])
    x.register_hook(lambda g: g * 5)
    module = make_fx(lambda x: torch.autograd.grad((x**2).sum(), x)[0])(x)
    close(module(torch.tensor([[3.0, 1.0]])), torch.tensor([[30.0, 10.0]]))


def test_an_argument_with_a_history_is_refused_by_line() -> None:
    x = leaf([1.0, 2.0]) * 2

    def program(x: Any) -> Any:
        (x**2).sum().backward()

    with pytest.raises(RuntimeError, match=r"history from before the trace.*test_recording\.py"):
        make_fx(program)(x)


def test_a_write_to_a_leaf_is_the_error_that_it_is_outside() -> None:
    with pytest.raises(RuntimeError, match="leaf"):
        make_fx(lambda x: x.mul_(2))(leaf([1.0, 2.0]))
