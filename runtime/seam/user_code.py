"""Lets a capture watch the user's code, and not that of this package.

    with capturing(hook):               # a program is captured, and the hook is off
        watched(f, x)                   # on, while the user's function runs
                                        # and off in what ``unwatched`` runs for it

The hook is called for each function that this thread enters, see :mod:`..aot.python_state`. For one
op of the user's hundreds of our functions run. So each door of this package turns it off: a
call of the dispatcher, a backward pass, a function of torch's that a capture handles. What the
user's code is called from there is watched again: hooks, custom Functions, saved tensors. A helper
thread goes on with it. While the hook is off, no ``__torch_function__`` of the user's classes is
called either, as it would see what this package asks a tensor for.

An error that leaves through a door may be caught by the program. A graph would keep the side that
the program takes then. So :class:`LeftErrors` notes it, unless it comes of shapes and types alone,
which a call compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from ..torch_private.mode_stacks import (
    ALL_HANDLERS,
    ONLY_MODES,
    function_handlers,
    set_function_handlers,
)
from .ambient import Ambient

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)


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


Mark = Callable[[], Callable[[], bool]]
"""Remembers Python's state. What it returns says whether the state has changed since."""
Repeat = Callable[[object], AbstractContextManager[object]]
"""Learns, while entered, what a function reads that a backward pass runs once more."""


class LeftErrors:
    """The errors with which this package has left the user's code in one capture, and which do not
    come of what a call compares. ``line_now``: says where the program is, for a message.
    ``is_general``: whether sizes or numbers are symbols, so that not all that decides an error is a
    condition of the graph, and its class and text may be others than those of eager mode."""

    def __init__(self, line_now: Callable[[], str], is_general: bool = False) -> None:
        self._line_now = line_now
        self._is_general = is_general
        # Errors are compared by identity: each passes several doors on its way out.
        # those that depend on values, each with the line at which it came
        self._noted: list[tuple[Exception, str]] = []
        # those that come in each call like this one, so that a graph may follow the program
        self._settled: list[Exception] = []
        # those that eager mode raises, too, also if they depend on values
        self._of_program: list[Exception] = []

    def note(self, error: Exception) -> None:
        """Note an error that the program may catch. One of an attribute that is missing depends on
        no value."""
        if isinstance(error, AttributeError) or any(error is known for known in self._settled):
            return
        if not any(error is known for known, _ in self._noted):
            self._noted.append((error, self._line_now()))

    def settle(self, error: Exception) -> None:
        """Note that each call like this one would raise ``error``: it is of shapes and types. Not
        if it was noted before, by a door further inside, nor a kernel's warning: whether that is an
        error is said by filters, which may change."""
        if isinstance(error, Warning):
            self.note(error)
            self._of_program.append(error)
        elif not self._is_general:
            self.settle_own(error)
            self._of_program.append(error)

    def settle_own(self, error: Exception) -> None:
        """Note that ``error`` is of the user's own code, which a graph follows as any other. Not if
        it was noted before."""
        if not any(error is known for known, _ in self._noted):
            self._settled.append(error)

    def note_kernel(self, error: Exception) -> None:
        """Note that a kernel has raised ``error`` for the values of this call."""
        self._of_program.append(error)

    def is_of_program(self, error: BaseException) -> bool:
        """Return whether torch raises ``error`` for this call in eager mode, too. That an attribute
        is missing depends on no value."""
        if isinstance(error, AttributeError):
            return True
        return any(error is known for known in self._of_program)

    def first(self) -> Exception | None:
        """Return the first error that was noted."""
        return next((error for error, _ in self._noted), None)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Run the program. ``RuntimeError`` if it has caught one of the errors."""
        try:
            yield
        except Exception as error:
            self._refuse_caught(error)
            raise
        self._refuse_caught()

    def _refuse_caught(self, raised: BaseException | None = None) -> None:
        """Refuse an error that the program has not ended with. ``raised``: what it has ended with.
        Where eager mode raises the error, too, it runs such a call."""
        # an error that the program has raised for another one, it has not swallowed
        chain = list(_chain_of(raised))
        for error, line in self._noted:
            if not any(error is known for known in chain):
                text = str(error).partition("\n")[0]
                refusal = RuntimeError(
                    f"the program catches {type(error).__name__}: {text} Whether the error comes "
                    "depends on values. A graph would go on without it, or with it, for ever. Ask "
                    "for the condition before, by torch.where, or leave this part out by "
                    f"jit.outside.{line}"
                )
                if self.is_of_program(error):  # so is what the program does then
                    self._of_program.append(refusal)
                raise refusal from error


def _chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised for. Which error a program ends with, when it has
    caught one, a call without a graph says."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class _Capture(Ambient):
    """The hook of the capture of this thread, and whether it is on: the user's code runs.
    ``errors``: those that the program may have caught. ``mark``: see :func:`mark_state`.
    ``repeat``: see :func:`repeated_by_pass`. ``around``: see :func:`surrounding`."""

    hook: CaptureHook | None = None
    errors: LeftErrors | None = None
    mark: Mark | None = None
    repeat: Repeat | None = None
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    on: bool = False


_CAPTURE = _Capture()


@contextmanager
def capturing(hook: CaptureHook, errors: LeftErrors, mark: Mark, repeat: Repeat) -> Iterator[None]:
    """Let :func:`watched` turn ``hook`` on, doors note ``errors``, :func:`mark_state` ask ``mark``
    and :func:`repeated_by_pass` tell ``repeat``, in this block."""
    outer = dict(vars(_CAPTURE))
    _CAPTURE.hook, _CAPTURE.errors, _CAPTURE.on = hook, errors, False
    _CAPTURE.mark, _CAPTURE.repeat = mark, repeat
    own = function_handlers()
    set_function_handlers(ONLY_MODES)
    try:
        yield
    finally:
        set_function_handlers(own)
        # what is not in `vars` has the value of the class again
        vars(_CAPTURE).clear()
        vars(_CAPTURE).update(outer)


@contextmanager
def surrounding(around: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Let :func:`watched` enter what ``around`` returns, for each piece of the user's code that
    begins in this block."""
    outer = _CAPTURE.around
    _CAPTURE.around = around
    try:
        yield
    finally:
        _CAPTURE.around = outer


