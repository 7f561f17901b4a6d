"""What a trial process answers, how it is asked, and what becomes of it.

Inside: ``runtime.aot.compilers.inductor_trial`` and ``trial_process``. A compiler that crashes at a
given moment is a script here, as no program of a user brings Inductor to that."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import fx

from runtime.aot.compilers import inductor_trial
from runtime.aot.compilers.inductor_trial import TrialFailed, _Process, _Trials
from runtime.aot.compilers.trial_process import _zeros


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 0", "it ends the process with code 0"),
        ("exit 1", "it ends the process with code 1"),
        ("kill -USR1 $$", "it ends by SIGUSR1"),  # SIGHUP is ignored under nohup
        ("kill -SEGV $$", "it ends by SIGSEGV"),
        ("kill -40 $$", "it ends by signal 40"),
    ],
)
def test_how_the_process_has_ended_is_told(command: str, said: str) -> None:
    one = object.__new__(_Process)
    one._process = subprocess.Popen(["sh", "-c", command])
    assert one._end() == said


def test_a_process_may_end_by_the_first_signal() -> None:
    """Which is ignored where this program runs under ``nohup``."""
    one: Any = object.__new__(_Process)
    one._process = SimpleNamespace(wait=lambda seconds: -1)
    assert one._end() == "it ends by SIGHUP"


def test_a_process_that_neither_answers_nor_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_trial, "GRACE", 0.05)
    one = object.__new__(_Process)
    one._process = subprocess.Popen(["sleep", "60"])
    try:
        assert one._end() == "it does not answer any more"
    finally:
        one._process.kill()
        one._process.wait()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", ""),
        (b"\n  \n", ""),
        (b"first\nError: the last\n\n", "; its last line is 'Error: the last'"),
        (b"x" * 20_000 + b"\n  end \n", "; its last line is 'end'"),
        (b"\xff!\n", "; its last line is '\ufffd!'"),
        (b"first" + b"z" * 10_000, f"; its last line is {'z' * 300!r}"),
        (b"first\na" + b"z" * 9_999, f"; its last line is {'a' + 'z' * 299!r}"),
        (b"y" * 301 + b"\n", f"; its last line is {'y' * 300!r}"),
    ],
)
def test_the_last_line_that_the_process_has_written_is_told(written: bytes, said: str) -> None:
    one = object.__new__(_Process)
    with tempfile.TemporaryFile() as one._output_file:
        one._output_file.write(written)
        one._output_file.seek(0)
        assert one._last_words() == said


def test_a_process_goes_on_with_the_folders_that_it_has_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "here")
    one = object.__new__(_Process)
    one.folders = inductor_trial._folders()
    one._process = subprocess.Popen(["sleep", "60"])
    try:
        assert one.usable()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "there")
        assert not one.usable()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "here")
        monkeypatch.setenv("TRITON_CACHE_DIR", "there")
        assert not one.usable()
        monkeypatch.delenv("TRITON_CACHE_DIR")
        assert one.usable()
    finally:
        one._process.kill()
        one._process.wait()
    assert not one.usable()


def test_a_trial_runs_on_zeros_that_take_the_memory_which_the_layout_needs() -> None:
    zeros = _zeros(torch.ones(7).as_strided((2, 3), (4, 1)))
    assert (
        zeros.stride() == (4, 1)
        and zeros.untyped_storage().nbytes() == 7 * zeros.element_size()
        and not zeros.any()
    )


GRAPH = fx.symbolic_trace(lambda x: x.sin())


class Scripted:
    """A process that has been asked nothing yet, with its end of the connection, and a program that
    sleeps in its place."""

    def __init__(self, *answers: tuple[str, str], program: Sequence[str] = ("sleep", "60")) -> None:
        self.process = object.__new__(_Process)
        self.process.connection, self.end = Pipe()
        self.process._output_file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self.process._process = subprocess.Popen(program, start_new_session=True)
        self.process._ready = False
        for answer in answers:
            self.end.send(answer)

    def received(self) -> list[bytes]:
        found = []
        while self.end.poll():
            found.append(self.end.recv_bytes())
        return found

    def close(self) -> None:
        if not self.process.connection.closed:
            self.process.close()
        self.end.close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*answers: tuple[str, str], **options: Any) -> Scripted:
        made.append(Scripted(*answers, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_request_is_sent_once_the_process_is_ready_and_the_answer_is_awaited(
    scripted: Any,
) -> None:
    one = scripted(("ready", ""), ("compiled", ""), ("done", ""), ("compiled", ""), ("done", ""))
    one.process._output_file.write(b"from before")
    one.process.tried([b"a", b"b"], 5.0)
    assert one.received() == [b"a", b"b"] and one.process._ready
    assert one.process._output_file.seek(0, 2) == 0, (
        "what it has said before is no part of a later error"
    )
    one.process.tried([b"c"], 5.0)  # it is ready for good
    assert one.received() == [b"c"] and not one.process.connection.poll()


@pytest.mark.parametrize(
    "answers",
    [[("error", "no kernel")], [("unread", "no op")], [("compiled", ""), ("error", "strides")]],
)
def test_a_refusal_is_told_by_its_word_and_the_process_goes_on(
    scripted: Any, answers: list[tuple[str, str]]
) -> None:
    one = scripted(("ready", ""), *answers, ("done", ""))
    with pytest.raises(TrialFailed) as caught:
        one.process.tried([b"a"], 5.0)
    assert (caught.value.what, str(caught.value)) == answers[-1]
    one.process.tried([b"b"], 5.0)


@pytest.mark.parametrize(
    "answers, doing",
    [
        ([], "importing torch"),
        ([("ready", "")], "compiling"),
        ([("ready", ""), ("compiled", "")], "running the code"),
    ],
)
def test_what_takes_too_long_is_told_with_what_it_was_doing(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, answers: list[tuple[str, str]], doing: str
) -> None:
    monkeypatch.setattr(inductor_trial, "_START", 0.25)
    one = scripted(*answers)
    with pytest.raises(TimeoutError, match=f"^it takes more than 0.25 s, and was {doing}$"):
        one.process.tried([b"a"], 0.25)


@pytest.mark.parametrize(
    "answers, doing",
    [
        ([], "importing torch"),
        ([("ready", "")], "compiling"),
        ([("ready", ""), ("compiled", "")], "running the code"),
    ],
)
def test_a_process_that_ends_is_told_with_what_it_was_doing(
    scripted: Any, answers: list[tuple[str, str]], doing: str
) -> None:
    one = scripted(*answers, program=("sh", "-c", "exit 3"))
    if not answers:
        one.process._output_file.write(b"bad start\n")
    one.end.close()
    words = "; its last line is 'bad start'" if not answers else ""
    with pytest.raises(
        ConnectionError, match=f"^it ends the process with code 3 while {doing}{words}$"
    ) as caught:
        one.process.tried([], 5.0)
    assert isinstance(caught.value.__cause__, EOFError)


def test_closing_ends_the_process_and_what_it_has_started(scripted: Any) -> None:
    one = scripted(program=("sh", "-c", "sleep 60 & wait"))
    one.process.close()
    assert one.process._process.returncode == -9
    assert one.process.connection.closed and one.process._output_file.closed
    ended = scripted(program=("true",))
    ended.process._process.wait()
    ended.process.close()
    assert ended.process._process.returncode == 0 and ended.process.connection.closed


def test_closing_a_process_that_has_just_ended_is_no_error(scripted: Any) -> None:
    one = scripted(program=("true",))
    ended = one.process._process
    ended.wait()
    one.process._process = SimpleNamespace(
        poll=lambda: None, pid=ended.pid, wait=ended.wait, returncode=0
    )
    one.process.close()
    assert one.process.connection.closed


def test_forgetting_leaves_the_process_alone(scripted: Any) -> None:
    one = scripted()
    handle = one.process._process
    one.process.forget()
    assert (
        one.process.connection.closed and one.process._output_file.closed and handle.returncode == 0
    )
    handle.returncode = None
    assert handle.poll() is None
    handle.kill()
    handle.wait()
    one.process._process = handle


class Fake:
    """Stands for a process. ``error``: what it answers with."""

    made: ClassVar[list[Fake]] = []

    def __init__(self) -> None:
        self.alive, self.closed, self.forgotten, self.asked = True, False, False, list[Any]()
        self.error: BaseException | None = None
        Fake.made.append(self)

    def usable(self) -> bool:
        return self.alive

    def tried(self, messages: Sequence[bytes], limit: float) -> None:
        self.asked.append((messages, limit))
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True

    def forget(self) -> None:
        self.forgotten = True


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> _Trials:
    monkeypatch.setattr(Fake, "made", [])
    monkeypatch.setattr(inductor_trial, "_Process", Fake)
    found = _Trials()
    monkeypatch.setattr(inductor_trial, "_TRIALS", found)
    return found


def test_one_process_is_started_and_serves_all_trials(trials: _Trials) -> None:
    inductor_trial.start()
    inductor_trial.start()
    trials.tried([b"a"], 1.0)
    trials.tried([b"b"], 2.0)
    (one,) = Fake.made
    assert one.asked == [([b"a"], 1.0), ([b"b"], 2.0)] and not one.closed


def test_a_process_that_is_of_no_use_is_closed_and_another_one_started(trials: _Trials) -> None:
    trials.start()
    Fake.made[0].alive = False
    trials.tried([], 1.0)
    assert (
        [one.closed for one in Fake.made] == [True, False]
        and not Fake.made[0].asked
        and Fake.made[1].asked
    )


@pytest.mark.parametrize(
    "error, goes_on",
    [(TrialFailed("no", "error"), True), (TimeoutError(), False), (KeyboardInterrupt(), False)],
)
def test_after_a_refusal_the_process_goes_on_and_after_any_other_error_it_is_closed(
    trials: _Trials, error: BaseException, goes_on: bool
) -> None:
    trials.start()
    Fake.made[0].error = error
    with pytest.raises(type(error)):
        trials.tried([], 1.0)
    assert Fake.made[0].closed is not goes_on
    trials.start()
    assert len(Fake.made) == (1 if goes_on else 2)


def test_at_the_exit_the_process_is_closed_and_a_fork_forgets_it(trials: _Trials) -> None:
    trials.end()
    trials.forked()
    assert not Fake.made
    trials.start()
    trials.end()
    (one,) = Fake.made
    assert (one.closed, one.forgotten) == (True, False)
    lock = trials._lock
    trials.forked()
    assert one.forgotten and trials._lock is not lock
    trials.start()
    assert len(Fake.made) == 2


def test_one_thread_at_a_time_has_the_process(trials: _Trials) -> None:
    at_once: list[bool] = []

    class Waiting(Fake):
        def tried(self, messages: Sequence[bytes], limit: float) -> None:
            at_once.append(trials._lock.locked())

    trials._process = Waiting()  # type: ignore[assignment]
    threads = [threading.Thread(target=trials.tried, args=([], 1.0)) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert at_once == [True, True] and not trials._lock.locked()


@pytest.mark.parametrize(
    "error, what",
    [
        (TimeoutError("it is late"), "late"),
        (ConnectionError("it is dead"), "dead"),
        (TrialFailed("it is bad", "error"), "error"),
    ],
)
def test_the_error_of_a_trial_says_what_has_happened(
    trials: _Trials, monkeypatch: pytest.MonkeyPatch, error: BaseException, what: str
) -> None:
    monkeypatch.setattr(inductor_trial, "request", lambda *given, **_: given)
    trials.start()
    Fake.made[0].error = error
    with pytest.raises(TrialFailed, match=str(error)) as caught:
        inductor_trial.tried(GRAPH, [1], 3.0)
    assert caught.value.what == what and Fake.made[0].asked == [((GRAPH, [1], 3.0), 3.0)]


def test_a_graph_that_cannot_be_sent_asks_no_process(
    trials: _Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> Any:
        raise ValueError("no pickle\nof this")

    monkeypatch.setattr(inductor_trial, "request", failing)
    with pytest.raises(TrialFailed, match=r"^ValueError: no pickle$") as caught:
        inductor_trial.tried(GRAPH, [], 1.0)
    assert caught.value.what == "unsent" and not Fake.made


def test_a_process_is_started_apart_with_the_folders_and_modules_of_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, sys\nfrom multiprocessing.connection import Connection\n"
        "print('said', file=sys.stderr, flush=True)\nimport stat\nnone = os.fstat(0).st_rdev "
        "== os.stat(os.devnull).st_rdev\npath = os.environ['PYTHONPATH'].split(os.pathsep)\n"
        "Connection(int(sys.argv[1])).send([os.getsid(0) == os.getpid(), none, path, "
        "os.environ['HERE'], sys.flags.safe_path])\nsys.stdout.write('and done')\n"
    )
    monkeypatch.setattr(inductor_trial, "_PROGRAM", program)
    monkeypatch.setenv("HERE", "known")
    monkeypatch.setattr(sys, "path", ["relative", "/absolute"])
    one = _Process()
    try:
        assert one.connection.poll(60)
        apart, no_input, path, known, safe = one.connection.recv()
        assert apart and no_input and known == "known" and safe
        assert path == [str(Path.cwd() / "relative"), "/absolute"]
        with pytest.raises(EOFError):  # this process holds no other end
            one.connection.recv()
        assert (
            one._process.wait(60) == 0
            and one._last_words() == "; its last line is 'and done'"
            and not one.usable()
        )
        assert one.folders == inductor_trial._folders() and not one._ready
    finally:
        one.close()
