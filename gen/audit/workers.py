"""Run cells of the matrix on a target in several processes, either under a watch or with a fault in
one rule.
"""

from __future__ import annotations

import logging
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gen.audit.generated_modules import Check, eligible, load_modules, run_cell
from gen.checks.tables import Cell
from gen.run.project_defaults import declare_targets_of
from gen.targets import load
from gen.targets.faults import REFUSED, Auditable, Watch
from gen.targets.protocol import Target

__all__ = ["Job", "Tried", "Workers"]

PATIENCE = 60.0  # seconds for one cell: a fault can make an iteration endless


@dataclass(frozen=True)
class Job:
    """Work for a process of the audit."""

    # ``record`` runs cells under a watch, ``try`` runs them with a fault until one fails
    what: str
    # the keys of the cells
    arguments: tuple[str, ...]
    # with `kind` the fault of ``try``
    rule: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Tried:
    """The result of a fault on some cells."""

    # the first cell that failed with the fault and passes without
    caught: str | None = None
    # the failure of that cell
    why: str = ""
    # the number of cells that were tried
    cells: int = 0


class Workers:
    """Run jobs in `count` processes.

    Results come as they are ready. If a process dies, only its own job is lost.
    """

    def __init__(self, count: int, target: str, device: str, modules: Path) -> None:
        self._count = count
        self._start = (target, device, modules)

    def each(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """Yield each job with its result, or with None if the job killed its process."""
        again: list[Job] = []
        with self._pool(self._count) as pool:
            left = list(reversed(jobs))
            running: dict[Future[object], Job] = {}
            try:
                while left or running:
                    # Twice as many jobs as processes, so that none waits. All of them are suspects
                    # after a death.
                    while left and len(running) < 2 * self._count:
                        job = left.pop()
                        running[pool.submit(_do, job)] = job
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        yield running.pop(future), result
            except BrokenProcessPool:
                again = [*running.values(), *reversed(left)]
        suspects = again[: 2 * self._count]
        for job in suspects:  # one of these killed its process; each runs alone to find out which
            with self._pool(1) as pool:
                try:
                    yield job, pool.submit(_do, job).result()
                except BrokenProcessPool:
                    yield job, None
        if again:
            yield from self.each(again[len(suspects) :])

    def _pool(self, count: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, get_context("spawn"), _begin, self._start)


# --- in a worker ----------------------------------------------------------------------------------


@dataclass
class _State:
    target: Target
    faults: Auditable
    device: str
    cells: dict[str, tuple[Check, Cell]]
    watching: tuple[AbstractContextManager[Watch], Watch] | None = None


_STATE: list[_State] = []


def _begin(target: str, device: str, modules: Path) -> None:
    """Prepare a worker: load the target and the cells."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # a compiler logs each error that a fault leads to
    declare_targets_of(Path.cwd())  # a process that is spawned has read no matrix
    loaded = load(target)
    assert isinstance(loaded, Auditable)
    cells = eligible(load_modules(modules), "full", loaded.in_stages)
    _STATE[:] = [_State(loaded, loaded, device, cells)]


def _do(job: Job) -> object:
    return _record(job.arguments) if job.what == "record" else _try(job)


def _record(keys: Sequence[str]) -> list[tuple[str, float, dict[str, frozenset[str]]]]:
    """Run cells under a watch. Return the key, the seconds and the rules of each cell that runs
    one.
    """
    state = _STATE[0]
    if state.watching is None:  # to hook every rule takes longer than to run a cell
        manager = state.faults.watched()
        state.watching = (manager, manager.__enter__())
    watch = state.watching[1]
    records = []
    for key in keys:
        watch.taken()
        start = time.perf_counter()
        passed = _outcome(key) == "passed"
        rules = {name: kinds for name, kinds in watch.taken().items() if passed or REFUSED in kinds}
        if rules:
            records.append((key, time.perf_counter() - start, rules))
    return records


def _try(job: Job) -> Tried:
    """Run cells with a fault, until one fails that passes without it."""
    state = _STATE[0]
    if state.watching is not None:
        state.watching[0].__exit__(None, None, None)
        state.watching = None
    for tried, key in enumerate(job.arguments, 1):
        check, cell = state.cells[key]
        with state.faults.planted(job.rule, job.kind), _patience():
            verdict = run_cell(state.target, check, cell, state.device)
        if verdict.failed and _outcome(key) == "passed":
            return Tried(key, verdict.why, tried)
    return Tried(cells=len(job.arguments))


def _outcome(key: str) -> str:
    state = _STATE[0]
    check, cell = state.cells[key]
    with _patience():
        return run_cell(state.target, check, cell, state.device).outcome


@contextmanager
def _patience() -> Iterator[None]:
    """Let a cell that takes too long raise TimeoutError."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"the cell was stopped after {PATIENCE:.0f} s")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
