"""What a run shows while it goes on: a live line on a terminal, and a line a minute in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gen.cluster.output import Output

__all__ = ["Display"]

_EVERY = 60.0  # seconds between lines of a log


class Display:
    """Shows how many cells have an outcome, how many failed, and how many workers there are."""

    def __init__(self, output: Output, total: int | None) -> None:
        self._output = output
        self._total = total
        self._begin = self._told = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("cells", total=total)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, workers: int, lost: int) -> None:
        """Show the state of the run."""
        counts, now = self._output.counts, time.monotonic()
        failed = self._output.failing
        words = [f"{workers} workers" if workers else "waiting for workers", f"{failed} failed"]
        if lost:
            words.append(f"{lost} groups lost their worker")
        text = " · ".join(words)
        self._bar.update(self._task, completed=counts.total(), description=text)
        if self._bar.disable and now - self._told >= _EVERY:
            self._told = now
            of = f" of {self._total:,}" if self._total is not None else ""
            print(
                f"{now - self._begin:6.0f} s  {counts.total():,}{of} cells · {text}",
                file=sys.stderr,
                flush=True,
            )
