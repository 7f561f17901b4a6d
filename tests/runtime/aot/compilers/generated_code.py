"""The code that ``nop`` generates for a graph, as a traceback shows it: its frame has the text, and
the functions that it calls."""

from __future__ import annotations

import re
from types import FrameType
from typing import Any

from torch import fx

from runtime.aot import nop


class Stop(Exception):
    """Raised by a graph at its end, so that there is a traceback."""


def stop() -> None:
    raise Stop


def frame_of(module: fx.GraphModule, *args: Any) -> FrameType:
    """Return the frame of the code that runs ``module``, at its end or at the call that fails. The
    second call generates the code."""
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        stopped = module.graph.call_function(stop)
    output.args = ((output.args[0], stopped),)  # a call that nothing uses is left out
    run: Any = nop(module, list(args))
    for _ in range(2):
        try:
            run(list(args))
        except Exception as error:
            found = error
    trace = found.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<replay of"):
            return trace.tb_frame
        trace = trace.tb_next
    raise AssertionError("no code was generated")


def source_of(code: Any) -> list[str]:
    """Return the lines of generated code. ``code``: its globals."""
    lines: list[str] = code["__loader__"].get_source("").splitlines()
    return lines


def text_of(module: fx.GraphModule, *args: Any) -> list[str]:
    """Return the lines of the code that runs ``module``, without its name and the places in the
    user's program."""
    head, *shown = source_of(frame_of(module, *args).f_globals)
    assert head == "def run(args):"
    lines = [line.removeprefix("    ").partition("  # ")[0] for line in shown]
    *body, stopped, last = lines
    before, _, after = last.partition("return (")
    assert stopped.strip().startswith("v_stop =") and after.endswith(", v_stop, )")
    return [*body, f"{before}return {after.removesuffix(', v_stop, )')}"]


def call_in(module: fx.GraphModule, *args: Any) -> tuple[Any, str]:
    """Return the function that stands for the one call of ``module``, and the text of its
    arguments."""
    frame = frame_of(module, *args)
    for line in source_of(frame.f_globals):
        found = re.search(r"v_\w+ = (\w+)\((.*?)\)(?:  # .*)?$", line)
        if found is not None and "v_stop" not in line:
            return frame.f_globals[found[1]], found[2]
    raise AssertionError("the code has no call")
