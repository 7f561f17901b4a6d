"""What a backward pass outside of the jitted call would change in Python's state is refused with
the line. A pass that the program runs itself changes it in each call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import runtime
from runtime import jit


def _held() -> Any:
    return SimpleNamespace(n=0, seen=[], items={"k": 0}, last=None, log=[])


def _count(held: Any) -> None:
    held.n += 10


def _append(held: Any) -> None:
    held.seen.append(1)


def _item(held: Any) -> None:
    held.items["k"] += 1


def _flag(held: Any) -> None:
    held.last = "backward"


CHANGES: dict[str, Callable[[Any], None]] = {
    "a number": _count,
    "a list": _append,
    "an item": _item,
    "a flag": _flag,
}


def _doubling(held: Any, change: Callable[[Any], None]) -> Any:
    class Doubling(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            held.n += 1
            held.log.append(held.n)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            change(held)
            return g * 2

    return Doubling


def _leaf() -> Any:
    return runtime.wrap(torch.ones(2), requires_grad=True)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_the_backward_of_a_function_is_refused(name: str) -> None:
    held = _held()
    doubling = _doubling(held, CHANGES[name])
    compiled = jit(lambda x: doubling.apply(x))
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"in the backward pass of a result(.|\n)*\.py:\d+"):
            compiled(_leaf())
    assert vars(held) == vars(_held())


def test_a_change_in_a_hook_is_refused() -> None:
    held = _held()

    def program(x: Any) -> Any:
        y = x * 2
        y.register_hook(lambda g: _append(held))
        return y * 3

    with pytest.raises(RuntimeError, match="in the backward pass of a result"):
        jit(program)(_leaf())
    assert held.seen == []


def test_the_call_runs_in_eager_mode_if_that_is_wanted() -> None:
    held = _held()
    doubling = _doubling(held, _count)
    compiled = jit(lambda x: doubling.apply(x), on_break="eager")
    with pytest.warns(UserWarning, match="backward pass"):
        result = compiled(_leaf())
    assert held.n == 1
    result.sum().backward()
    assert held.n == 11


def test_what_the_forward_changes_is_changed_by_each_call() -> None:
    held = _held()
    doubling = _doubling(held, lambda held: None)
    compiled = jit(lambda x: doubling.apply(x))
    for calls in range(1, 5):
        compiled(_leaf()).sum().backward()
        assert held.n == calls and held.log == list(range(1, calls + 1))


def test_a_pass_that_the_program_runs_changes_state_in_each_call() -> None:
    held = _held()
    doubling = _doubling(held, _count)

    @jit
    def step(x: Any) -> Any:
        (gradient,) = runtime.autograd.grad(doubling.apply(x).sum(), x)
        return gradient

    for calls in range(1, 5):
        assert step(_leaf()).tolist() == [2.0, 2.0]
        assert held.n == 11 * calls
