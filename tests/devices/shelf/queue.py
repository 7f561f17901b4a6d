"""The queue of the device: writes that have been asked for and may not have happened.

A kernel returns at once, with memory that is filled later. The next kernel waits, as kernels run in
their order. So does what the host reads.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["QUEUE", "Queue"]

Write = Callable[[], object]


class Queue:
    """Writes to memory of the device, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._writes: list[Write] = []

    def push(self, write: Write) -> None:
        """Ask for a write."""
        self._writes.append(write)

    def wait(self) -> None:
        """Run all writes."""
        writes, self._writes = self._writes, []
        for write in writes:
            write()

    def forget(self) -> None:
        """Leave the last write out."""
        self._writes.pop()


QUEUE = Queue()
