"""Inductor is tried in another process: whatever happens to that one is an error here, and the next
program is compiled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]


def ran(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


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
def seen(kernels: Path) -> dict[str, Any]:
    done = ran(
        "from tests.runtime.aot.compilers import trial_programs; trial_programs.main()",
        kernels,
    )
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
        ("never ends", "it takes more than 6 s, and was compiling"),
        ("raises", "ValueError: not this graph"),
        ("makes code that crashes", "it ends by SIGSEGV while running the code"),
        (
            "makes code of a wrong layout",
            "its code expects another layout than a kernel gives: expected size 2==3",
        ),
    ],
)
def test_a_failure_of_inductor_is_an_error_that_names_the_program(
    seen: dict[str, Any], way: str, said: str
) -> None:
    assert seen[way].startswith(
        "RuntimeError: Inductor does not compile a graph of 2 calls that begins at "
    )
    assert (
        "trial_programs.py" in seen[way]
        and said in seen[way]
        and 'Use compiler="replay"' in seen[way]
    )


def test_what_takes_too_long_may_be_given_longer(seen: dict[str, Any]) -> None:
    assert "limit=" in seen["never ends"]


def test_what_cannot_be_sent_is_an_error_that_says_how_to_compile_it_in_this_process(
    seen: dict[str, Any],
) -> None:
    assert "isolated=False" in seen["cannot be sent"] and "RuntimeError" in seen["cannot be sent"]
    assert "not this graph" in seen["raises here"]


def test_after_failures_the_next_program_is_compiled_by_a_new_process(seen: dict[str, Any]) -> None:
    assert seen["afterwards"] == "[1.47943, 1.84147, 1.9093]"  # 1 + sin x
    assert seen["last process"] not in (0, seen["process"])


def test_the_process_ends_with_the_program(seen: dict[str, Any]) -> None:
    assert ends(seen["last process"])


def test_the_process_ends_when_the_program_is_killed(kernels: Path) -> None:
    code = (
        "import os; from runtime.aot.compilers import inductor_trial as trial; trial.start(); "
        "print(trial._TRIALS._process._process.pid, flush=True)"
    )
    done = ran(f"{code}; os.kill(os.getpid(), 9)", kernels)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ends(int(done.stdout))
