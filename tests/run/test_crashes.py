"""A cell that dies or never ends has that as its outcome, and every other cell of the
run has its own."""

from pathlib import Path
from typing import Any

import pytest

from gen.run.results import read

pytest_plugins = "pytester"

HEAD = """
import ctypes
import os
import signal
import time
import warnings

import pytest

from gen.checks import cases, family, known, op
"""
DEADLY = (
    HEAD
    + """
@cases(*(op(name, smoke="float64") for name in "abcdefghi"))
def test_jvp(case):
    case.compared = 1
    match case.op:
        case "b":
            case.begin(4, "float64[2, 3]")
            ctypes.string_at(0)
        case "c":
            os._exit(3)
        case "d":
            os.kill(os.getpid(), signal.SIGKILL)
        case "f":
            case.begin(1, "float64[]")
            ctypes.PyDLL(None).sleep(60)  # a kernel that keeps the interpreter's lock
        case "g":
            while True:
                pass
        case "h":
            pytest.skip("not today")
"""
)


class Runner:
    """pytest in a folder of its own, with the plug-in."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(self, body: str, *args: str) -> pytest.RunResult:
        self.pytester.makepyfile(test_demo=body)
        return self.pytester.runpytest_inprocess(
            "-p", "gen.run.plugin", "-p", "no:cacheprovider", "--target", "torch", *args
        )

    def cells(self) -> dict[str, Any]:
        return {
            cell.op: cell
            for cell in read(
                Path(self.pytester.path / ".cache/matrix/results-torch-cpu.jsonl")
            ).cells
        }


@pytest.fixture
def run(pytester: pytest.Pytester) -> Runner:
    return Runner(pytester)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_every_cell_has_one_outcome_when_cells_die_and_hang(
    run: Runner, workers: tuple[str, ...]
) -> None:
    result = run(DEADLY, "--cell-timeout", "2", *workers)
    cells = run.cells()
    assert {name: cell.outcome for name, cell in cells.items()} == {
        **dict.fromkeys("aei", "passed"),
        **dict.fromkeys("bcd", "crashed"),
        **dict.fromkeys("fg", "timed out"),
        "h": "skipped",
    }
    assert cells["b"].why.startswith("SIGSEGV after ") and cells["b"].why.endswith(" in sample 4")
    assert cells["c"].why.startswith("exit status 3 after")
    assert cells["d"].why.startswith("SIGKILL (the kernel sends it when memory runs out)")
    assert cells["f"].why == "no result after 2 s in sample 1"
    assert cells["h"].why.endswith("not today")
    result.stdout.fnmatch_lines(["3 passed · 1 skipped · 2 timed out · 3 crashed"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_failure_says_where_the_process_was_and_how_to_run_that_sample(run: Runner) -> None:
    run(DEADLY, "--cell-timeout", "2", "-k", "b-float64 or f-float64").stdout.fnmatch_lines(
        [
            "b-float64 under jvp, target torch on cpu, sample 4 float64?2, 3?",
            "SIGSEGV after * s in sample 4",
            "it was here, innermost call first:",
            '*File "*ctypes*", line * in string_at',
            '*File "*test_demo.py", line * in test_jvp',
            "reproduce: pytest *b-float64* --sample 4",
            "f-float64 under jvp, target torch on cpu, sample 1 float64??",
            "no result after 2 s in sample 1",
            '*File "*test_demo.py", line * in test_jvp',
        ]
    )


def test_an_expected_crash_is_an_xfail_and_another_one_is_not(run: Runner) -> None:
    table = (
        'FAMILY = family("demo", known={"dies": known("xfail", raises="Crashed", '
        'match="SIGSEGV", reason="it dies")})\n'
    )
    body = """
@cases(op("a", smoke="float64", known="dies"), op("b", smoke="float64", known="dies"), op("c", \
smoke="float64", known="dies"))
def test_jvp(case):
    if case.op == "a":
        ctypes.string_at(0)
    if case.op == "b":
        os._exit(3)
