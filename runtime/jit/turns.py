"""Whose turn it is: captures and calls that assign run one after the other, and calls in eager mode
run beside one another, not beside these.

    turns = Turns()
    with turns.alone():                 # a capture, or a call that assigns
        turns.require_alone()           # BesideEager if another thread runs in eager mode
    with turns.in_eager_mode():         # user's code, which may wait for other threads
        f(x)

A capture puts Python's state back, and with it what others would assign meanwhile. User's code may
hold a lock of its own, or wait for another thread. So nobody waits for a call in eager mode: where
one runs in another thread, a call runs in eager mode as well."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ..seam.ambient import Ambient
from ..seam.locks import in_child, lock_of


class _Run(Ambient):
    """``compares``: whether this thread runs a program in eager mode, to compare a call with it.
    Then jitted functions that it calls capture nothing."""

    compares: bool = False


_RUN = _Run()


@contextmanager
def without_captures() -> Iterator[None]:
    """Run jitted functions in eager mode where they would be captured."""
    before, _RUN.compares = _RUN.compares, True
    try:
        yield
    finally:
        _RUN.compares = before


class BesideEager(BaseException):
    """A call would be captured, or assign, beside one in eager mode. No ``Exception``, since
    nothing is wrong with it. ``turns``: of the function that it is of."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns


class Turns:
    """The turns of the calls of one jitted function."""

    def __init__(self) -> None:
        self._lock = lock_of(self, "_lock", threading.RLock)
        self._alone: int | None = None  # the thread that holds the lock
        self._eager: Counter[int] = Counter()  # calls in eager mode, by thread
        self._begun: Counter[int] = Counter()  # turns and calls in eager mode so far, by thread
        in_child(self, Turns._forget_threads)

    @property
    def is_mine(self) -> bool:
        """Return whether this thread runs alone."""
        return self._alone == threading.get_ident()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other thread capture, or run a call that assigns, while entered."""
        with self._lock:
            before, self._alone = self._alone, threading.get_ident()
            self._begun[self._alone] += 1
            try:
                yield
            finally:
                self._alone = before

    def require_alone(self) -> None:
        """Raise :class:`BesideEager` if another thread runs a call in eager mode. None begins while
        this thread runs alone. Or if this thread runs a program in eager mode, to compare with."""
        if _RUN.compares:
            raise BesideEager(self)
        if self._eager and set(self._eager) != {threading.get_ident()}:
            raise BesideEager(self)

    @contextmanager
    def in_eager_mode(self) -> Iterator[None]:
        """Run user's code in eager mode, after what runs alone in another thread."""
        me = threading.get_ident()
        # only to count: the user's code may wait for a thread that waits for this lock
        with self._lock:
            self._eager[me] += 1
            self._begun[me] += 1
        try:
            yield
        finally:
            with self._lock:
                self._eager[me] -= 1
                if not self._eager[me]:  # `require_alone` takes each key for a thread that runs
                    del self._eager[me]

    @property
    def of_others(self) -> tuple[int, bool]:
        """Return how many turns and calls in eager mode other threads have begun, and whether one
        of them runs now."""
        me = threading.get_ident()
        begun = sum(self._begun.values()) - self._begun[me]
        runs = self._alone not in (None, me) or any(thread != me for thread in self._eager)
        return begun, runs

    def _forget_threads(self) -> None:
        """Forget the other threads, which the child of a fork does not have."""
        me = threading.get_ident()
        if self._alone != me:
            self._alone = None
        self._eager = Counter(
            {thread: count for thread, count in self._eager.items() if thread == me}
        )
