"""Note at the error of a graph what the compiled call had already changed.

ValueError: …
The compiled call failed while its graph ran, and does not undo what it had done: an argument,
float32[2], has its new value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

import torch

from ...session.tensor import Tensor
from ...tape.inplace import unrecorded
from ...torch_private.native_autograd import increment_version
from ..compilers.boxed import Boxed


class FailedGraph(Exception):
    """The graph of a call has raised the cause of this error, and the call has changed nothing. So
    it may run once more, in eager mode: its program may catch the error. ``draws``: whether the
    graph may have drawn random numbers, all the same."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.draws = draws


def count(placed: Mapping[int, int], leaves: Sequence[torch.Tensor]) -> None:
    """Note that the graph has written to the arguments ``placed``.

    ``placed``: for each argument, by how much its version is behind.
    """
    for index, behind in placed.items():
        tensor = leaves[index]
        if isinstance(tensor, Tensor):
            unrecorded(tensor)  # so that its views ask for their history again
        for _ in range(behind):
            increment_version([tensor])


@dataclass(frozen=True)
class WriteLog:
    """Map each argument that one graph writes to to the line of ``code`` with the write.

    A graph that raises has done the writes above the line of the error, none of those below it, and
    perhaps a part of the one on it. Without ``code`` each write may have happened.
    """

    lines: Mapping[int, int]
    code: CodeType | None

    @staticmethod
    def of(forward: Boxed) -> WriteLog:
        """Return the log of a boxed function.

        A function of a foreign compiler says what it writes, but not where. All its writes are on
        one line.
        """
        lines: Mapping[int, int] | None = getattr(forward, "writes", None)
        if lines is None:
            lines = dict.fromkeys(getattr(forward, "placed", ()), 0)
        return WriteLog(lines, getattr(forward, "__code__", None))

    def made_before(self, error: BaseException) -> Iterator[tuple[int, bool]]:
        """Yield each argument that the graph had written to when it raised ``error``, and whether
        the write is complete."""
        raised_at = self._line_of(error)
        for argument, line in self.lines.items():
            if raised_at is None:
                yield argument, False
            elif line <= raised_at:
                yield argument, line < raised_at

    def _line_of(self, error: BaseException) -> int | None:
        """Return the line of the graph's code that raised ``error``; None if it is not known."""
        for entry in _entries(error.__traceback__):
            if entry.tb_frame.f_code is self.code:
                return entry.tb_lineno
        return None


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the entries of a traceback, the outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def note_partial_effects(
    error: BaseException,
    begun: Sequence[str],
    forward: Boxed,
    leaves: Sequence[object],
    n_arguments: int,
) -> bool:
    """Add a note to an error of the graph of ``forward``: what the failed call has changed. Return
    whether that is anything.

    ``begun``: what the call has done before the graph. ``leaves``: its ``n_arguments`` arguments,
    then the tensors that the program closes over.
    """
    lost = list(begun)
    for argument, complete in WriteLog.of(forward).made_before(error):
        written = leaves[argument]
        lost.append(_describe(written, argument < n_arguments, complete))
        if isinstance(written, Tensor):
            unrecorded(written)  # so that its views ask for their history again
    if lost:
        error.add_note(
            "The compiled call failed while its graph ran, and does not undo what it had done: "
            f"{'; '.join(lost)}."
        )
    return bool(lost)


def _describe(written: Any, is_argument: bool, complete: bool) -> str:
    """Return a clause for one write, such as ``an argument, float32[2], has its new value``."""
    what = "a tensor that the function closes over"
    if is_argument:
        what = "an argument"
    partly = " (perhaps in part)"
    if complete:
        partly = ""
    dtype = str(written.dtype).removeprefix("torch.")
    return f"{what}, {dtype}{list(written.shape)}, has its new value{partly}"
