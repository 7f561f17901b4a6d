"""How Python tells which functions a program enters and calls.

    with watched_by(watcher) as hook:
        hook.resume()
        f(x)                            # watcher.entered(frame of f), before its first line
        hook.pause()

From Python 3.12 on that is :mod:`sys.monitoring`, beside whatever a profiler, a debugger or a
coverage tool has asked for. Code of this package is asked for once and never again. Python 3.11 has
one profile hook for each thread: that of somebody else is called, too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any, Protocol

from ...seam.locks import lock_of
from ...seam.user_code import CaptureHook, hook_now, watched
from ...trace.provenance import PACKAGE, is_of_package

_get, _set = sys.getprofile, sys.setprofile
IMPORT = importlib.import_module.__code__
# asks the finders of other packages where a module is, which is no state of the program
FIND_MODULE = vars(importlib.import_module("importlib._bootstrap"))["_find_spec"].__code__

_CALLS_PROGRAM = watched.__code__


class Watcher(Protocol):
    """Learns what a program does."""

    def entered(self, frame: FrameType) -> None:
        """Learn that a function begins, or that a generator goes on."""

    def called(self, frame: FrameType, function: object) -> None:
        """Learn that the code of ``frame`` is about to call a function of C."""

    def left(self, frame: FrameType, result: object) -> None:
        """Learn that a function ends. ``result``: None if by an exception."""


class ProfileHook(CaptureHook):
    """Python's profile hook of this thread. ``before``: the one that the thread had before, which
    is in its place while this one is off. ``replaced``: whether the program has set another."""

    def __init__(self, watcher: Watcher, before: Any) -> None:
        self.watcher = watcher
        self.before = before
        self.replaced = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        # Two thirds of the events are of this package's doors, which the program does not see. One
        # of them calls the program, which may be a function of C.
        code = frame.f_code
        if code is _CALLS_PROGRAM or not code.co_filename.startswith(PACKAGE):
            if event == "call":
                self.watcher.entered(frame)
            elif event == "c_call":
                self.watcher.called(frame, argument)
            elif event == "return":
                self.watcher.left(frame, argument)
        if self.before is not None:
            self.before(frame, event, argument)

    def resume(self) -> None:
        _set(self)

    def pause(self) -> bool:
        """Put the hook from before in place. Return whether this one was there."""
        if _get() is not self:  # the capture ends with an error
            self.replaced = True
            return False
        _set(self.before)
        return True

    def refuse_replaced(self) -> None:
        """Raise ``RuntimeError`` if the program has set another hook."""
        if self.replaced:
            raise RuntimeError(
                "the program sets a profile hook of Python's, by which its capture learns which "
                "functions it enters. Set it outside of the program."
            )


@contextmanager
def _by_profile_hook(watcher: Watcher) -> Iterator[ProfileHook]:
    """Another hook that Python calls is called, too. One of C, which nobody can call, such as that
    of ``cProfile``, pauses."""
    before: Any = _get()
    if before is None or callable(before):
        yield ProfileHook(watcher, before)
        return
    before.disable()
    try:
        yield ProfileHook(watcher, None)
    finally:
        before.enable()


class MonitoringHook(CaptureHook):
    """Passes the events of this thread on. They come while any thread captures."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher


