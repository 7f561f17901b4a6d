"""Runs on a true cluster of two workers of this machine: cells and workers die, and every cell has
exactly one outcome."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from gen.run.results import CellResult, read

ROOT = Path(__file__).parents[2]
needs_distributed = pytest.mark.skipif(
    find_spec("distributed") is None, reason="distributed is not installed"
)

DEADLY = """
import ctypes, os, signal, time
from pathlib import Path
from gen.checks import cases, family, known, op

NAMES = [f"op{number:03}" for number in range(120)]
FAMILY = family(
    "demo",
    ops={name: {} for name in NAMES},
    known={"dies": known("xfail", raises="Crashed", match="SIGSEGV", reason="it dies")},
)

def worker():
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])

def first(name):
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

@cases(*(op(name, smoke="float64", known="dies" if name == "op050" else "") for name in NAMES))
def test_vjp(case):
    case.compared = 1
    time.sleep(0.01)
    match case.op:
        case "op002":
            Path("pid.new").write_text(str(worker()))
            Path("pid.new").rename("pid")
            time.sleep(0.5)
        case "op020" | "op050":
            ctypes.string_at(0)
        case "op030":
            while True:
                pass
        case "op040":
            bytearray(1 << 33)
        case "op060":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        case "op070":
            os.kill(worker(), signal.SIGKILL)
            time.sleep(60)
        case "op080" if first("preempted"):
            os.kill(worker(), signal.SIGKILL)
            time.sleep(60)
        case "op090":
            raise ValueError("wrong")
"""


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "gen", "run", *args]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def gen_run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )


def cells_of(folder: Path) -> dict[str, CellResult]:
    cells = read(folder / "results.jsonl").cells
    twice = [node for node, count in Counter(cell.node for cell in cells).items() if count > 1]
    assert not twice
    return {cell.op: cell for cell in cells}


def resident(pid: int) -> int:
    """The memory of a process in MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")), 0)


@dataclass
class DeadlyRun:
    """A run of DEADLY, of which one worker was killed from outside."""

    cells: dict[str, CellResult]
    returncode: int
    # the standard output and the standard error of the run
    output: str
    # the coordinator's memory in MiB, from the death of the worker to the end of the cells
    memory: list[int]
    # whether every cell has its outcome, as the last line of the results says
    is_complete: bool


DEADLY_RUN = (
    *("test_demo.py", "--target", "torch", "--cluster", "local:2", "--results", "results.jsonl"),
    *("--cell-timeout", "4", "--cell-memory", "2G", "--group-seconds", "0.08"),
)


def watch(run: subprocess.Popen[str], folder: Path) -> list[int]:
    """Kill a worker of a run as soon as one says its number, and return the memory from then on."""
    memory: list[int] = []
    deadline = time.monotonic() + 600
    pid, killed = folder / "pid", folder / "killed"
    while run.poll() is None:
        time.sleep(0.05)
        if time.monotonic() > deadline:
            run.kill()
        if not memory and pid.exists():
            # The worker may have died by itself since it wrote its number.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
            pid.rename(killed)
        # A process that ends reads pages of torch's libraries once more, so its end is left out.
        if killed.exists() and not read(folder / "results.jsonl").end:
            memory.append(resident(run.pid))
    return memory


