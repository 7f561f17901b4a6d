"""Mistakes in the input: where each is, what was expected, and the nearest valid name.

Everything that reads matrix.yaml collects `Problem`s and raises one `MatrixError` with all of them, so that an author
mends a file in one go instead of one mistake per run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_LISTED = 16


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a file; line and column count from 1, and 0 means that the file as a whole is meant."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    @property
    def short(self) -> str:
        """`file:line`, for sentences."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Problem:
    """One mistake: `file:line:column: path: what is wrong; expected …; did you mean "…"?`"""

    mark: Mark
    path: str
    what: str
    expected: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        text = f"{self.mark}: {self.path}: {self.what}" if self.path else f"{self.mark}: {self.what}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.nearest:
            text += f'; did you mean "{self.nearest}"?'
        return text


class MatrixError(Exception):
    """Bad input. `problems` holds every mistake that was found, in the order of the files."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        seen = dict.fromkeys(problems)
        self.problems = sorted(seen, key=lambda problem: problem.mark)
        super().__init__("\n".join(map(str, self.problems)))


class OverwriteError(Exception):
    """A file that a person wrote stands where a generated one should go."""


def nearest(word: object, names: Iterable[str]) -> str:
    """The name that `word` most likely meant, or an empty string."""
    import difflib

    word = str(word)
    names = list(names)
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if found:
        return found[0]
    # A last component alone often identifies what was meant: `torch.conv2d` for `torch.nn.functional.conv2d`.
    tail = word.rpartition(".")[2]
    same_tail = [name for name in names if "." in name and name.rpartition(".")[2] == tail]
    return same_tail[0] if same_tail else ""


def one_of(names: Sequence[str] | Iterable[str]) -> str:
    """`one of a, b, c`, cut where a list would no longer be read."""
    names = list(names)
    if len(names) > MAX_LISTED:
        return f"one of {', '.join(names[:MAX_LISTED])}, … ({len(names)} in all)"
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
