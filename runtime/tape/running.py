"""Stores the state of each thread: its running backward pass, its dual level of forward mode, and
what stands in for the session.

Example: within ``forward_ad.dual_level()`` of a thread, a dual level stands in for the session, so
that it sees every call of the session's tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..seam.ambient import Ambient
from ..seam.call_types import Arguments
from ..seam.escapes import living
from ..seam.levels import Level
from ..torch_private.native_autograd import is_forward_enabled, set_forward_enabled


class _Running(Ambient):
    """The backward pass that this thread runs, a ``GraphTask`` of the engine."""

    task: Any = None


RUNNING = _Running()


class _Forward(Ambient):
    """The state of forward mode on this thread."""

    # the dual level of ``forward_ad``
    dual: Any = None
    # levels of smaller numbers compute no tangents, because an inner transform began while forward
    # mode was off
    off_below: int = 0


FORWARD = _Forward()


class _StandIn(Ambient):
    """``session``: what handles this thread's calls of the session: a dual level, or one that
    follows samples. None: the session."""

    session: Any = None


STAND_IN = _StandIn()
# those of all threads. While it is empty, STAND_IN need not be read, which is slower
STAND_INS: set[weakref.ref[object]] = set()


def stand_in(session: object) -> None:
    """Let ``session`` handle this thread's calls of the session, until :func:`step_down`."""
    STAND_IN.session = session
    # a thread may end without `step_down`: then the reference takes itself out
    STAND_INS.add(weakref.ref(session, STAND_INS.discard))


def step_down() -> None:
    """Let the session handle its calls again."""
    # two references to one living object are equal
    STAND_INS.discard(weakref.ref(STAND_IN.session))
    STAND_IN.session = None


@contextmanager
def unfollowed() -> Iterator[None]:
    """Let the session handle its calls itself in this block."""
    session, STAND_IN.session = STAND_IN.session, None
    try:
        yield
    finally:
        STAND_IN.session = session


def current_stand_in() -> Any:
    """Return the handler of this thread's calls of the session, or None."""
    if not STAND_INS:
        return None
    return STAND_IN.session


def computes_tangents(number: int) -> bool:
    """Return whether forward mode is on for the level of that number."""
    return number >= FORWARD.off_below and is_forward_enabled()


def with_forward_mode(level: Level, func: Callable[..., object], args: Arguments) -> Any:
    """Call ``func(*args)`` as the function of ``level``. Forward mode is on for this level, and for
    outer levels if it is on now."""
    enabled, off_below = is_forward_enabled(), FORWARD.off_below
    # torch has one flag for all levels. Once it is on, the number says for which it was off.
    if not enabled:
        FORWARD.off_below = level.number
    set_forward_enabled(True)
    try:
        return living(level.run_inside(func, args, {}))
    finally:
        FORWARD.off_below = off_below
        set_forward_enabled(enabled)


def current_dual() -> Any:
    """Return the dual level of ``forward_ad`` that this thread has entered, or None."""
    # a dual level is a stand-in, so without any there is none
    if not STAND_INS:
        return None
    return FORWARD.dual


def current_graph_task_id() -> int:
    """Return the number of the running backward pass, -1 if there is none."""
    if RUNNING.task is None:
        return -1
    task_id: int = RUNNING.task.id
    return task_id


def current_node() -> Any:
    """Return the node that the backward pass of this thread runs now, None without a pass."""
    if RUNNING.task is None:
        return None
    return RUNNING.task.node


def current_graph_is_retained() -> bool:
    """Return whether the running backward pass retains the graph. True if there is no pass."""
    return RUNNING.task is None or RUNNING.task.keep_graph


def is_recording() -> bool:
    """Return whether calls are recorded. Inference mode records none, even if grad mode is switched
    on inside of it."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
