"""What runs beside a program, or in its place: a thread that it starts, a function of C; and what
is behind many objects that it makes."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.aot import aot_function, nop

each_way = pytest.mark.parametrize(
    "way", [jit, lambda f: aot_function(f, nop)], ids=["jit", "aot_function"]
)


@pytest.mark.parametrize("ask", [os.getcwd, gc.isenabled, torch.Generator().initial_seed])
def test_a_program_that_is_a_function_of_c_is_refused_with_the_line_of_the_call(ask: Any) -> None:
    with pytest.raises(
        RuntimeError, match=rf"calls .*{ask.__name__}, .*test_threads_and_functions_of_c\.py:"
    ):
        jit(ask)()


def _in_a_thread(compute: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(compute()))
    thread.start()
    thread.join()
    return found[0]


@each_way
@pytest.mark.parametrize("where", ["program", "hook of its result"])
def test_a_thread_that_a_program_starts_is_refused_with_the_line(where: str, way: Any) -> None:
    weight = torch.tensor(3.0)

    def multiply(x: Any) -> Any:
        return _in_a_thread(lambda: x * weight.item())

    def with_a_hook(x: Any) -> Any:
        result = x * 2
        result.register_hook(multiply)
        return result

    f = {"program": multiply, "hook of its result": with_a_hook}[where]
    running = threading.active_count()
    with pytest.raises(
        RuntimeError, match=r"starts a thread\..*test_threads_and_functions_of_c\.py:"
    ):
        way(f)(torch.ones(1, requires_grad=True))
    assert threading.active_count() == running


def test_a_tensor_behind_many_objects_is_found_in_what_a_program_assigns() -> None:
    holder = SimpleNamespace(log=None)

    def f(x: Tensor) -> Tensor:
        holder.log = [*((number,) for number in range(12_000)), (x * 2,)]
        return x + 1

    jit(f)(torch.ones(2))
    assert type(holder.log[-1][0]) is Tensor
    assert holder.log[-1][0].tolist() == [2.0, 2.0]
