"""Interleaved timing of two callables.

A noisy machine slows both sides alike when they take turns; the ratio of their medians then means something where
neither time does.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Median time of ours over median time of the peer, and the quartiles of the ratio taken round by round."""

    median: float
    low: float
    high: float
    rounds: int


def compare(ours: Callable[[], object], peer: Callable[[], object], *, seconds: float = 1.0, least_rounds: int = 7) -> Ratio:
    """Time both in alternation for about `seconds` in all; each round repeats a call until it takes about a millisecond."""
    repeats = max(1, round(1e-3 / max(_once(ours, 1), _once(peer, 1), 1e-7)))
    ours_times: list[float] = []
    peer_times: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        stop = time.perf_counter() + seconds
        while len(ours_times) < least_rounds or time.perf_counter() < stop:
            first_ours = len(ours_times) % 2 == 0
            for mine in (first_ours, not first_ours):
                (ours_times if mine else peer_times).append(_once(ours if mine else peer, repeats))
    finally:
        if collecting:
            gc.enable()
    by_round = [a / b for a, b in zip(ours_times, peer_times, strict=True)]
    low, _, high = statistics.quantiles(by_round, n=4)
    return Ratio(statistics.median(ours_times) / statistics.median(peer_times), low, high, len(by_round))


def _once(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start
