"""What each thread is doing now: its backward pass, its dual level of forward mode."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..seam.ambient import Ambient
from ..seam.levels import Level


class _Running(Ambient):
    task: Any = None  # the backward pass, a GraphTask of the engine


RUNNING = _Running()


class _Forward(Ambient):
    """``dual``: the dual level of ``forward_ad``; ``off_below``: levels of smaller numbers compute no tangents, as an inner transform
    began while forward mode was off."""

    dual: Any = None
    off_below: int = 0


FORWARD = _Forward()
DUALS: set[weakref.ref[Any]] = set()  # of all threads that live. Empty, it answers for every one, and FORWARD need not be asked


_enabled = torch._C._is_fwd_grad_enabled
_set_enabled = torch._C._set_fwd_grad_enabled


def computes_tangents(number: int) -> bool:
    """Whether forward mode is on for the level of that number."""
    return number >= FORWARD.off_below and _enabled()


def with_forward_mode(level: Level, func: Callable[..., Any], args: Any) -> Any:
    """``func(*args)`` as the function of a new ``level``, with forward mode on for it, and for outer levels if it is on now."""
    enabled, off_below = _enabled(), FORWARD.off_below
    if not enabled:
        FORWARD.off_below = level.number
    _set_enabled(True)
    try:
        return level.run_inside(func, args, {})
    finally:
        FORWARD.off_below = off_below
        _set_enabled(enabled)


def current_dual() -> Any:
    """The dual level of ``forward_ad`` that this thread is in."""
    return FORWARD.dual if DUALS else None


def current_graph_task_id() -> int:
    """The number of the running backward pass, -1 where there is none."""
    return -1 if RUNNING.task is None else RUNNING.task.id


def current_node() -> Any:
    """The node that runs now, if a backward pass does."""
    return None if RUNNING.task is None else RUNNING.task.node


def current_graph_is_retained() -> bool:
    """Whether the graph outlives the running backward pass; True where there is none."""
    return RUNNING.task is None or RUNNING.task.keep_graph