def is_capturing() -> bool:
    """Return whether this thread captures a program."""
    return _CAPTURE.hook is not None


def is_user_code_watched() -> bool:
    """Return whether this thread captures a program and is in the code of the user."""
    return _CAPTURE.on


def mark_state() -> Callable[[], bool]:
    """Return a function that says whether the program has changed Python's state since. It never
    has without a capture, which would not put the state back either."""
    if _CAPTURE.mark is None:
        return bool  # `bool()` is False
    # a comparison asks random generators for their states, which no program does here
    return partial(unwatched, unwatched(_CAPTURE.mark))


def repeated_by_pass(function: object) -> AbstractContextManager[object]:
    """Tell the capture of this thread, if there is one, that what runs in this block runs once more
    in a backward pass: a checkpointed ``function``."""
    return nullcontext() if _CAPTURE.repeat is None else _CAPTURE.repeat(function)


def settle_error(error: Exception) -> None:
    """Tell the capture of this thread, if there is one, that each call like this one raises
    ``error``, see :meth:`LeftErrors.settle`."""
    if _CAPTURE.errors is not None:
        _CAPTURE.errors.settle(error)


def note_kernel_error(error: Exception) -> None:
    """Tell the capture of this thread, if there is one, of an error of a kernel, see
    :meth:`LeftErrors.note_kernel`."""
    if _CAPTURE.errors is not None:
        _CAPTURE.errors.note_kernel(error)


def first_error() -> Exception | None:
    """Return the first error that the program of this thread may have caught. None without one."""
    return None if _CAPTURE.errors is None else _CAPTURE.errors.first()


def settled(error: E) -> E:
    """Return ``error``, of which the capture of this thread knows that each call like this one
    raises it: it is of how tensors were recorded, as torch's own."""
    settle_error(error)
    return error


def noted(error: E) -> E:
    """Return ``error``, of which the capture of this thread knows now, if there is one: it is
    raised in the program without a door."""
    if _CAPTURE.errors is not None:
        _CAPTURE.errors.note(error)
    return error


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
    with _CAPTURE.around():
        _CAPTURE.on = True
        own = function_handlers()
        set_function_handlers(ALL_HANDLERS)
        hook.resume()
        try:
            return run(*args, **kwargs)
        except Exception as error:
            if _CAPTURE.errors is not None:
                _CAPTURE.errors.settle_own(error)
            raise
        finally:
            hook.pause()
            set_function_handlers(own)
            _CAPTURE.on = False


def unwatched(run: Callable[..., R], *args: object, **kwargs: object) -> R:
    """Return ``run(*args, **kwargs)``, which is code of this package."""
    hook = _CAPTURE.hook
    # where the program has put another hook in place, there is nothing to pause and to resume
    if hook is None or not _CAPTURE.on or not hook.pause():
        return run(*args, **kwargs)
    _CAPTURE.on = False
    users = function_handlers()
    # the program may have left out modes, too
    if users == ALL_HANDLERS:
        set_function_handlers(ONLY_MODES)
    try:
        return run(*args, **kwargs)
    except Exception as error:
        noted(error)
        raise
    finally:
        set_function_handlers(users)
        _CAPTURE.on = True
        hook.resume()


def as_door(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` of this package, which the user's code or torch calls, as unwatched
    code. For use as a decorator."""

    @wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        return unwatched(function, *args, **kwargs)

    return door
