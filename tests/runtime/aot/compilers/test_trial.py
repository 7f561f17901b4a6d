"""Inductor is tried in another process: whatever happens to that one is an error here, and the next program is compiled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.aot.compilers import trial
from runtime.aot.compilers.trial import _Process
from runtime.aot.compilers.trial_process import _zeros

ROOT = Path(__file__).parents[4]


def ran(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)


def ends(process: int) -> bool:
    """Whether a process ends within a minute."""
    for _ in range(600):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = ran("from tests.runtime.aot.compilers import trial_programs; trial_programs.main()", tmp_path_factory.mktemp("kernels"))
    assert done.returncode == 0, f"ended by {done.returncode}: {done.stdout}{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_is_tried_is_compiled_and_taken_from_disk(seen: dict[str, Any]) -> None:
    assert seen["healthy"] == "[1.87758, 1.5403, 0.58385]"  # 1 + cos x
    assert seen["another"] == "[2.87758, 2.5403, 1.58385]"
    assert seen["cache"] == {"fxgraph_cache_hit": 2}


def test_one_process_tries_all_programs_and_a_fork_leaves_it_alone(seen: dict[str, Any]) -> None:
    assert seen["process"] == seen["process of another"] != 0
    assert seen["in a fork"] == 0


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("exits", "it ends the process with code 7 while compiling"),
        ("is killed", "it ends by SIGSEGV while compiling; its last line is 'about to die'"),
        ("never ends", "it takes more than 15 s, and was compiling"),
        ("raises", "ValueError: not this graph"),
        ("makes code that crashes", "it ends by SIGSEGV while running the code"),
        ("makes code of a wrong layout", "its code expects another layout than a kernel gives: expected size 2==3"),
    ],
)
def test_a_failure_of_inductor_is_an_error_that_names_the_program(seen: dict[str, Any], way: str, said: str) -> None:
    assert seen[way].startswith("RuntimeError: Inductor does not compile a graph of 2 calls that begins at ")
    assert "trial_programs.py" in seen[way] and said in seen[way] and 'Use compiler="replay"' in seen[way]


def test_what_takes_too_long_may_be_given_longer(seen: dict[str, Any]) -> None:
    assert "limit=" in seen["never ends"]


def test_what_cannot_be_sent_is_an_error_that_says_how_to_compile_it_in_this_process(seen: dict[str, Any]) -> None:
    assert "isolated=False" in seen["cannot be sent"] and "RuntimeError" in seen["cannot be sent"]
    assert "not this graph" in seen["raises here"]


def test_after_failures_the_next_program_is_compiled_by_a_new_process(seen: dict[str, Any]) -> None:
    assert seen["afterwards"] == "[1.47943, 1.84147, 1.9093]"  # 1 + sin x
    assert seen["last process"] not in (0, seen["process"])


def test_the_process_ends_with_the_program(seen: dict[str, Any]) -> None:
    assert ends(seen["last process"])


def test_the_process_ends_when_the_program_is_killed(tmp_path: Path) -> None:
    code = "import os; from runtime.aot.compilers import trial; trial.start(); print(trial._TRIALS._process._process.pid, flush=True)"
    done = ran(f"{code}; os.kill(os.getpid(), 9)", tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ends(int(done.stdout))


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


def test_a_process_that_neither_answers_nor_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "GRACE", 0.05)
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
        (b"y" * 301 + b"\n", f"; its last line is {'y' * 300!r}"),
    ],
)
def test_the_last_line_that_the_process_has_written_is_told(written: bytes, said: str) -> None:
    one = object.__new__(_Process)
    with tempfile.TemporaryFile() as one._said:
        one._said.write(written)
        one._said.seek(0)
        assert one._last_words() == said


def test_a_process_goes_on_with_the_folders_that_it_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "here")
    one = object.__new__(_Process)
    one.folders = trial._folders()
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
    assert zeros.stride() == (4, 1) and zeros.untyped_storage().nbytes() == 7 * zeros.element_size() and not zeros.any()
