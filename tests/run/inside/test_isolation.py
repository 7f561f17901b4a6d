"""A worker answers in another process, and the loss of it is an exception.

Inside: gen.run.isolation.Worker. Calls that abort, hang or leave children are made here one by
one, with the process that answers. tests/run/test_crashes.py shows what a run makes of them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gen.outcomes import Crashed, TimedOut
from gen.run.isolation import Worker


def serve(question: Any) -> Any:
    match question:
        case "pid":
            return os.getpid()
        case "unsendable":
            return lambda: None
        case "wrong":
            raise KeyError("wrong")
        case "leave":
            raise SystemExit(7)
        case "abort":
            worker_of_the_test[0].note("half way")
            os.abort()
        case "with a child that stays":
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
        case "sleep":
            time.sleep(60)
        case "work":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            while time.process_time() < 0.8:
                pass
        case ("children", path):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            Path(path).write_text(str(child.pid))
            time.sleep(60)
    return question


worker_of_the_test: list[Worker] = []


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(serve)
    worker_of_the_test[:] = [made]
    yield made
    made.close()


def test_questions_are_answered_by_one_other_process(worker: Worker) -> None:
    first = worker.ask("pid", None)
    assert first == worker.ask("pid", 10) != os.getpid()
    assert worker.ask({"a": [1, 2]}, None) == {"a": [1, 2]}


def test_an_exception_of_the_call_is_raised_and_the_process_stays(worker: Worker) -> None:
    process = worker.ask("pid", None)
    with pytest.raises(KeyError, match="wrong"):
        worker.ask("wrong", None)
    with pytest.raises(SystemExit):
        worker.ask("leave", None)
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        worker.ask("unsendable", None)
    assert worker.ask("pid", None) == process


def test_a_crash_says_the_signal_the_stack_and_the_last_note(worker: Worker) -> None:
    with pytest.raises(Crashed, match=r"^SIGABRT after \d+\.\d s$") as crash:
        worker.ask("abort", None)
    assert "in serve" in crash.value.stack
    assert worker.noted() == "half way"
    assert worker.ask("back", None) == "back" and worker.noted() == ""


def test_a_limit_ends_the_call_and_the_next_one_has_another_process(worker: Worker) -> None:
    process = worker.ask("pid", None)
    begin = time.perf_counter()
    with pytest.raises(TimedOut, match=r"no result after 0\.3 s"):
        worker.ask("sleep", 0.3)
    assert time.perf_counter() - begin < 3
    assert worker.ask("pid", 10) != process


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux tells who waits")
def test_a_wait_for_a_processor_is_no_part_of_the_limit(worker: Worker) -> None:
    """Three other processes share the processor of the worker, which works for most of a second."""
    place = min(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, {{{place}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(3)]
    try:
        begin = time.perf_counter()
        assert worker.ask("work", 1.5) == "work"
        assert time.perf_counter() - begin > 1.5, "it has waited"
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_the_processes_that_a_call_started_end_with_it(worker: Worker, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    with pytest.raises(TimedOut):
        worker.ask(("children", noted), 2)
    child = Path(f"/proc/{noted.read_text()}/stat")
    deadline = time.perf_counter() + 5
    while child.exists() and child.read_text().split()[2] != "Z" and time.perf_counter() < deadline:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_an_end_is_noticed_though_a_child_has_the_pipe_open(worker: Worker) -> None:
    with pytest.raises(Crashed, match="exit status 0"):
        worker.ask("with a child that stays", 20)


def test_a_closed_worker_leaves_no_process(worker: Worker) -> None:
    process = worker.ask("pid", None)
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\nfrom gen.run.isolation import Worker\nworker = Worker(lambda "
        "question: (print(os.getpid(), flush=True), time.sleep(60)))\nworker.ask(0, None)\n"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        worker = Path(f"/proc/{parent.stdout.readline().strip()}/stat")
        parent.kill()
    deadline = time.perf_counter() + 5
    while (
        worker.exists() and worker.read_text().split()[2] != "Z" and time.perf_counter() < deadline
    ):
        time.sleep(0.05)
    assert not worker.exists() or worker.read_text().split()[2] == "Z"
