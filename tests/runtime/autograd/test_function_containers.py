"""A Function gets the lists and dictionaries of the caller, as torch's does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from runtime.func import grad, jvp, vmap


class Noted(runtime.autograd.Function):
    """Multiplies by an item of a dictionary, and notes that in a list."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, table: dict[str, Any], log: list[Any]) -> Any:
        log.append(table["factor"])
        return x * table["factor"]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.table = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.table["factor"], None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *others: object) -> Any:
        return tangent * ctx.table["factor"]


DOORS: dict[str, Callable[[Callable[[Tensor], Any], Tensor], Any]] = {
    "plain": lambda f, x: f(x),
    "session": lambda f, x: f(runtime.wrap(x, requires_grad=True)),
    "grad": lambda f, x: grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "vmap": lambda f, x: vmap(f)(x),
    "functionalize": lambda f, x: runtime.func.functionalize(f)(x),
    "jit": lambda f, x: runtime.jit(f)(x),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_a_function_changes_in_a_list_is_there_afterwards(door: str) -> None:
    table, log = {"factor": 2.0}, [1.0]
    DOORS[door](lambda x: Noted.apply(x, table, log), torch.ones(3))
    assert log == [1.0, 2.0]


def test_each_call_of_a_program_changes_the_list_that_it_is_given() -> None:
    program = runtime.jit(lambda x, table, log: Noted.apply(x, table, log))
    table, log = {"factor": 2.0}, [1.0]
    for _ in range(3):
        program(torch.ones(3), table, log)
    assert log == [1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("door", ["grad", "jvp", "vmap", "jit"])
def test_a_list_of_tensors_that_a_function_changes_is_refused(door: str) -> None:
    def program(x: Any) -> Any:
        return Noted.apply(x, {"factor": 2.0}, [x * 1])

    with pytest.raises(RuntimeError, match="changes a list or dictionary of tensors"):
        DOORS[door](program, torch.ones(3))
