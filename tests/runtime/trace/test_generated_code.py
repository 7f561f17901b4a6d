"""Generated functions show their lines to tracebacks, debuggers and profilers, and
leave nothing behind."""

from __future__ import annotations

import gc
import io
import linecache
import pdb
import traceback
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.aot import aot_function, nop

X = torch.ones(3)


def element(x: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    return y[i]


def other_element(x: Tensor, i: Tensor) -> Tensor:
    y = x.sin()
    return y[i]


def compiled(f: Any) -> Any:
    """Return a compiled function whose program has run twice, so that the second call compiled its
    text. (A call of a jitted one would fail in eager mode.)"""
    function = aot_function(f, nop)
    for _ in range(2):
        function(X, torch.tensor([1]))
    return function


def failure(f: Any) -> tuple[str, CodeType]:
    """The traceback of a call that reads an element which is not there, and the generated code."""
    with pytest.raises(IndexError) as raised:
        f(X, torch.tensor([7]))
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    codes = [frame.f_code for frame in frames if frame.f_code.co_filename.startswith("<replay")]
    return "".join(traceback.format_exception(raised.value)), codes[-1]


def test_a_traceback_shows_the_generated_line_and_the_line_of_the_user() -> None:
    shown, code = failure(compiled(element))
    number = element.__code__.co_firstlineno
    assert f"# {__file__}:{number + 2}: return y[i]\n" in shown
    lines = linecache.getlines(code.co_filename)
    assert any(line.endswith(f"  # {__file__}:{number + 1}: y = x * 2\n") for line in lines)


def test_two_functions_have_lines_of_their_own() -> None:
    first, second = compiled(element), compiled(other_element)
    codes = [failure(f)[1] for f in (first, second, first)]
    texts = ["".join(linecache.getlines(code.co_filename)) for code in codes]
    assert ["y = x * 2" in text for text in texts] == [True, False, True]
    assert ["y = x.sin()" in text for text in texts] == [False, True, False]


def test_lines_that_were_shown_are_freed_with_the_function() -> None:
    function = compiled(element)
    name = failure(function)[1].co_filename
    assert name in linecache.cache
    del function
    gc.collect()
    assert name not in linecache.cache


def test_a_debugger_enters_the_replay_of_a_jitted_function() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y.cos()

    compiled, x = jit(f), torch.ones(2)
    compiled(x), compiled(x)
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("step\n" * 160 + "continue\n"), stdout=out, readrc=False)
    debugger.runcall(compiled, x)
    assert (
        "-> def take(given):" in out.getvalue()
        and f"= sin_0(v_primals_1)  # {__file__}" in out.getvalue()
    )
    assert "y = x.sin()" in out.getvalue()
