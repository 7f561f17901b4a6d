"""Lets a capture watch the user's code, and not that of this package.

    with capturing(hook):               # a program is captured, and the hook is off
        watched(f, x)                   # on, while the user's function runs
                                        # and off in what ``unwatched`` runs for it

The hook is called for each function that this thread enters, see :mod:`..aot.python_state`. For one
op of the user's hundreds of our functions run. So each door of this package turns it off: a
call of the dispatcher, a backward pass, a function of torch's that a capture handles. What the
user's code is called from there is watched again: hooks, custom Functions, saved tensors. A helper
thread goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from .ambient import Ambient

P = ParamSpec("P")
R = TypeVar("R")


class CaptureHook:
    """A hook that reports the functions that this thread enters to a capture."""

    def resume(self) -> None:
        """Report from now on."""

    def pause(self) -> bool:
        """Report nothing from now on. Return False if the program has put another hook in place of
        this."""
        return True

    def refuse_replaced(self) -> None:
        """Raise ``RuntimeError`` if the program has put another hook in place of this."""


class _Capture(Ambient):
    """The hook of the capture of this thread, and whether it is on: the user's code runs."""

    hook: CaptureHook | None = None
    on: bool = False


_CAPTURE = _Capture()


@contextmanager
def capturing(hook: CaptureHook) -> Iterator[None]:
    """Let :func:`watched` turn ``hook`` on, in this block."""
    outer, was_on = _CAPTURE.hook, _CAPTURE.on
    _CAPTURE.hook, _CAPTURE.on = hook, False
    try:
        yield
    finally:
        _CAPTURE.hook, _CAPTURE.on = outer, was_on


def hook_now() -> CaptureHook | None:
    """Return the hook of the capture of this thread, while the user's code runs."""
    if not _CAPTURE.on:
        return None
    return _CAPTURE.hook


def watched(run: Callable[..., R], *args: object, **kwargs: object) -> R:
    """Return ``run(*args, **kwargs)``, which is the user's code. Without a capture it is just
    that."""
    hook = _CAPTURE.hook
    if hook is None or _CAPTURE.on:
        return run(*args, **kwargs)
    _CAPTURE.on = True
    hook.resume()
    try:
        return run(*args, **kwargs)
    finally:
        hook.pause()
        _CAPTURE.on = False


def unwatched(run: Callable[..., R], *args: object, **kwargs: object) -> R:
    """Return ``run(*args, **kwargs)``, which is code of this package."""
    hook = _CAPTURE.hook
    if hook is None or not _CAPTURE.on or not hook.pause():
        return run(*args, **kwargs)
    _CAPTURE.on = False
    try:
        return run(*args, **kwargs)
    finally:
        _CAPTURE.on = True
        hook.resume()


def as_door(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` of this package, which the user's code or torch calls, as unwatched
    code. For use as a decorator."""

    @wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        return unwatched(function, *args, **kwargs)

    return door
