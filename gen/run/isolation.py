"""Call functions that may crash or never end in a process of their own.

A :class:`Worker` is forked at its first call, so it has what its parent has loaded. It answers one
call after another. When it dies, or takes longer than its limit, the call raises :class:`Crashed`
or :class:`TimedOut`, and the next call gets a fresh worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import select
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from gen.outcomes import Crashed, TimedOut

__all__ = ["POSSIBLE", "Worker"]

POSSIBLE = hasattr(os, "fork")
_NOTE = 4096  # bytes that a worker may note
_CLOCK = struct.Struct("dd")  # seconds outside of the limit, and since when the worker is there
_LONGEST = 300.0  # seconds outside of the limit
_STEP = 0.1  # seconds of a wait at least, while the clock of a worker moves the limit on
_GRACE = 1.0  # seconds for a worker to write its stack after SIGABRT
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


class Worker:
    """Answer `serve(question)` in another process. Questions and answers are pickled."""

    def __init__(self, serve: Callable[[Any], object]) -> None:
        self._serve = serve
        # shared with the process, so that they outlive it
        self._note, self._clock = mmap.mmap(-1, _NOTE), mmap.mmap(-1, _CLOCK.size)
        self._pid: int | None = None
        self._process: int | None = None  # a descriptor that is readable when the process has ended
        self._connection: Connection
        self._stack: IO[bytes]

    def ask(self, question: object, limit: float | None, *, alone: bool = False) -> Any:
        """Return the answer, or raise the exception that `serve` raised.

        Raises TimedOut after `limit` seconds, Crashed if the process ends. Time in which the
        process waits for a processor does not count, so a busy machine makes no call slow.
        `alone`: the process answers no other question.
        """
        if alone:
            self.close()
            try:
                return self.ask(question, limit)
            finally:
                self.close()
        if self._pid is None:
            self._start()
        self.note("")
        _CLOCK.pack_into(self._clock, 0, 0.0, 0.0)
        begin, queued = time.perf_counter(), self._time_in_queue()
        try:
            self._connection.send(question)
            if not self._wait_for_answer(begin - queued, limit):
                raise TimedOut(f"no result after {limit:g} s", self._end(signal.SIGABRT)[1])
            answered, answer = self._connection.recv()
        except (EOFError, OSError):
            seconds = time.perf_counter() - begin
            cause, stack = self._end(None)
            raise Crashed(f"{cause} after {seconds:.1f} s", stack) from None
        except BaseException:
            # an interrupt: the worker is not to answer the next question with this answer
            self.close()
            raise
        if not answered:
            raise answer
        return answer

    def note(self, text: str) -> None:
        """Leave a text for the parent. It can be read with :meth:`noted` even after a crash."""
        data = text.encode()[: _NOTE - 2]
        self._note[: 2 + len(data)] = len(data).to_bytes(2, "little") + data

    def noted(self) -> str:
        """Return the last note of the worker's last call."""
        return self._note[2 : 2 + int.from_bytes(self._note[:2], "little")].decode(errors="ignore")

    @contextlib.contextmanager
    def outside_limit(self) -> Iterator[None]:
        """Run a block of the worker whose time does not count for the limit, up to five minutes."""
        spent, _ = _CLOCK.unpack_from(self._clock)
        begin = time.perf_counter()
        _CLOCK.pack_into(self._clock, 0, spent, begin)
        try:
            yield
        finally:
            _CLOCK.pack_into(self._clock, 0, spent + time.perf_counter() - begin, 0.0)

    def _time_outside(self) -> float:
        """Return the seconds of the present call that do not count."""
        spent, since = _CLOCK.unpack_from(self._clock)
        if since:
            spent += time.perf_counter() - since
        return min(float(spent), _LONGEST)

    def _time_in_queue(self) -> float:
        """Return the seconds that the process has waited for a processor, 0 if unknown."""
        try:
            words = Path(f"/proc/{self._pid}/schedstat").read_text().split()
        except OSError:  # another system than Linux, or a process that has ended
            return 0.0
        return int(words[1]) / 1e9

    def close(self) -> None:
        """End the process, if there is one."""
        if self._pid is not None:
            self._end(signal.SIGKILL)

    def _start(self) -> None:
        """Fork the process, and connect it by a pipe."""
        mine, its = Pipe()
        self._stack = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads; pytest-xdist's stay in the parent
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                mine.close()
                self._prepare(parent)
                self._answer(its)
            finally:
                os._exit(1)
        its.close()
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here as well as in the worker: whichever comes first
        self._pid, self._connection = pid, mine
        self._process = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None

    def _prepare(self, parent: int) -> None:
        """Prepare a new worker: it has a group of its own, dies with its parent, and writes its
        stack when it crashes.
        """
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        # The parent may have died between the fork and prctl.
        if os.getppid() != parent:
            os._exit(1)
        import resource  # Windows has no such module, and no fork

        # A crash is an outcome here, and a core file of torch has gigabytes.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        faulthandler.enable(self._stack)

    def _answer(self, connection: Connection) -> None:
        """Answer questions until the pipe is closed."""
        while True:
            try:
                question = connection.recv()
            except EOFError:
                os._exit(0)
            try:
                answer = (True, self._serve(question))
            except BaseException as error:
                answer = (False, error)
            sys.stdout.flush()
            sys.stderr.flush()
            try:
                connection.send(answer)
            except OSError:
                os._exit(0)
            # The answer cannot be pickled. The worker lives on, and the question has an error.
            except Exception as error:
                connection.send(
                    (
                        False,
                        TypeError(
                            "the result cannot be sent to another process "
                            f"({error}): {answer[1]!r:.300}"
                        ),
                    )
                )

    def _wait_for_answer(self, begin: float, limit: float | None) -> bool:
        """Return whether there is an answer, or the process has ended, within the limit.

        `begin`: when the call has begun, less what the process had waited for a processor before.
        """
        ends: list[Any] = [self._connection, *([] if self._process is None else [self._process])]
        ready = wait(ends, limit)
        while not ready and limit is not None:
            uncounted = self._time_outside() + self._time_in_queue()
            left = begin + limit + uncounted - time.perf_counter()
            if left <= 0:
                return False
            ready = wait(ends, max(left, _STEP))
        if ready and self._connection not in ready and not self._connection.poll():
            # the process has ended, though a process that it started holds its end of the pipe
            raise EOFError
        return bool(ready)

    def _end(self, by: signal.Signals | None) -> tuple[str, str]:
        """Send a signal, wait for the end, and kill the worker's own processes.

        Returns the cause of the end, and where Python was.
        """
        assert self._pid is not None
        pid, self._pid = self._pid, None
        if by is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, by)
        status = _wait_for(pid, _GRACE)
        # Processes that the worker has started are in its group. They may hold its pipe open.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
        self._connection.close()
        if self._process is not None:
            os.close(self._process)
        self._stack.seek(0)
        stack = self._stack.read().decode(errors="replace")
        self._stack.close()
        return _cause(status), stack


def _wait_for(pid: int, seconds: float) -> int | None:
    """Return the status of a process that ends within `seconds`, else None."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return status
        select.select([], [], [], 0.002)
    return None


def _cause(status: int) -> str:
    """Describe the end of a process: "exit status 3" or "SIGSEGV"."""
    if not os.WIFSIGNALED(status):
        return f"exit status {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"{name} (the kernel sends it when memory runs out)" if name == "SIGKILL" else name
