"""Makes functions of Python text, which tracebacks, debuggers and profilers show line by line.

    add = function(["def add(a, b):", "    return a + b"], "add", "<replay of a sum>", {})

``linecache`` asks the loader in the globals of a function for its text (:pep:`302`,
``get_source``). So the text lives as long as the function, and is only joined when somebody looks
at it. What ``linecache`` then remembers is freed with the code.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from .provenance import GENERATED, Line, text_of

_numbers = itertools.count()


class _Loader:
    """The loader of a module whose text is ``lines``.

    ``origins``: for some of the lines, by number from 0, the user's line that they come from. It is
    added as a comment.
    """

    def __init__(self, lines: Sequence[str], origins: dict[int, Line]) -> None:
        self._lines = lines
        self.origins = origins

    def get_source(self, name: str) -> str:
        """Return the text. ``name``, that of the module, says nothing: a loader has one module."""
        text = list(self._lines)
        for index, line in enumerate(self._lines):
            if index in self.origins:
                text[index] = f"{line}  # {text_of(self.origins[index])}"
        return "\n".join(text) + "\n"


def origin(frame: FrameType, number: int) -> Line | None:
    """Return the user's line behind line ``number``, from 1, of the function that ``frame`` runs.
    None if :func:`function` has not compiled it, or does not know the line."""
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
    """Return the function ``name`` that the Python text ``lines`` defines.

    ``file``: how the name of its file begins, in angle brackets: as one of ``GENERATED``, so that
    nobody takes it for the user's. A number follows, so that no two functions have lines of the
    same file. ``names``: its globals, to which this adds two.
    ``origins``: for numbers of lines from 0, the user's line that they come from.
    """
    assert file.startswith(GENERATED)
    file = f"{file} {next(_numbers)}"
    # `linecache` asks a loader only for a file whose name does not end with a bracket, as this one
    # ends with a number, and only in globals that have both of these names
    names |= {"__name__": file, "__loader__": _Loader(lines, origins or {})}
    exec(compile("\n".join(lines) + "\n", file, "exec"), names)
    result: Callable[..., Any] = names[name]
    # at exit the cache goes with the process, so nothing is to be freed
    weakref.finalize(result.__code__, linecache.cache.pop, file, None).atexit = False
    return result


def answer(
    write: Callable[[Callable[[object], str]], str], name: str, file: str
) -> Callable[[], bool]:
    """Return the function ``name`` that answers a question.

    ``write``: writes the question as Python source. It gets what gives an object a name in the
    source. ``file``: as that of :func:`function`.

    >>> answer(lambda constant: f"len({constant([1, 2])}) == 2", "holds", "<guard of a list>")()
    True
    """
    names: dict[str, Any] = {}

    def constant(x: object) -> str:
        names[f"c{len(names)}"] = x
        return f"c{len(names) - 1}"

    return function([f"def {name}():", f"    return {write(constant)}"], name, file, names)
