"""Which code a capture watches: the user's, and not that of this package.

    with capturing(hook):               # a program is captured, and the hook is off
        watched(f, x)                   # on, while the user's function runs
                                        # and off in what ``unwatched`` runs for it

The hook is Python's profile hook of this thread, which is called for each function that is entered.
For one op of the user's hundreds of our functions run. So each door of this package turns it off: a
call of the dispatcher, a backward pass, a function of torch's that a capture handles. What the
user's code is called from there is watched again: hooks, custom Functions, saved tensors. A helper
thread goes on with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from .ambient import Ambient

P = ParamSpec("P")
R = TypeVar("R")
_set = sys.setprofile
_get = sys.getprofile


class CaptureHook:
    """A profile hook. ``before``: the one that this thread had before, which is in its place while
    it is off. ``replaced``: whether the user's code has set another one."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.replaced = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        raise NotImplementedError


class _Capture(Ambient):
    hook: CaptureHook | None = None  # that of the capture of this thread
    on: bool = False  # whether it is Python's hook now


_CAPTURE = _Capture()


@contextmanager
def capturing(hook: CaptureHook) -> Iterator[None]:
    """While entered, :func:`watched` turns ``hook`` on."""
    outer, was_on = _CAPTURE.hook, _CAPTURE.on
    _CAPTURE.hook, _CAPTURE.on = hook, False
    try:
        yield
    finally:
        _CAPTURE.hook, _CAPTURE.on = outer, was_on


def watched(run: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """``run(*args, **kwargs)``, which is the user's code. Without a capture it is just that."""
    hook = _CAPTURE.hook
    if hook is None or _CAPTURE.on:
        return run(*args, **kwargs)
    before = _get()
    _CAPTURE.on = True
    _set(hook)
    try:
        return run(*args, **kwargs)
    finally:
        hook.replaced |= _get() is not hook
        _set(before)
        _CAPTURE.on = False


def unwatched(run: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """``run(*args, **kwargs)``, which is code of this package."""
    hook = _CAPTURE.hook
    if hook is None or not _CAPTURE.on:
        return run(*args, **kwargs)
    if _get() is not hook:  # the capture ends with an error
        hook.replaced = True
        return run(*args, **kwargs)
    _CAPTURE.on = False
    _set(hook.before)
    try:
        return run(*args, **kwargs)
    finally:
        _set(hook)
        _CAPTURE.on = True


def as_door(f: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function of this package that the user's code, or torch's, calls."""

    @wraps(f)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        return unwatched(f, *args, **kwargs)

    return door
