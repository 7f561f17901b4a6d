"""Count which overloads of torch's dispatcher the cells of a run call, by whom and how deep.

    pytest … --overloads FOLDER     each process writes FOLDER/PID.jsonl, a line a cell:
    {"op": "torch.sin", "check": "out", "calls": {"top": ["aten::sin.out"], "within": [], …}}

`top`: the target calls the overload, and no other op does. `within`: an op that the target calls
does. `other`: a reference, a sample or a comparison does. An overload is written where it is
highest, and a process writes each fact of a row and a check once.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gen.targets.target_marks import mark_with
from gen.torch_private.aten_overloads import MARK, OperatorCall, marked, observed_calls

__all__ = ["DEPTHS", "DispatcherCalls", "depths_of"]

DEPTHS = ("top", "within", "other")


class DispatcherCalls:
    """Write what cells call into a folder, one file for each process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[tuple[str, str, str, str]] = set()
        self._process = 0
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def of_cell(self, op: str, check: str) -> Iterator[None]:
        """Count what a block calls, for a row and a check."""
        if os.getpid() != self._process:  # a worker is a fork, and counts for itself
            self._process = os.getpid()
            self._known.clear()
            mark_with(marked)
        with observed_calls() as observed:
            yield
        self._write(op, check, depths_of(observed.calls))

    def _write(self, op: str, check: str, depths: dict[str, str]) -> None:
        """Write a line with what the file of this process does not say yet."""
        calls: dict[str, list[str]] = {depth: [] for depth in DEPTHS}
        facts = {(op, check, name, depth) for name, depth in depths.items()} - self._known
        if not facts:
            return
        self._known |= facts
        for _, _, name, depth in sorted(facts):
            calls[depth].append(name)
        line = json.dumps({"op": op, "check": check, "calls": calls})
        # a worker may end without a word, so that each line is written at once
        with (self._folder / f"{self._process}.jsonl").open("a") as file:
            file.write(line + "\n")


def depths_of(calls: Sequence[OperatorCall]) -> dict[str, str]:
    """Return for each overload the highest depth at which it was called.

    A target that calls `special_expit`, which is composed of `sigmoid`, and a reference that calls
    both give `{"aten::special_expit": "top", "aten::sigmoid": "within"}`.
    """
    spans = sorted((call.begin, call.end) for call in calls if call.name == MARK)
    best: dict[str, str] = {}
    for call, is_inner in _nested([call for call in calls if call.name != MARK]):
        depth = "other"
        if _is_in(spans, call.begin):
            depth = "within" if is_inner else "top"
        best[call.name] = min(depth, best.get(call.name, depth), key=DEPTHS.index)
    return best


def _nested(calls: Sequence[OperatorCall]) -> Iterator[tuple[OperatorCall, bool]]:
    """Yield each call, and whether another call of its thread makes it.

    A call from 2 to 5 is made by one from 1 to 9. One from 10 to 12 is not.
    """
    ends: dict[int, list[int]] = {}
    for call in sorted(calls, key=lambda call: (call.begin, -call.end)):
        open_ends = ends.setdefault(call.thread, [])
        while open_ends and open_ends[-1] <= call.begin:
            open_ends.pop()
        yield call, bool(open_ends)
        open_ends.append(call.end)


def _is_in(spans: Sequence[tuple[int, int]], moment: int) -> bool:
    """Return whether a moment is in one of the spans, which are sorted by their beginning."""
    place = bisect_right(spans, (moment, 1 << 63)) - 1
    # a span of a check may lie in another one, so that the one before may last longer
    return any(begin <= moment <= end for begin, end in spans[max(0, place - 4) : place + 1])
