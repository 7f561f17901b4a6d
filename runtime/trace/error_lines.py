"""Adds the user's line to the errors that leave a capture.

    RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)
    It happened at model.py:12: return x @ self.weight

A line of another package that is installed, such as ``scipy``, is followed by the line of the
program that called it.

A capture runs a program under several levels. What fails there is often a call inside torch or
inside this package, and its error speaks of neither the program nor the capture. So every way out
of a capture is a block of :class:`naming_line`. The class of an error stays, and so do the lines
of its message. One more line follows.

An error that the program raises itself gets a note (:pep:`678`) in place of a longer message: the
program, or its caller, may compare the message. Nobody can tell ``raise RuntimeError`` of the
program from a call of C that fails in the same line. So for the classes of :data:`_OF_CALLS` the
message gets the line in both cases."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ContextDecorator
from types import FrameType, TracebackType

from ..seam.own_modules import is_own_module
from .generated_code import origin
from .provenance import Line, is_installed, is_of_package, is_of_python, is_of_user, text_of

# What calls of torch and of Python raise for an operand that they do not take.
_OF_CALLS = (RuntimeError, TypeError, AttributeError, IndexError)
# Classes of other packages may give their arguments a meaning of their own.
_PACKAGES = frozenset(("builtins", "torch"))


class naming_line(ContextDecorator):
    """A block, or a function, whose errors get the user's line."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Add the line to an error, which goes on its way."""
        if isinstance(error, Exception):
            name_line(error, at)


def _mentions(texts: Iterable[str], line: Line) -> bool:
    """Return whether one of the texts names the file of ``line``."""
    return any(f"{line[0]}:" in text for text in texts)


def name_line(error: Exception, at: TracebackType | None, advice: str = "") -> None:
    """Add the user's line to ``error``, unless its message names one. If no function of the user's
    ran, it is the line that has called the package. ``at``: the traceback, from the frame on that
    catches the error. ``advice``: a sentence before the line."""
    trail = _Trail(at)
    # an error passes several captures on its way out, and each would add the line
    texts = _texts(error)
    additions = [
        f"{where} {text_of(line)}"
        for where, line in trail.lines() or _lines_of_caller()
        if not _mentions(texts, line)
    ]
    if not additions:
        return
    addition = "\n".join(additions)
    # the advice is about what the program does, and not about the call of this package
    if trail.innermost is not None:
        addition = f"{advice} {addition}".lstrip()
    if not (_takes_more(error, trail.raised_in) and _extend(error, addition)):
        error.add_note(addition)


def raised_by_user(error: BaseException) -> bool:
    """Return whether a function of the user's has raised ``error``, or one of C or of Python's own
    modules that it has called, and no function of torch or of this package."""
    return is_of_user(_Trail(error.__traceback__).raised_for)


def raised_by_package(error: BaseException) -> bool:
    """Return whether a function of this package has raised ``error``, or one of C or of Python's
    own modules that it has called."""
    return is_of_package(_Trail(error.__traceback__).raised_for)


def name_origin(error: Exception) -> None:
    """Add to an error of a graph that runs again the line of the program that the failed call comes
    from. Not to one that a function of the user's raises, such as the result of a compiler."""
    trail = _Trail(error.__traceback__)
    if trail.innermost is not None and not raised_by_user(error):
        name_line(error, error.__traceback__)


class _Trail:
    """The lines that an error passed on its way out."""

    def __init__(self, at: TracebackType | None) -> None:
        # the innermost line of the user
        self.innermost: Line | None = None
        # the innermost line of the user that no installed package has
        self.of_program: Line | None = None
        # the file of the innermost frame
        self.raised_in = ""
        # the file of the innermost frame which is not of Python's own modules
        self.raised_for = ""
        while at is not None:
            self._pass(at)
            at = at.tb_next

    def _pass(self, at: TracebackType) -> None:
        """Note the frame at which the traceback ``at`` stands."""
        code = at.tb_frame.f_code
        self.raised_in = code.co_filename
        if not is_of_python(code.co_filename):
            self.raised_for = code.co_filename
        if not is_of_user(code.co_filename):
            # a line of generated code stands for a line of the user
            self.innermost = origin(at.tb_frame, at.tb_lineno) or self.innermost
            return
        self.innermost = code.co_filename, at.tb_lineno, code.co_name
        if not is_installed(code.co_filename):
            self.of_program = self.innermost

    def lines(self) -> list[tuple[str, Line]]:
        """Return what to say of each line: of the one that failed, and of the program's that led to
        it."""
        if self.innermost is None:
            return []
        lines = [("It happened at", self.innermost)]
        if is_installed(self.innermost[0]) and self.of_program is not None:
            lines.append(("It was called at", self.of_program))
        return lines


def _lines_of_caller() -> list[tuple[str, Line]]:
    """Return the note if no line of the user failed: the line that has called the package."""
    caller = _caller()
    if caller is None:
        return []
    return [("The call is at", caller)]


def _caller() -> Line | None:
    """Return the innermost line of the user that runs now."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if is_of_user(code.co_filename):
            return code.co_filename, frame.f_lineno, code.co_name
        frame = frame.f_back
    return None


def _texts(error: Exception) -> list[str]:
    return [str(error), *getattr(error, "__notes__", ())]


def _takes_more(error: Exception, raised_in: str) -> bool:
    """Return whether the message of ``error`` may become longer."""
    kind = type(error)
    if kind.__module__.partition(".")[0] not in _PACKAGES and not is_own_module(kind.__module__):
        return False
    if is_of_user(raised_in):
        return isinstance(error, _OF_CALLS)
    # a container of torch tells by the argument of a KeyError which key is not there
    return not isinstance(error, KeyError) or is_of_package(raised_in)


def _extend(error: Exception, addition: str) -> bool:
    """Add a line to the message of ``error``. False if its class makes its message of something
    else than its argument, such as an ``OSError`` with a number."""
    before = error.args
    error.args = (f"{_message(error)}\n{addition}",)
    # a `KeyError` shows the representation of its argument, with `\n` for the new line
    if addition in str(error) or isinstance(error, KeyError):
        return True
    error.args = before
    return False


def _message(error: Exception) -> str:
    """Return the message of ``error``, with words added if it is only a key or empty."""
    text = str(error).rstrip()
    if isinstance(error, KeyError) or not text:
        return f"{type(error).__name__} {text}".rstrip() + " inside the capture"
    return text
