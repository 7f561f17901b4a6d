"""Find which lines of some files a process runs, in all its threads.

Only the standard library is imported, because processes that a test starts run this file as their
`sitecustomize`."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["Lines", "Masks", "followed", "merge"]

CALLS = 200  # of one function; later events rarely show another line
Masks = dict[str, int]  # by file, relative to the root: a bit per line


class Lines:
    """Notes the lines of ``sources`` under ``root`` that run between ``begin`` and ``end``.

    ``imported`` returns the lines that ran at any time because a module of the
    sources was imported.
    """

    def __init__(self, root: str, sources: list[str]) -> None:
        self._root = root
        self._prefixes = tuple(os.path.join(root, source, "") for source in sources)
        self._mine: dict[CodeType, bool] = {}
        self._imported: set[tuple[CodeType, int]] = set()

    def begin(self, seconds: float) -> None:
        """Note lines for ``seconds`` of processor time."""
        self._lines: set[tuple[CodeType, int]] = set()
        self._calls: Counter[CodeType] = Counter()
        threading.settrace(self._called)
        signal.signal(signal.SIGVTALRM, lambda *_: sys.settrace(None))
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        sys.settrace(self._called)

    def end(self) -> Masks:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        sys.settrace(None)
        threading.settrace(None)
        return self._masks(self._lines)

    def imported(self) -> Masks:
        return self._masks(self._imported)

    def _masks(self, lines: set[tuple[CodeType, int]]) -> Masks:
        masks: Masks = {}
        for code, line in lines.copy():
            path = os.path.relpath(code.co_filename, self._root)
            masks[path] = masks.get(path, 0) | 1 << line
        return masks

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        mine = self._mine.get(code)
        if mine is None:
            mine = self._mine[code] = code.co_filename.startswith(self._prefixes)
        if not mine:
            return None
        self._calls[code] += 1
        if self._calls[code] > CALLS:
            return None
        return self._line_at_import if self._at_import(frame) else self._line

    def _at_import(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(
                self._prefixes
            ):
                return True
            frame = frame.f_back
        return False

    def _line_at_import(self, frame: FrameType, event: str, argument: object) -> Any:
        self._imported.add((frame.f_code, frame.f_lineno))
        return self._line_at_import

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._lines.add((frame.f_code, frame.f_lineno))
        return self._line


def merge(masks: Masks, more: Masks) -> None:
    for path, mask in more.items():
        masks[path] = masks.get(path, 0) | mask


def follow(root: str, sources: list[str], folder: str, seconds: float) -> None:
    """Trace this process. When it exits, it writes its lines to its own file in ``folder``."""
    lines = Lines(root, sources)

    def write() -> None:
        masks = lines.end()
        merge(masks, lines.imported())
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(masks))

    atexit.register(write)
    lines.begin(seconds)


class followed:
    """While this context is active, every Python process that this process starts
    runs :func:`follow`.

    ``taken()`` returns the lines that they ran since the last call. A start-up module in ``root``
    calls :func:`follow`. Some tests give their programs another environment, in which ``root`` is
    on the path. Forked processes are not followed.
    """

    def __init__(self, root: Path, sources: list[str], seconds: float) -> None:
        self._folder, self._startup, self._root = root / ".lines", root / "sitecustomize.py", root
        self._program = (
            f"{Path(__file__).read_text()}\n\n"
            f"follow({str(root)!r}, {sources!r}, {str(self._folder)!r}, {seconds})\n"
        )

    def __enter__(self) -> followed:
        self._folder.mkdir(exist_ok=True)
        self._startup.write_text(self._program)
        self._before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(self._root), *filter(None, [self._before])])
        return self

    def __exit__(self, *exc: object) -> None:
        self._startup.unlink()
        self.taken()
        self._folder.rmdir()
        if self._before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = self._before

    def taken(self) -> Masks:
        masks: Masks = {}
        for file in self._folder.iterdir():
            merge(masks, json.loads(file.read_text()))
            file.unlink()
        return masks
