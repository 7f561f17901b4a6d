"""Watches which functions a program enters, and what it asks that no graph of objects has.

    with watching(graph) as seen:
        watched(f, x)                   # graph.enter(code of f, its globals), before its first line
    seen.asked                          # {"posix.getcwd": its line}

The hook is Python's profile hook of this thread. It is on in the user's code alone, see
:mod:`runtime.seam.user_code`."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from ...seam.user_code import CaptureHook, capturing
from ...trace.provenance import Line, happened_at, is_of_package, is_of_user
from .contents import Position
from .object_graph import ObjectGraph
from .trusted import is_followed, is_followed_module

_set = sys.setprofile
_OURS = __name__.partition(".")[0]
_OF_SCHEDULERS = lr_scheduler.__file__
_MAKES_OPTIMIZER = Optimizer.__init__.__code__
_CACHE = functools._lru_cache_wrapper
_IMPORT = importlib.import_module.__code__
# asks the finders of other packages where a module is, which is no state of the program
_FIND_MODULE = vars(importlib.import_module("importlib._bootstrap"))["_find_spec"].__code__

TRUSTED = frozenset(
    [
        "_abc",
        "_ast",
        "_asyncio",
        "_bisect",
        "_codecs",
        "_collections",
        "_collections_abc",
        "_contextvars",
        "_csv",
        "_datetime",
        "_decimal",
        "_functools",
        "_hashlib",
        "_heapq",
        "_json",
        "_operator",
        "_pickle",
        "_sre",
        "_statistics",
        "_string",
        "_struct",
        "_thread",
        "_tracemalloc",
        "_typing",
        "_warnings",
        "_weakref",
        "abc",
        "array",
        "atexit",
        "base64",
        "binascii",
        "bisect",
        "builtins",
        "cmath",
        "codecs",
        "collections",
        "contextlib",
        "contextvars",
        "copy",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "faulthandler",
        "fractions",
        "functools",
        "gc",
        "hashlib",
        "heapq",
        "inspect",
        "io",
        "itertools",
        "json",
        "logging",
        "marshal",
        "math",
        "ml_dtypes",
        "numbers",
        "numpy",
        "operator",
        "pickle",
        "pprint",
        "random",
        "re",
        "runtime",
        "sre_compile",
        "statistics",
        "string",
        "struct",
        "sys",
        "textwrap",
        "threading",
        "torch",
        "types",
        "typing",
        "unicodedata",
        "warnings",
        "weakref",
        "zlib",
        "zoneinfo",
    ]
)
"""Modules with functions of C that ask for nothing but their arguments, or whose state the graph
has, or that the capture follows itself."""
CLOCKS = frozenset(("time",))
"""Modules that are mostly asked for what a log says, so that a warning is enough."""
_IMPURE: dict[str, frozenset[str]] = {
    "builtins": frozenset(("open", "input")),
    "io": frozenset(("open",)),
    "datetime": frozenset(("now", "utcnow", "today")),
}
"""Functions of trusted modules that ask for something else."""


def is_clock(name: str) -> bool:
    """Whether a function, named as in :class:`Seen`, says what time it is."""
    return name.partition(".")[0] in CLOCKS


class Seen:
    """What one run has asked. ``asked``: the functions of C, each with the user's line. ``moved``:
    the lines of calls to random generators and the like, by identity. ``advanced``: that of the
    first call of ``next``, which does not say of what. ``cleared``: caches of functions that were
    emptied. ``goes_on``: whether the program has caught the refusal of a call."""

    def __init__(self) -> None:
        self.asked: dict[str, Line] = {}
        self.goes_on = False
        self.moved: dict[int, Line] = {}
        self.advanced: Line | None = None
        self.cleared: list[Any] = []

    def refuse_asked(self) -> None:
        """Raise ``RuntimeError`` if the program has asked for what no graph of objects has, such as
        files. Not for clocks."""
        for name, line in self.asked.items():
            if not is_clock(name):
                raise RuntimeError(
                    f"the program calls {name}, which no call would do again: a graph keeps what "
                    f"it has returned. Call it outside, and pass what it returns."
                    f"{happened_at(line)}"
                )


class _Hook(CaptureHook):
    """The hook for one run of a program. ``known``: by identity of code, whether it is the
    user's. ``finding``: the frame that asks where a module is, while it does."""

    def __init__(self, graph: ObjectGraph, before: Any) -> None:
        super().__init__(before)
        self.graph = graph
        self.seen = Seen()
        self.known: dict[int, tuple[Any, bool]] = {}
        self.finding: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.finding is not None:
            if event == "return" and frame is self.finding:
                self.finding = None
        else:
            self._happened(frame, event, argument)
        if self.before is not None:
            self.before(frame, event, argument)

    def _happened(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            resumed = self.graph.generator_frames.get(id(frame))
            if resumed is not None:
                self._resumed(resumed, frame.f_back)
            if code is _FIND_MODULE:
                self.finding = frame
            if code is _MAKES_OPTIMIZER:
                self.graph.made.add(id(frame.f_locals["self"]))
            if id(code) not in self.known:
                self.known[id(code)] = (code, _is_followed(frame))
                if self.known[id(code)][1]:
                    self._look(self.graph.enter, code, frame.f_globals)
                elif code.co_filename == _OF_SCHEDULERS:
                    self.graph.enter_scheduler(code)
        elif event == "c_call":
            self._called(frame, argument)
        elif event == "return" and frame.f_code is _IMPORT and isinstance(argument, ModuleType):
            self._look(self.graph.enter_module, argument)

    def _resumed(self, node: Position, caller: FrameType | None) -> None:
        """A generator from outside goes on."""
        if not node.steps:
            self._look(self.graph.enter_generator, node.owner, node.name)
        node.steps += 1
        line = self._user_line(caller)
        if line is not None:
            self.seen.moved.setdefault(id(node.owner), line)

    def _look(self, enter: Callable[..., None], *found: Any) -> None:
        """Let the graph learn of something, without a call of this hook."""
        _set(None)
        try:
            enter(*found)
        finally:
            _set(self)

    def _called(self, frame: FrameType, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        if type(owner) is _CACHE and function.__name__ == "cache_clear":
            self.seen.cleared.append(owner)
        if id(owner) in self.graph.moving and not is_of_package(frame.f_code.co_filename):
            line = self._user_line(frame)
            if line is not None:
                self.seen.moved.setdefault(id(owner), line)
        if function is next and self.seen.advanced is None and is_of_user(frame.f_code.co_filename):
            self.seen.advanced = self._user_line(frame)
        of_user = self.known.get(id(frame.f_code))
        if of_user is None:
            of_user = self.known.setdefault(id(frame.f_code), (frame.f_code, _is_followed(frame)))
        if of_user[1] and (name := _asks(function, owner)) is not None:
            code = frame.f_code
            self.seen.asked.setdefault(name, (code.co_filename, frame.f_lineno, code.co_name))
            self.seen.refuse_asked()  # before it is called: nobody could undo it

    @staticmethod
    def _user_line(frame: FrameType | None) -> Line | None:
        while frame is not None and not is_of_user(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _is_followed(frame: FrameType) -> bool:
    """Whether the code of a function is the program's. Code that is generated has no file, as that
    of data classes, so its module tells."""
    if not is_followed(frame.f_code.co_filename):
        return False
    name = frame.f_globals.get("__name__")
    if not isinstance(name, str):
        return True
    return name.partition(".")[0] != _OURS and (name not in sys.modules or is_followed_module(name))


def _asks(function: Any, owner: Any) -> str | None:
    """The name of a function of C that asks for what no object of Python's has. None for any
    other."""
    if owner is sys.stdout or owner is sys.stderr:
        return None
    if owner is None or issubclass(type(owner), ModuleType):
        module = getattr(function, "__module__", None)
    else:
        module = (owner if issubclass(type(owner), type) else type(owner)).__module__
    root = str(module or "builtins").partition(".")[0]
    name: str = getattr(function, "__name__", "")
    if root in TRUSTED or f"_{root}" in TRUSTED or root.lstrip("_") in TRUSTED:
        asks = name in _IMPURE.get(root, ())
    else:
        asks = root in sys.stdlib_module_names and isinstance(function, BuiltinFunctionType)
    return f"{root}.{name}" if asks else None


@contextmanager
def watching(graph: ObjectGraph) -> Iterator[Seen]:
    """While entered, ``graph`` learns of each function that the program enters. It is run by
    :func:`~runtime.seam.user_code.watched`. A hook that Python calls is called, too; another one,
    which is of C and nobody can call, such as that of ``cProfile``, pauses."""
    before: Any = sys.getprofile()
    in_c = before is not None and not callable(before)
    if in_c:
        before.disable()
    hook = _Hook(graph, None if in_c else before)
    try:
        with capturing(hook):
            yield hook.seen
        # Python drops a hook that raises
        hook.seen.goes_on = any(not is_clock(name) for name in hook.seen.asked)
        hook.seen.refuse_asked()
        if hook.replaced:
            raise RuntimeError(
                "the program sets a profile hook of Python's, by which its capture learns which "
                "functions it enters. Set it outside of the program."
            )
    finally:
        if in_c:
            before.enable()
