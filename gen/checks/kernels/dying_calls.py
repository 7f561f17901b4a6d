"""Make many calls of which any may end its process.

    outcomes_of(3, run)     ->     [the bytes of run(0), Death("SIGSEGV"), the bytes of run(2)]

A fork makes one call after another and sends back what came of each. When it ends, the call that it
had begun is the one that it died of, and another fork goes on behind that. A fork of the process is
enough: it has torch loaded, and costs some ten milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gen.outcomes import Lacking

__all__ = ["Death", "outcomes_of"]

SECONDS = 1.0
"""The longest time of a processor for one call. Sizes are small, so that a loop over a wrong number
is what takes longer."""
_QUIET = 30.0  # seconds without a word after which a fork waits for something that never comes
_MEMORY = 2 << 30  # bytes that a fork may have beyond those of its parent
_PERTURB, _BYTE = -6, 85  # the option of glibc, and what it fills memory with
_HEADER = struct.Struct("I")
Run = Callable[[int], bytes]


@dataclass(frozen=True)
class Death:
    """The end of a process in a call. `cause`: the signal, such as SIGSEGV, or an exit status."""

    cause: str

    @property
    def is_slow(self) -> bool:
        """Return whether the call took longer than it may, and did nothing else wrong."""
        return self.cause in ("SIGPROF", "SIGKILL")


def outcomes_of(
    count: int, run: Run, most_deaths: int | None = None, seconds: float = SECONDS
) -> list[bytes | Death]:
    """Return what ``run(0)``, ``run(1)``, … give, each in a process that may die of it.

    ``count``: how many calls there are. ``run``: makes the call of a number, and returns what is
    to be kept of it as bytes. It runs in a fork, so that what it changes is lost.

    Raises Lacking where processes have no forks. After ``most_deaths`` no other call is made, and
    there are fewer outcomes. ``seconds``: of a processor, for one call.
    """
    if not hasattr(os, "fork"):
        raise Lacking("this system has no fork, and a call may end the process")
    outcomes: list[bytes | Death] = []
    deaths = 0
    while len(outcomes) < count and deaths != most_deaths:
        reader, pid = _fork(range(len(outcomes), count), run, seconds)
        with contextlib.closing(reader):
            outcomes += reader.answers()
        _, status = os.waitpid(pid, 0)
        if len(outcomes) < count:
            outcomes.append(Death(_cause(status)))
            deaths += 1
    return outcomes


class _Reader:
    """Read what a fork sends. It ends the fork if that says nothing for too long."""

    def __init__(self, descriptor: int, pid: int) -> None:
        self._descriptor, self._pid = descriptor, pid

    def answers(self) -> list[bytes]:
        """Return the answers until the fork has ended.

        The last one may be cut where the process has died in the middle of it, and is left out.
        """
        data = b""
        while chunk := self._chunk():
            data += chunk
        answers = []
        while len(data) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(data)
            end = _HEADER.size + size
            if len(data) < end:
                break
            answers.append(data[_HEADER.size : end])
            data = data[end:]
        return answers

    def _chunk(self) -> bytes:
        ready, _, _ = select.select([self._descriptor], [], [], _QUIET)
        if not ready:
            os.kill(self._pid, signal.SIGKILL)
        return os.read(self._descriptor, 1 << 16)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._descriptor)


def _fork(numbers: range, run: Run, seconds: float) -> tuple[_Reader, int]:
    """Start a fork that makes the calls of these numbers.

    It ends without a word to the parent's handlers: what pytest and its plugins would do at the end
    of a process is for the parent to do.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            _prepare()
            for number in numbers:
                signal.setitimer(signal.ITIMER_PROF, seconds)
                answer = run(number)
                os.write(writing, _HEADER.pack(len(answer)) + answer)
            status = 0
        finally:
            # nothing of the parent's is to be ended here
            os._exit(status)
    os.close(writing)
    return _Reader(reading, pid), pid


def _prepare() -> None:
    """Let a fork die of what it does: without a core, a handler, or a word to the terminal.

    A handler of the parent, as that of faulthandler, would write the stack of each death. MKL and
    glibc write to the terminal by themselves.
    """
    for number in (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    _limit_memory()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.dup2(nothing, 1)
    # a pool of threads does not survive a fork
    torch.set_num_threads(1)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        # memory that nobody has filled holds the same bytes in each call
        libc.mallopt(_PERTURB, _BYTE)


def _limit_memory() -> None:
    """Let a fork have little memory beyond that of its parent, and leave no core behind.

    A wrong size is often a large one. Then the allocator raises an error at once, where the system
    would give memory that nobody has until the first write.
    """
    import resource  # Windows has no such module, and no fork

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform != "linux":
        return
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _cause(status: int) -> str:
    """Return how a process ended: "SIGSEGV", or "exit status 3"."""
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.waitstatus_to_exitcode(status)}"
