"""Custom Functions under ``forward_ad``: the rule of the session while a dual level is active."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..seam.levels import Value
from ..session.dual import DualSession, laid_out_like, unshared
from ..tape.running import computes_tangents
from .function import TANGENT_NOT_WRITTEN, position_of, record, rule

_enabled = torch._C._is_fwd_grad_enabled
_set_enabled = torch._C._set_fwd_grad_enabled


@rule(DualSession)
def _push(dual: DualSession, cls: Any, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Run ``forward`` on the tape with forward mode off. Then compute the tangents of its outputs
    by the ``jvp`` staticmethod."""
    enabled, on = _enabled(), computes_tangents(0)
    level = dual.session
    tangents = [
        dual.tangents.of(a) if on and isinstance(a, Value) and a._level is level else None
        for a in args
    ]
    versions = [None if t is None else t._version for t in tangents]
    _set_enabled(False)
    try:
        output, outs, ctx = record(level, cls, args)
        wrapped = output if isinstance(output, tuple) else (output,)
        if any(t is not None for t in tangents):
            found: Sequence[Any] = ctx.push(args, outs, tangents)
            for v, o, t in zip(wrapped, outs, found, strict=True):
                source = position_of(o, args)
                if source is not None and position_of(o, ctx.dirty_tensors) is not None:
                    _check_write(tangents[source], versions[source], t)
                elif t is not None and not _check_view(v, t, args, tangents):
                    t = unshared(t, tangents)
                if isinstance(v, Value) and v._level is level and ctx.differentiates(o):
                    dual.tangents.put(v._inner, None if t is None else laid_out_like(t, v._inner))
    finally:
        _set_enabled(enabled)
    ctx.forget_marks()
    return output, ctx


def _check_write(before: Any, version: int | None, t: Any) -> None:
    """Check an input that ``forward`` wrote to. Its tangent must have been written to as well, so
    that both keep their aliases."""
    if before is None:
        return
    if before._version == version:
        raise RuntimeError(TANGENT_NOT_WRITTEN)
    if t is not before:
        raise RuntimeError(
            "An inplace custom Function is not returning the forward mode gradients as-is. "
            "For an input that forward writes to (mark_dirty), "
            "jvp must return the very tangent that it was given."
        )


def _check_view(v: Any, t: Any, args: Sequence[Any], tangents: Sequence[Any]) -> bool:
    """Check an output that is a view of an input. Its tangent must be a view of that
    input's tangent."""
    view = getattr(v, "_view", None)
    if view is None or view.creation != "function":
        return False
    found = t._view if isinstance(t, Value) else None
    if found is None:
        raise RuntimeError(
            "A custom Function's forward is returning a view (or an input as-is) but the jvp "
            "is not returning a view."
        )
    for a, given in zip(args, tangents, strict=True):
        if given is None or (
            a is not view.base and (a._view is None or a._view.base is not view.base)
        ):
            continue
        if found.base is not (given if given._view is None else given._view.base):
            what = (
                "the given grad input"
                if given._view is None
                else "the same base as the given grad input"
            )
            raise RuntimeError(
                "A custom Function is returning a view but the jvp is not "
                f"returning a view of {what}."
            )
    return True
