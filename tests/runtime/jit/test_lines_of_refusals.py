"""Refusals that are raised when the program has returned name a line of it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import runtime


def _seed(x: Any) -> Any:
    return x * 1 + torch.initial_seed() * 0  # the line


def _hooked(x: Any) -> Any:
    y = x * 1
    y.register_hook(lambda g: g * 2)  # the line
    return y.sin()


def _packed(x: Any) -> Any:
    pack: Callable[[Any], Any] = lambda t: t  # noqa: E731
    unpack: Callable[[Any], Any] = lambda t: t * 2  # noqa: E731  # the line
    with runtime.autograd.graph.saved_tensors_hooks(pack, unpack):
        return x * x


@pytest.mark.parametrize("program", [_hooked, _packed])
def test_a_second_derivative_that_code_in_the_pass_hides(program: Any) -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    y = runtime.jit(program)(x).sum()
    with pytest.raises(RuntimeError, match=r"no second derivative here.*# the line"):
        runtime.autograd.grad(y, x, create_graph=True)


def test_a_seed_that_the_program_asks_for() -> None:
    with pytest.raises(RuntimeError, match=r"calls torch.Generator.initial_seed.*test_lines"):
        runtime.jit(_seed)(torch.ones(2))


def test_a_lazy_module() -> None:
    layer = torch.nn.LazyLinear(3)

    def program(x: Any) -> Any:
        return layer(x)

    with pytest.raises(RuntimeError, match=r"lazy module.*It happened at .*test_lines"):
        runtime.jit(program)(torch.ones(2, 4))


def _drawing(x: Any) -> Any:
    return x * random.random()  # the line of the draw


def test_a_draw_in_a_checkpointed_function() -> None:
    def program(x: Any) -> Any:
        return checkpoint(_drawing, x, use_reentrant=False)

    line = _drawing.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError, match=rf"draws from random.*test_lines_of_refusals.py:{line}"):
        runtime.jit(program)(torch.ones(2, requires_grad=True))
