"""The boundary of a program as a short text, which tests compare.

    lambda x, y: (x.t(), y.mul_(x))         # "d _wt0*1 -> i0.t i1 |  reach=(1,)"

Before the arrow stands each argument: ``d`` if its gradient is a result, ``w`` if its new
value is, ``t`` with the number of the new value's cotangent, ``*`` with the number of writes
that are counted, in brackets the changes of geometry (then ``~`` under no_grad), ``=`` how the
tensor is made whose memory it gets, ``o`` overwritten, ``h`` with the number of hooks, ``b``
begins to require grad.

After it stands each result: ``r`` or ``i`` with the number of the result of the graph or of the
argument, and the views that are taken of it (``~`` under no_grad). After the bar stands the number
of the cotangent of each result of the graph.

Inside: ``runtime.aot.capture.boundary``. The record of what a call does beside its graph. A call
shows that it was done, and not by which of several ways, for example how often a view was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from runtime.aot.capture.aliasing import Group
from runtime.aot.capture.boundary import Boundary, Input, Made, Output, ViewStep
from runtime.aot.capture.joint import joint_graph


def boundary_of(
    f: Callable[..., Any],
    differentiate: Sequence[bool] = (True, False),
    given: Sequence[Any] | None = None,
    groups: Sequence[Group] = (),
    bases: Sequence[torch.Tensor] = (),
    **options: Any,
) -> str:
    """The boundary of ``f`` on two tensors of ones, or on ``given``."""
    inputs = [torch.ones(2, 3) for _ in differentiate] if given is None else given
    return text(
        joint_graph(f, inputs, differentiate, groups=groups, bases=bases, **options).boundary
    )


def text(b: Boundary) -> str:
    inputs, outputs = " ".join(map(_input, b.inputs)), " ".join(map(_output, b.outputs))
    found = f"{inputs} -> {outputs} | {' '.join('-' if t is None else str(t) for t in b.tangents)}"
    names = ("repeated", "released", "backward_written", "begun", "other_mode", "reach", "once")
    for name in names:
        found += f" {name}={getattr(b, name)}" if getattr(b, name) else ""
    return found + (
        " placed=" + ", ".join(f"{a.number}:{_output(a.place)}" for a in b.placed)
        if b.placed
        else ""
    )


def _step(s: ViewStep) -> str:
    return (
        s.func._schema.name.split("::")[1]
        + ("" if s.which is None else f"#{s.which}")
        + ("" if s.recorded else "~")
    )


def _output(o: Output) -> str:
    start = (
        repr(o.constant)
        if o.made is Made.CONSTANT
        else f"{'r' if o.made is Made.RESULT else 'i'}{o.number}"
    )
    flags = [f"+{flag}" for flag in ("leaf", "sized", "released") if getattr(o, flag)]
    return (
        start
        + "".join(f".{_step(s)}" for s in o.steps)
        + "".join(flags)
        + ("" if o.recorded else "-unrecorded")
    )


def _input(x: Input) -> str:
    found = (
        ("d" if x.differentiated else "_")
        + ("w" if x.written else "")
        + ("" if x.tangent is None else f"t{x.tangent}")
    )
    found += (f"*{x.counted}" if x.counted else "") + (
        f"[{','.join(map(_step, x.reshaped))}]" if x.reshaped else ""
    )
    found += ("~" if x.reshaped_unseen else "") + (
        "" if x.replaced is None else f"={_output(x.replaced)}"
    )
    return (
        found
        + ("o" if x.overwritten else "")
        + (f"h{len(x.hooks)}" if x.hooks else "")
        + ("b" if x.begins else "")
    )
