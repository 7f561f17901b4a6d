"""Functions made of Python text, which tracebacks, debuggers and profilers show line by line.

    add = function("def add(a, b):\n    return a + b\n", "add", "<sum>", {})

``linecache`` asks the globals of a function for its text (:pep:`302`, ``get_source``). So nothing
is kept that the function itself does not keep, and the text is made when somebody looks at it. What
``linecache`` then remembers is freed with the code."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from .provenance import Line, text_of

_numbers = itertools.count()


class _Loader:
    """Shows ``lines``. ``origins``: for some of them the user's line that they come from, which is
    added as a comment."""

    def __init__(self, lines: Sequence[str], origins: dict[int, Line]) -> None:
        self._lines = lines
        self.origins = origins

    def get_source(self, name: str) -> str:
        """Return the text; ``name`` is that of the module, of which there is one."""
        shown = list(self._lines)
        for i, line in enumerate(self._lines):
            if i in self.origins:
                shown[i] = f"{line}  # {text_of(self.origins[i])}"
        return "\n".join(shown) + "\n"


def origin(frame: FrameType, number: int) -> Line | None:
    """Return the user's line that line ``number`` of a function comes from, which :func:`function`
    has made and ``frame`` runs. None if it is not known."""
    loader = frame.f_globals.get("__loader__")
    if not isinstance(loader, _Loader):
        return None
    return loader.origins.get(number - 1)


def function(
    lines: Sequence[str],
    name: str,
    file: str,
    names: dict[str, Any],
    origins: dict[int, Line] | None = None,
) -> Callable[..., Any]:
    """Return the function ``name`` that the Python text ``lines`` defines. ``names``: its globals.
    ``origins``: for numbers of lines from 0, the user's line that they come from.

    ``file``: how the name of its file begins, in angle brackets. A number follows, so that no two
    functions have lines of the same name."""
    file = f"{file} {next(_numbers)}"
    names |= {"__name__": file, "__loader__": _Loader(lines, origins or {})}
    exec(compile("\n".join(lines) + "\n", file, "exec"), names)
    made: Callable[..., Any] = names[name]
    weakref.finalize(made.__code__, linecache.cache.pop, file, None).atexit = False
    return made