def deadly_run(folder: Path) -> DeadlyRun:
    """Run DEADLY, whose cells and workers die, and return what became of it."""
    (folder / "test_demo.py").write_text(DEADLY)
    with subprocess.Popen(
        command(*DEADLY_RUN),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        memory = watch(run, folder)
        assert run.stdout is not None
        output = run.stdout.read()
    # Both deaths of workers took place.
    assert (folder / "killed").exists() and (folder / "preempted").exists()
    is_complete = read(folder / "results.jsonl").end["complete"]
    return DeadlyRun(cells_of(folder), run.returncode, output, memory, is_complete)


def assert_outcomes(run: DeadlyRun) -> None:
    expected = {f"op{number:03}": "passed" for number in range(120)}
    expected |= dict.fromkeys(("op020", "op060", "op070"), "crashed") | {"op050": "xfailed"}
    expected |= {"op030": "timed out", "op040": "failed", "op090": "failed"}
    assert {name: cell.outcome for name, cell in run.cells.items()} == expected
    assert "113 passed · 1 xfailed · 2 failed · 1 timed out · 3 crashed" in run.output
    assert run.returncode == 1
    assert run.is_complete


def assert_reasons(cells: dict[str, CellResult]) -> None:
    assert cells["op020"].why.startswith("SIGSEGV after")
    assert cells["op040"].why.startswith("MemoryError")
    assert "SIGKILL of the process that started the cell's" in cells["op060"].why
    assert cells["op070"].why.startswith("its worker died, each of the 2 times that it ran alone")


@needs_distributed
def test_every_cell_has_one_outcome_when_cells_and_workers_die(tmp_path: Path) -> None:
    # One test for all of its claims, because the run takes most of a minute.
    run = deadly_run(tmp_path)
    assert_outcomes(run)
    assert_reasons(run.cells)
    seen = [size for size in run.memory if size]
    assert max(seen) - seen[0] < 40, "the coordinator's memory grew"


PEACEFUL = DEADLY.partition("@cases")[0] + (
    '@cases(*(op(name, smoke="float64") for name in NAMES[:60]))\ndef test_vjp(case):\n'
    "    time.sleep(0.1)\n    case.compared = 1\n"
)


def hear_interrupts() -> None:
    """A process that a background job of a shell starts ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@needs_distributed
def test_a_run_that_is_stopped_goes_on_with_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "test_demo.py").write_text(PEACEFUL)
    whole = [
        "test_demo.py",
        "--target",
        "torch",
        "--cluster",
        "local:1",
        "--results",
        "results.jsonl",
        "--group-seconds",
        "0.05",
    ]
    results = tmp_path / "results.jsonl"
    running = subprocess.Popen(
        command(*whole),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    with running as run:
        while run.poll() is None and not (
            results.exists() and results.read_text().count("\n") > 10
        ):
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=300)
    before = len(cells_of(tmp_path))
    assert run.returncode == 130 and 10 <= before < 60, said
    assert f"stopped; {before} cells have an outcome, and --resume runs the others" in said
    again = gen_run(tmp_path, *whole, "--resume")
    assert again.returncode == 0, again.stderr
    assert {cell.outcome for cell in cells_of(tmp_path).values()} == {"passed"} and len(
        cells_of(tmp_path)
    ) == 60


@needs_distributed
def test_a_worker_of_another_version_stops_the_run_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_demo.py").write_text(PEACEFUL + "import os\nos.environ['X'] = '1'\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/test_demo.py").write_text(PEACEFUL)
    scheduler = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
    ]
    scheduler += ["--scheduler-file", str(tmp_path / "scheduler.json")]
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        "--scheduler-file",
        str(tmp_path / "scheduler.json"),
        "--no-nanny",
    ]
    worker += ["--no-dashboard", "--nthreads", "1", "--resources"]
    quiet = {"env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(scheduler, cwd=tmp_path, **quiet)]  # type: ignore[call-overload]
    try:
        address = address_in(tmp_path / "scheduler.json")
        started.append(subprocess.Popen([*worker, "CPU=1"], cwd=tmp_path / "other", **quiet))  # type: ignore[call-overload]
        came = gen_run(
            tmp_path,
            "test_demo.py",
            "--target",
            "torch",
            "--cluster",
            address,
            "--results",
            "results.jsonl",
        )
        assert came.returncode == 2
        assert (
            "another matrix: test_demo.py differs; give every worker the same commit" in came.stderr
        )
        came = gen_run(
            tmp_path,
            "test_demo.py",
            "--device",
            "cuda",
            "--cluster",
            address,
            "--results",
            "results.jsonl",
        )
        assert (
            came.returncode == 2
            and "no worker offers the resource GPU, which cells on cuda need; start some with"
            in came.stderr
        )
    finally:
        for process in started:
            process.kill()
            process.wait()


def address_in(file: Path) -> str:
    for _ in range(600):
        if file.exists() and file.read_text():
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.1)
    raise TimeoutError("the scheduler did not start")


@needs_distributed
def test_a_scheduler_that_does_not_answer_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "test_demo.py").write_text(PEACEFUL)
    came = gen_run(
        tmp_path,
        "test_demo.py",
        "--target",
        "torch",
        "--cluster",
        "tcp://127.0.0.1:9",
        "--results",
        "results.jsonl",
    )
    assert (
        came.returncode == 2
        and "is `dask scheduler` running there, and is the port open?" in came.stderr
    )
    assert not (tmp_path / "results.jsonl").exists()
