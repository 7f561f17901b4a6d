"""Report mistakes in the input: the place of each, what was expected, and the nearest valid name.

Code that reads matrix.yaml collects `Problem`s and raises one `MatrixError` with all of them. So an
author can correct all mistakes after one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Mark", "MatrixError", "OverwriteError", "Problem"]

MAX_LISTED = 16  # mistakes in one message, about a screen of them


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a file. Line and column count from 1; 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def short(self) -> str:
        """Return `file:line`, for sentences."""
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Problem:
    """A mistake: `file:line:column: path: what is wrong; expected …; did you mean "…"?`"""

    mark: Mark
    path: str
    what: str
    expected: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        text = f"{self.mark}: "
        if self.path:
            text += f"{self.path}: "
        text += self.what
        if self.expected:
            text += f"; expected {self.expected}"
        if self.nearest:
            text += f'; did you mean "{self.nearest}"?'
        return text


class MatrixError(Exception):
    """Bad input. `problems` has every mistake, in the order of the files."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        # Two rules may note the same mistake.
        seen = dict.fromkeys(problems)
        self.problems = sorted(seen, key=lambda problem: problem.mark)
        super().__init__("\n".join(map(str, self.problems)))


class OverwriteError(Exception):
    """A file that a person wrote is in the place of a generated one."""


def nearest(word: object, names: Iterable[str]) -> str:
    """Return the name that `word` most likely stands for, or an empty string."""
    import difflib

    word = str(word)
    names = list(names)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if matches:
        return matches[0]
    # The last component alone often identifies the name: `torch.conv2d` for
    # `torch.nn.functional.conv2d`.
    tail = word.rpartition(".")[2]
    same_tail = [name for name in names if "." in name and name.rpartition(".")[2] == tail]
    if not same_tail:
        return ""
    return same_tail[0]


def one_of(names: Sequence[str] | Iterable[str]) -> str:
    """Return `one of a, b, c`, cut if the list is too long to read."""
    names = list(names)
    if len(names) > MAX_LISTED:
        return f"one of {', '.join(names[:MAX_LISTED])}, … ({len(names)} in all)"
    if len(names) == 1:
        return names[0]
    return f"one of {', '.join(names)}"