"""
    run(HEAD + table + body)
    cells = run.cells()
    assert {name: cell.outcome for name, cell in cells.items()} == {
        "a": "xfailed",
        "b": "crashed",
        "c": "xpassed",
    }
    assert cells["b"].why.startswith("expected Crashed('SIGSEGV') [dies], got exit status 3 after")


def test_the_op_s_limit_is_taken_before_the_check_s_and_the_family_s(run: Runner) -> None:
    body = """
FAMILY = family("demo", ops={"a": {"timeout": 0.2}}, timeout=0.4)
@cases(op("a", smoke="float64"), op("b", smoke="float64"), timeout=0.3)
def test_jvp(case):
    time.sleep(60)
@cases(op("c", smoke="float64"))
def test_vjp(case):
    time.sleep(60)
"""
    run(HEAD + body)
    assert {name: cell.why for name, cell in run.cells().items()} == {
        "a": "no result after 0.2 s",
        "b": "no result after 0.3 s",
        "c": "no result after 0.4 s",
    }


def test_the_command_line_s_limit_replaces_every_other(run: Runner) -> None:
    body = (
        '@cases(op("a", smoke="float64"), op("b", smoke="float64"), timeout=0.2)\n'
        "def test_jvp(case):\n    time.sleep(0.5)\n"
    )
    run(HEAD + body, "--cell-timeout", "0").assert_outcomes(passed=2)


@pytest.mark.parametrize("given", ["-1", "nan", "inf"])
def test_a_limit_that_is_none_stops_the_run(run: Runner, given: str) -> None:
    result = run(DEADLY, f"--cell-timeout={given}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--cell-timeout takes seconds" in result.stderr.str()


def test_cells_share_a_process_until_one_dies(run: Runner) -> None:
    body = """
@cases(*(op(name, smoke="float64") for name in "abcd"))
def test_jvp(case):
    if case.op == "c":
        os._exit(1)
    with open("processes", "a") as file:
        print(os.getpid(), os.getppid(), file=file)
"""
    run(HEAD + body)
    first, second, after = [
        line.split() for line in (run.pytester.path / "processes").read_text().splitlines()
    ]
    assert first == second != after and first[1] == after[1]


def test_a_warning_of_a_cell_reaches_pytest_s_summary(run: Runner) -> None:
    body = (
        '@cases(op("a", smoke="float64"))\ndef test_jvp(case):\n'
        '    warnings.warn("seen from here")\n'
    )
    run(HEAD + body, "-W", "default").stdout.fnmatch_lines(
        ["*test_demo.py:*: UserWarning: seen from here"]
    )


def test_a_warning_that_is_an_error_fails_the_cell(run: Runner) -> None:
    body = """
@cases(op("a", smoke="float64"))
def test_jvp(case):
    warnings.warn("mine")

@pytest.mark.filterwarnings("error")
@cases(op("b", smoke="float64"))
def test_vjp(case):
    warnings.warn("mine")
"""
    run(HEAD + body, "-W", "ignore")
    assert {name: cell.outcome for name, cell in run.cells().items()} == {
        "a": "passed",
        "b": "failed",
    }


def test_in_process_a_cell_runs_where_a_debugger_is(run: Runner) -> None:
    body = """
PID = os.getpid()
@cases(op("a", smoke="float64"))
def test_jvp(case):
    assert (os.getpid() == PID) == IN_PROCESS
"""
    run(HEAD + "IN_PROCESS = True" + body, "--in-process").assert_outcomes(passed=1)
    run(HEAD + "IN_PROCESS = False" + body).assert_outcomes(passed=1)


def test_a_worker_of_pytest_xdist_that_dies_is_a_crash_of_its_cell(run: Runner) -> None:
    body = """
@cases(op("a", smoke="float64"), op("b", smoke="float64"))
def test_jvp(case):
    if case.op == "a":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
"""
    run(HEAD + body, "-n", "1")
    cells = run.cells()
    assert {name: cell.outcome for name, cell in cells.items()} == {"a": "crashed", "b": "passed"}
    assert "crashed while running" in cells["a"].why
