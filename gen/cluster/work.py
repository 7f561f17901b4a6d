"""Do what a Dask worker does: `run_group`. It knows nothing of Dask, and keeps the processes that
run cells for the next group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any

from gen.checks.tables import Cell
from gen.cluster.job import Answer, Group, Job, WrongVersion
from gen.run.results import CellResult, line_of

__all__ = ["died", "release", "run_group"]

_TRIES = 2  # how often a cell may end the process that runs cells
# A Dask worker may have several threads, each of which runs a group. They share the processes.
_idle: list[Process] = []
_lock = threading.Lock()


class Process:
    """A process that runs cells of one job."""

    def __init__(self, job: Job) -> None:
        """Start the process. Raises WrongVersion if this machine is not of the job."""
        self.job = job
        # open as long as the process
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        mine, its = Pipe()
        # Nobody writes to this pipe. The child ends when the worker's end closes, as it does if the
        # worker is killed.
        ours, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "gen.cluster.serving", str(its.fileno())]
        self._connection = mine
        self._process = subprocess.Popen(
            command,
            pass_fds=[its.fileno(), ours],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        its.close()
        os.close(ours)
        try:
            mine.send(ours)
            mine.send((job, str(Path.cwd())))
            wrong = mine.recv()
        except (EOFError, OSError):
            cause = self.close()
            raise RuntimeError(
                f"{_here()}: the process that runs cells did not start "
                f"({cause}): {self._last_words}"
            ) from None
        if wrong:
            self.close()
            raise WrongVersion(f"{_here()} has {wrong}")

    def send(self, group: Group) -> None:
        self._connection.send(group)

    def receive(self) -> Any:
        """Return what came of the next cell. Raises EOFError if the process has ended."""
        try:
            return self._connection.recv()
        except OSError as error:
            raise EOFError from error

    def close(self) -> str:
        """End the process and say how it ended."""
        with contextlib.suppress(OSError):
            os.close(self._lifeline)
        self._connection.close()
        try:
            status = self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self._last_words = " / ".join(lines[-2:])[-300:]
        self._log.close()
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def run_group(job: Job, group: Group) -> Answer:
    """Run the cells of a group one after another.

    A cell that ends the process that runs cells twice has crashed. Raises WrongVersion if this
    machine is not of the job.
    """
    begin = time.perf_counter()
    cells: list[tuple[str, str]] = []
    met: set[str] = set()
    active: dict[str, str] = {}
    tries = 0
    process = _take_process(job)
    while len(cells) < len(group.cells):
        # After a death the rest of the group goes to a new process, first of all the same cell.
        process.send(Group(group.module, group.cells[len(cells) :]))
        try:
            while len(cells) < len(group.cells):
                outcome, line, happened, new_entries = process.receive()
                cells.append((outcome, line))
                met.update(happened)
                active.update(new_entries)
                tries = 0
        except EOFError:
            cause = process.close()
            tries += 1
            if tries == _TRIES:
                function, cell = group.cells[len(cells)]
                why = f"{cause} of the process that started the cell's, twice"
                cells.append(("crashed", died(group.module, function, cell, why)))
                tries = 0
            process = Process(job)
    with _lock:
        _idle.append(process)
    return Answer(tuple(cells), frozenset(met), active, time.perf_counter() - begin)


def _take_process(job: Job) -> Process:
    """Return a process that is idle, or a new one. Those of other jobs end."""
    _end([process for process in _idle if process.job != job])
    with _lock:
        idle = _idle.pop() if _idle else None
    return idle or Process(job)


def release(job: Job) -> None:
    """End the idle processes of a job that is over."""
    _end([process for process in _idle if process.job == job])


def _end(processes: list[Process]) -> None:
    """End processes, but for those that another thread has taken."""
    for process in processes:
        with _lock:
            if process not in _idle:
                continue  # another thread has it
            _idle.remove(process)
        process.close()


def died(module: str, function: str, cell: Cell, why: str) -> str:
    """Return the line of a cell that took the process with it that was to report it."""
    family, check = Path(module).stem.removeprefix("test_"), function.removeprefix("test_")
    node = f"{module}::{function}[{cell.id}]"
    return line_of(
        CellResult(
            cell.id,
            family,
            cell.op,
            cell.dtype,
            check,
            cell.axes.by_name(),
            "crashed",
            why,
            0.0,
            0,
            node,
        )
    )


def _here() -> str:
    return f"worker {os.uname().nodename}, process {os.getpid()}, in {Path.cwd()},"
