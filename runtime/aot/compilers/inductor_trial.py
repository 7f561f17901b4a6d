"""Try Inductor in another process first, so that a crash or a hang of it is an error.

    tried(graph, inputs, limit=600.0)       # returns, or raises TrialFailed

The other process compiles the graph and runs the code once. What it has compiled is on disk then,
in Inductor's own cache, from where this process takes it. One process serves all trials of a
program until it dies. The first trial starts it, and it stops with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path

from torch import fx

from ...seam.locks import in_child
from .trial_process import GRACE, cause, request

_PROGRAM = Path(__file__).with_name("trial_process.py")
# a process uses the folders of its start, so a change of one needs a new process
_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_START = 300.0  # seconds for the start of the process
# by the word of an answer, what the process does then
_NEXT = {"compiled": "running the code", "ran": "compiling"}
_LONGEST_LINE = 300  # letters of what the process printed last, in an error


class TrialFailed(Exception):
    """Say why a trial has no result.

    ``what``: ``"error"``, ``"unread"``, ``"unsent"``, ``"late"`` or ``"dead"``.
    """

    def __init__(self, text: str, what: str) -> None:
        super().__init__(text)
        self.what = what


class _Process:
    """Run one process for trials."""

    def __init__(self) -> None:
        self.folders = _folders()
        self._ready = False
        self.connection, other = Pipe()
        # no `with`: the file belongs to this object, which outlives this function
        self._output_file = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(other.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output_file,
                stderr=self._output_file,
                pass_fds=[other.fileno()],
                start_new_session=True,  # so that all compilers that it starts end with it
            )

    def usable(self) -> bool:
        """Return whether the process lives, and has the folders of now."""
        return self._process.poll() is None and self.folders == _folders()

    def tried(self, messages: Sequence[bytes], limit: float) -> None:
        """Send a request and wait for the last answer.

        After ``TrialFailed`` the process goes on. After any other error it is of no use.
        """
        doing = "importing torch"
        try:
            if not self._ready:
                self._answer(doing, _START, time.monotonic() + _START)
                self._ready = True
            # only the output of this trial may be in its error
            self._output_file.seek(0)
            self._output_file.truncate()
            until, doing = time.monotonic() + limit, "compiling"
            for message in messages:
                self.connection.send_bytes(message)
            word = text = ""
            while word not in ("done", "unread", "error"):
                word, text = self._answer(doing, limit, until)
                doing = _NEXT.get(word, doing)
        except (EOFError, ConnectionError) as error:
            raise ConnectionError(f"{self._end()} while {doing}{self._last_words()}") from error
        if word != "done":
            raise TrialFailed(text, word)

    def _answer(self, doing: str, limit: float, until: float) -> tuple[str, str]:
        """Wait for one answer, until time ``until``. ``TimeoutError`` if it is late."""
        if not self.connection.poll(max(0.0, until - time.monotonic())):
            raise TimeoutError(f"it takes more than {limit:g} s, and was {doing}")
        answer: tuple[str, str] = self.connection.recv()
        return answer

    def _end(self) -> str:
        """Describe the end of the process, as a clause of an error."""
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "it does not answer any more"
        if code >= 0:
            return f"it ends the process with code {code}"
        with contextlib.suppress(ValueError):
            return f"it ends by {signal.Signals(-code).name}"
        return f"it ends by signal {-code}"

    def _last_words(self) -> str:
        """Return the last line that the process has written, as a clause of an error."""
        # a compiler may have written very much
        self._output_file.seek(0, os.SEEK_END)
        self._output_file.seek(max(0, self._output_file.tell() - 10_000))
        lines = [
            line
            for line in self._output_file.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
        if not lines:
            return ""
        return f"; its last line is {lines[-1].strip()[:_LONGEST_LINE]!r}"

    def close(self) -> None:
        """End the process and what it has started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Leave the process to its owner, of which this one is a fork."""
        self._process.returncode = self._process.returncode or 0  # else its destructor warns
        self.connection.close()
        self._output_file.close()


class _Trials:
    """Hold the process of this program, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def start(self) -> None:
        """Start the process, so that it gets ready while this one prepares the request."""
        with self._lock:
            self._ready()

    def _ready(self) -> _Process:
        """Return the process, a new one if there is none that can be used."""
        if self._process is not None and not self._process.usable():
            self._end()
        if self._process is None:
            self._process = _Process()
        return self._process

    def tried(self, messages: Sequence[bytes], limit: float) -> None:
        """Run one trial. Threads take turns, as the process answers one request at a time."""
        with self._lock:
            process = self._ready()
            try:
                process.tried(messages, limit)
            except TrialFailed:
                raise
            # also after an interruption: the process would answer the request of before
            except BaseException:
                self._end()
                raise

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def end(self) -> None:
        """End the process at the exit of the interpreter.

        Without the lock: a thread that waits for an answer has it, and finds the process dead.
        """
        process = self._process
        if process is not None:
            process.close()

    def forked(self) -> None:
        """Forget the process in a fork of this program, which gets a process of its own."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            process.forget()


_TRIALS = _Trials()
atexit.register(_TRIALS.end)
in_child(_TRIALS, _Trials.forked)


def start() -> None:
    """Start the other process. It imports torch meanwhile."""
    _TRIALS.start()


def tried(
    graph: fx.GraphModule, inputs: Sequence[object], limit: float, *, cpp_wrapper: bool = False
) -> None:
    """Let Inductor compile ``graph`` for abstract values ``inputs`` and run its code in the other
    process, for ``limit`` seconds at most.

    ``cpp_wrapper``: whether C++ calls the kernels. The code in which Python does is tried before.
    ``TrialFailed`` says what happened to it there.
    """
    # a graph that cannot be pickled is no failure of Inductor
    try:
        messages = request(graph, inputs, limit, cpp_wrapper=cpp_wrapper)
    except Exception as error:
        raise TrialFailed(cause(error), "unsent") from error
    try:
        _TRIALS.tried(messages, limit)
    except TimeoutError as error:
        raise TrialFailed(str(error), "late") from error
    except ConnectionError as error:
        raise TrialFailed(str(error), "dead") from error


def _folders() -> list[str | None]:
    """Return the folders in which Inductor and Triton store code, None for their defaults."""
    return list(map(os.environ.get, _FOLDERS))