class _Monitor:
    """This package as a tool of :mod:`sys.monitoring`. ``number``: that of the tool. ``captures``:
    how many are under way. ``asked``: by identity, the code whose calls are told of."""

    def __init__(self) -> None:
        self._monitoring: Any = vars(sys)["monitoring"]  # not of Python 3.11
        self._lock = lock_of(self, "_lock")
        self.number: int | None = None
        self.captures = 0
        self.asked: dict[int, CodeType] = {}

    @contextmanager
    def telling(self) -> Iterator[bool]:
        """Let Python tell of events, while entered, unless other tools hold all numbers."""
        with self._lock:
            if self.number is None:
                self._register()
            number = self.number
            if number is not None and not self.captures:
                self._begin(number)
            self.captures += number is not None
        try:
            yield number is not None
        finally:
            with self._lock:
                self.captures -= number is not None
                if number is not None and not self.captures:
                    self._end(number)

    def _register(self) -> None:
        """Take a number of :mod:`sys.monitoring` that no tool holds, and name the functions that
        events call."""
        monitoring = self._monitoring
        # those that Python's documents name for no kind of tool
        free = (number for number in (3, 4) if monitoring.get_tool(number) is None)
        self.number = next(free, None)
        if self.number is None:
            return
        monitoring.use_tool_id(self.number, "runtime.jit")
        events = monitoring.events
        for event, tell in (
            (events.PY_START, self._started),
            (events.PY_RESUME, self._resumed),
            (events.PY_THROW, self._resumed),
            (events.PY_RETURN, self._returned),
            (events.PY_UNWIND, self._unwound),
            (events.CALL, self._called),
        ):
            monitoring.register_callback(self.number, event, tell)

    def _begin(self, number: int) -> None:
        events = self._monitoring.events
        # of these two alone it matters when they return
        for code in (IMPORT, FIND_MODULE):
            self._ask(code, events.PY_RETURN | events.CALL)
        self._ask(_CALLS_PROGRAM, events.CALL)
        starts = events.PY_START | events.PY_RESUME
        self._monitoring.set_events(number, starts | events.PY_THROW | events.PY_UNWIND)

    def _end(self, number: int) -> None:
        self._monitoring.set_events(number, 0)
        for code in self.asked.values():
            self._monitoring.set_local_events(number, code, 0)
        self.asked.clear()

    def _ask(self, code: CodeType, events: int) -> None:
        self.asked[id(code)] = code
        self._monitoring.set_local_events(self.number, code, events)

    def _started(self, code: CodeType, place: int) -> Any:
        """Pass on that a function begins. Code of this package is asked for never again."""
        if is_of_package(code.co_filename):
            return self._monitoring.DISABLE
        hook = hook_now()
        if isinstance(hook, MonitoringHook):
            if id(code) not in self.asked:
                self._ask(code, self._monitoring.events.CALL)
            hook.watcher.entered(sys._getframe(1))
        return None

    def _resumed(self, code: CodeType, place: int, *thrown: object) -> None:
        hook = hook_now()
        if isinstance(hook, MonitoringHook):
            if id(code) not in self.asked and not is_of_package(code.co_filename):
                self._ask(code, self._monitoring.events.CALL)
            hook.watcher.entered(sys._getframe(1))

    def _returned(self, code: CodeType, place: int, result: object) -> None:
        self._left(code, sys._getframe(1), result)

    def _unwound(self, code: CodeType, place: int, error: BaseException) -> None:
        self._left(code, sys._getframe(1), None)

    @staticmethod
    def _left(code: CodeType, frame: FrameType, result: object) -> None:
        hook = hook_now()
        if isinstance(hook, MonitoringHook) and (code is IMPORT or code is FIND_MODULE):
            hook.watcher.left(frame, result)

    def _called(self, code: CodeType, place: int, function: object, first: object) -> None:
        """Pass on that a function of C is called, which for a method is one that has its object."""
        hook = hook_now()
        if not isinstance(hook, MonitoringHook):
            return
        if type(function) is MethodDescriptorType and first is not self._monitoring.MISSING:
            function = function.__get__(first, type(first))  # without a class some crash
        if isinstance(function, BuiltinFunctionType):  # some methods are of a class below it
            hook.watcher.called(sys._getframe(1), function)


_MONITOR = _Monitor() if sys.version_info >= (3, 12) else None


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[CaptureHook]:
    """Tell ``watcher``, while entered, what happens between ``resume`` and ``pause`` of the
    hook."""
    if _MONITOR is not None:
        with _MONITOR.telling() as tells:
            if tells:
                yield MonitoringHook(watcher)
                return
    with _by_profile_hook(watcher) as hook:
        yield hook
