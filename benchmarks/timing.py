"""Interleaved timing of two callables.

When two sides take turns, a noisy machine slows both alike. Then the ratio of their medians is
meaningful, though neither time is. Time is processor time on one thread. On a shared machine, a
call of five milliseconds is almost always interrupted, and one of three is not. Wall-clock time
would count the interruption.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Median seconds per call of ours and of the peer, and the quartiles of the ratios
    of single rounds."""

    ours: float
    peer: float
    low: float
    high: float
    rounds: int

    @property
    def value(self) -> float:
        """Ours over the peer: below one, ours is faster."""
        return self.ours / self.peer


def compare(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    seconds: float = 1.0,
    least_rounds: int = 5,
    clock: Callable[[], float] = time.process_time,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Ratio:
    """Time both in alternation for about `seconds` in all, after a warm-up. A round repeats a call
    until it takes about a millisecond.

    The side that goes first alternates too, so that neither always starts with the other's caches.
    Ours runs inside `around()`, whose entry and exit are not timed.
    """

    def turn(of_ours: bool, repeats: int) -> float:
        with around() if of_ours else nullcontext():
            # warms the interpreter's caches for what `around` changes
            if around is not nullcontext:
                _once(ours if of_ours else peer, repeats, clock)
            return _once(ours if of_ours else peer, repeats, clock)

    repeats = max(1, round(1e-3 / max(turn(True, 1), turn(False, 1), 1e-7)))
    turn(True, repeats)
    turn(False, repeats)
    ours_times: list[float] = []
    peer_times: list[float] = []
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        stop = clock() + seconds
        while len(ours_times) < least_rounds or clock() < stop:
            first_ours = len(ours_times) % 2 == 0
            for of_ours in (first_ours, not first_ours):
                (ours_times if of_ours else peer_times).append(turn(of_ours, repeats) / repeats)
    finally:
        if collecting:
            gc.enable()
    by_round = [a / b for a, b in zip(ours_times, peer_times, strict=True)]
    low, _, high = statistics.quantiles(by_round, n=4)
    return Ratio(
        statistics.median(ours_times), statistics.median(peer_times), low, high, len(by_round)
    )


def geometric_mean(ratios: Iterable[float]) -> float:
    """The mean in which twice as slow and twice as fast cancel. NaN for an empty list."""
    logs = [math.log(r) for r in ratios]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def _once(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return clock() - start
