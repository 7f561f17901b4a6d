"""Note what a process does: the functions that it runs, and the files and folders that it reads.

The hook is that of profilers, so debuggers and tools of coverage work as before. A process is
forked for each cell. So what one cell leaves in a cache is not read by the next one, and what the
process of a cell has run is all that the cell depends on.

What no hook sees makes a cell unknown: another process that it starts, or a profiler that takes
the hook. A compiler reads functions without a call. Where one is at work, whole files count.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from gen.dependencies.source_units import WHOLE, unit_of

__all__ = ["FOLDER", "MODULES", "CellTrace", "ProcessTrace", "is_own"]

FOLDER = "/"
"""The unit of a folder: the names that are in it."""
MODULES = "//"
"""The unit of a folder in which an import looks: the names that it may take."""
_STARTS = frozenset(
    ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty")
)
"""The audit events of a process that starts another one."""
_LISTS = frozenset(("os.listdir", "os.scandir"))
_IMPORTERS = frozenset(("importlib._bootstrap_external", "_frozen_importlib_external", "zipimport"))
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_FOREIGN = (
    str(Path(__file__).resolve().parents[1]) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in _INSTALLED),
    *(f"/{name}{os.sep}" for name in ("dev", "proc", "sys")),
)
"""The folders of what no user edits: the matrix, Python, and what is installed."""
_CACHES = frozenset((".cache", ".git", ".tox", ".venv", "__pycache__", "site-packages"))


@cache  # it is asked for each function that has run
def is_own(path: str) -> bool:
    """Return whether a file may be one that its user edits: not Python's, not installed, not the
    matrix's.
    """
    if path.startswith("<") or not path:
        return False
    place = os.path.abspath(path)
    return not place.startswith(_FOREIGN) and _CACHES.isdisjoint(Path(place).parts)


@dataclass
class CellTrace:
    """What a process has run and read."""

    # the units of each file
    units: dict[str, list[str]] = field(default_factory=dict)
    # why the process may have run or read more
    unknown: str = ""


class ProcessTrace:
    """Note what this process and its forks do, from :meth:`start` to :meth:`stop`.

    ``compilers`` says whether a compiler may have read functions of the process.
    """

    def __init__(self, compilers: Callable[[Iterable[str]], bool]) -> None:
        self._compilers = compilers
        # By id, since code compares by all that it has, which is slow. As the code stays here, no
        # other gets its id.
        self._codes: dict[int, CodeType] = {}
        self._before: set[str] = set()  # files whose functions may have run before the start
        self._read: set[str] = set()
        self._listed: set[str] = set()
        self._unknown = ""
        self._is_reading = False
        self._before_cell = 0  # functions that had run when the cell began

    def start(self) -> None:
        """Begin to note the functions that run, in this thread and in those that begin later.

        A module that is imported already has run functions that nobody noted. So its whole file
        counts for every cell.
        """
        self._before = set(_loaded_files())
        _begin_to_hear()
        _audit.add(self)
        threading.setprofile(self._run)
        sys.setprofile(self._run)

    def stop(self) -> None:
        """End it, in this thread and in those that begin."""
        _audit.discard(self)
        if sys.getprofile() == self._run:
            sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note the files and folders that a block reads as well."""
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Note what a block does, which runs a cell in a process of its own."""
        self._before_cell = len(self._codes)
        with self.reading():
            yield

    def of_cell(self) -> CellTrace:
        """Return what the process of a cell, which is this one, has run and read.

        What ran before the fork is part of it: the cell begins with what that has left. The files
        that a cell reads count as a whole, and so do folders whose names it asks for.
        """
        unknown = self._unknown
        if sys.getprofile() != self._run:
            unknown = unknown or "a profiler has taken the hook"
        units: defaultdict[str, set[str]] = defaultdict(set)
        for path, unit in (*self._code_units(), *self._file_units()):
            units[path].add(unit)
        return CellTrace({path: sorted(units[path]) for path in sorted(units)}, unknown)

    def _code_units(self) -> Iterator[tuple[str, str]]:
        """Yield the functions that have run, by file and unit."""
        for code in list(self._codes.values()):
            if is_own(code.co_filename):
                yield os.path.abspath(code.co_filename), unit_of(code.co_qualname)

    def _file_units(self) -> Iterator[tuple[str, str]]:
        """Yield the files and folders that count as a whole."""
        yield from ((path, WHOLE) for path in self._before | self._read)
        yield from ((folder, FOLDER) for folder in self._listed)
        importers = filter(os.path.isdir, sys.path_importer_cache)
        yield from ((os.path.abspath(folder), MODULES) for folder in filter(is_own, importers))
        of_cell = list(self._codes.values())[self._before_cell :]
        compiled = self._compilers(code.co_filename for code in of_cell)
        for path in _loaded_files():
            # what is no text has no functions that a hook sees
            if compiled or not path.endswith(".py"):
                yield path, WHOLE

    def _run(self, frame: FrameType, event: str, _: object) -> None:
        """Note the function that is called: the hook of profilers."""
        if event == "call":
            code = frame.f_code
            self._codes.setdefault(id(code), code)

    def heard(self, event: str, arguments: tuple[object, ...], caller: str) -> None:
        """Note an audit event."""
        if not self._is_reading:
            return
        if event in _STARTS:
            self._unknown = f"it starts another process ({event})"
        elif event == "open":
            self._note_open(arguments, caller)
        # where imports look is known from their caches
        elif event in _LISTS and caller not in _IMPORTERS:
            self._note(self._listed, arguments[0] if arguments[0] is not None else ".")

    def _note_open(self, arguments: tuple[object, ...], caller: str) -> None:
        """Note a file that is read. What an import reads, it runs."""
        mode = arguments[1]
        # `os.open` has no mode. Such a file counts as read.
        writes = isinstance(mode, str) and not mode.startswith(("r", "b", "t"))
        if not writes and caller not in _IMPORTERS:
            self._note(self._read, arguments[0])

    def _note(self, places: set[str], path: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        place = os.path.abspath(os.fsdecode(path))
        if is_own(place) and os.path.exists(place):
            places.add(place)


def _loaded_files() -> Iterator[str]:
    """Yield the files of the imported modules that may be a user's own."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        # torch gives modules that it makes a name without a folder
        if isinstance(path, str) and os.path.isabs(path) and is_own(path):
            yield path


# --- audit events ---------------------------------------------------------------------------------
#
# Python keeps a hook for audit events until it ends. So there is one hook, with a set of listeners.

_EVENTS = _STARTS | _LISTS | {"open"}
_audit: set[ProcessTrace] = set()


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _audit and event in _EVENTS:
        # The frame above this one is what opened or listed something: its module's name.
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        for trace in _audit:
            trace.heard(event, arguments, caller)


@cache  # Python has no way to take a hook back
def _begin_to_hear() -> None:
    """Hear the audit events of this process from now on. Each of them costs time then."""
    sys.addaudithook(_hear)
