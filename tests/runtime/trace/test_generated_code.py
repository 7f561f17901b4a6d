"""Generated functions show their lines to tracebacks, debuggers and profilers, and
leave nothing behind."""

from __future__ import annotations

import gc
import io
import linecache
import pdb
import traceback
from typing import Any

import torch

from runtime import jit
from runtime.trace.generated_code import function


def _half() -> Any:
    return function(
        ["def half(a):", "    b = a", "    return b / 0"],
        "half",
        "<halves>",
        {},
        {1: (__file__, 1, "half")},
    )


def _shown(f: Any, *args: object) -> str:
    try:
        f(*args)
    except Exception as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("the call raises")


def test_a_traceback_shows_the_generated_line() -> None:
    assert "in half\n    return b / 0\n" in _shown(_half(), 1)


def test_a_line_is_followed_by_that_of_the_user() -> None:
    half = _half()
    lines = linecache.getlines(half.__code__.co_filename, half.__globals__)
    assert (
        lines[1].startswith(f'    b = a  # {__file__}:1: """Generated functions')
        and lines[2] == "    return b / 0\n"
    )


def test_two_functions_have_lines_of_their_own() -> None:
    first, second = _half(), function(["def half(a):", "    return 1 / a"], "half", "<halves>", {})
    assert (
        "return b / 0" in _shown(first, 1)
        and "return 1 / a" in _shown(second, 0)
        and "return b / 0" in _shown(first, 1)
    )


def test_lines_that_were_shown_are_freed_with_the_function() -> None:
    half = _half()
    name = half.__code__.co_filename
    _shown(half, 1)
    assert name in linecache.cache
    del half
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
